"""A model of Transformers cut between its layers: two small ones, their micro-batches, and a stage of one."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from one_batch_model import NO_LABEL, SENTENCES, VOCABULARY, batch_of, summed_loss
from torch import Tensor, nn
from transformers import BertConfig, BertForSequenceClassification, LlamaConfig, LlamaForCausalLM

WIDTH, LAYERS = 64, 8
MicroBatch = dict[str, Tensor]


@dataclass(frozen=True)
class Parts:
    """A model, and the names of its parts: what stands before the list of its layers, the list, what stands after."""

    model: Any
    before: tuple[str, ...]
    layers: str
    after: tuple[str, ...]


def decoder() -> Parts:
    """Return a small model of the Llama family, which guesses the next byte; the same first weights each time."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=4 * WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        max_position_embeddings=128,
        use_cache=False,
    )
    return Parts(LlamaForCausalLM(config).double(), ("model.embed_tokens",), "model.layers", ("model.norm", "lm_head"))


def encoder() -> Parts:
    """Return a small BERT, which guesses whether a sentence has a comma; the same first weights each time."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=4 * WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        max_position_embeddings=128,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    model = BertForSequenceClassification(config).double()
    return Parts(model, ("bert.embeddings",), "bert.encoder.layer", ("bert.pooler", "classifier"))


MODELS = {"decoder": decoder, "encoder": encoder}


def micro_batches_of(name: str, cut: Sequence[int], equal: bool = False) -> list[MicroBatch]:
    """Return the eight sentences as micro-batches of so many each, padded to the longest of all where `equal`."""
    micro_batches, start = [], 0
    whole = batch_of(SENTENCES[:8])
    for rows in cut:
        sentences = SENTENCES[start : start + rows]
        batch = {key: part[start : start + rows] for key, part in whole.items()} if equal else batch_of(sentences)
        tokens, labels = batch["tokens"], batch["labels"]
        if name == "encoder":
            labels = torch.tensor([int("," in sentence) for sentence in sentences])
        micro_batches.append({"tokens": tokens, "labels": labels, "mask": (tokens != 0).long()})
        start += rows
    return micro_batches


def units_in(micro_batches: Sequence[MicroBatch]) -> int:
    """Return how many labels a step has: bytes to be guessed, or sentences."""
    return sum(int((micro["labels"] != NO_LABEL).sum()) for micro in micro_batches)


def summed(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the summed loss of a micro-batch: over labelled bytes, or over sentences."""
    return summed_loss(logits, labels) if logits.dim() == 3 else F.cross_entropy(logits, labels, reduction="sum")


class Elsewhere(nn.Module):
    """Stands where a layer was that another process holds, and hands on what it is given."""

    def forward(self, *given: Any, **named: Any) -> Any:
        """Return the first argument."""
        return given[0] if given else next(iter(named.values()))


class Stage(nn.Module):
    """Some consecutive layers of a model, with what stands before the first of all layers or after the last one.

    The model's own forward pass runs in every stage: it makes masks and positions there, and what a stage does not hold
    only hands on what it gets. So the weights keep their names.

    torch's schedules send tensors of one shape from stage to stage. Micro-batches of different shapes go as one row of
    tokens each, filled up to the `capacity` of the largest; the filling is sent, but nothing is computed with it.
    """

    def __init__(self, parts: Parts, index: int, stages: int, micro_batches: list[MicroBatch]) -> None:
        super().__init__()
        self.is_first, self.is_last = index == 0, index == stages - 1
        self.micro_batches = micro_batches
        self.capacity = capacity_of(micro_batches)
        first, last = LAYERS * index // stages, LAYERS * (index + 1) // stages
        mine = {f"{parts.layers}.{number}" for number in range(first, last)}
        mine |= set(parts.before if self.is_first else ()) | set(parts.after if self.is_last else ())
        for name in (*parts.before, *(f"{parts.layers}.{number}" for number in range(LAYERS)), *parts.after):
            if name not in mine:
                parts.model.set_submodule(name, Elsewhere())
        self.model = parts.model

    def forward(self, *received: Tensor, number: Tensor) -> Tensor:
        """Return what the next stage gets of a micro-batch (capacity, WIDTH); in the last stage its summed loss.

        Every process has all micro-batches of the step, as it has in accumulation: what travels is only the `number`
        of the one to be computed, and what was `received` from the stage before, (capacity, WIDTH).
        """
        micro = self.micro_batches[int(number)]
        rows, length = micro["tokens"].shape
        given = micro["tokens"] if self.is_first else received[0][: rows * length].view(rows, length, WIDTH)
        output: Tensor = self.model(given, attention_mask=micro["mask"]).logits
        if self.is_last:
            return summed(output, micro["labels"])
        return F.pad(output.flatten(0, 1), (0, 0, 0, self.capacity - rows * length))


def capacity_of(micro_batches: Sequence[MicroBatch]) -> int:
    """Return how many tokens the largest micro-batch has, with its padding."""
    return max(micro["tokens"].numel() for micro in micro_batches)
