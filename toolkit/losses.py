"""Losses that are sums over units, and how sure a model is of a single sample (see `Task.scores`)."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from toolkit.attention import padding_known
from toolkit.batch_layout import NOTES

NOT_COUNTED = -100
"""The label of a token that carries no loss: torch's own default, which Transformers follows."""
MOST_NAMED = 10
"""Of more labels than this the likeliest are named."""


def full_precision(values: torch.Tensor) -> torch.Tensor:
    """Return logits in float32 or better: a softmax in 16 bits loses what the loss is made of."""
    return values.float() if values.dtype.itemsize < 4 else values


def output_of(model: torch.nn.Module, batch: Mapping[str, torch.Tensor], *without: str) -> Any:
    """Return the output of a model of Transformers for a batch, without the entries that are not for the model."""
    inputs = {name: values for name, values in batch.items() if name not in (*without, *NOTES)}
    with padding_known(batch):
        return model(**inputs)


def logits_of(model: torch.nn.Module, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return the logits of a model of Transformers; given the labels too, it would compute a loss of its own."""
    return full_precision(output_of(model, batch, "labels").logits)


def causal_logits(
    model: torch.nn.Module, batch: Mapping[str, torch.Tensor], positions: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the logits of a causal model in the model's own precision: (rows, tokens, vocabulary).

    Args:
        model: of Transformers.
        batch: "input_ids" and "attention_mask", padded on the right.
        positions: int64, the tokens whose logits are wanted, the same in all rows; None for all.
    """
    # Most models then compute no other logits. Over a large vocabulary these are the largest tensor of a batch.
    kept = {"logits_to_keep": positions} if positions is not None and takes_positions(model) else {}
    with padding_known(batch, on_the_right=True):
        # A cache would keep the keys and values of all layers for a next token, which nobody asks for.
        output = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], use_cache=False, **kept)
    logits: torch.Tensor = output.logits
    return logits if positions is None or kept else logits[:, positions]


def takes_positions(model: Any) -> bool:
    """Return whether a model makes logits for some positions alone when it is asked to."""
    module = getattr(model, "module", model)  # what Accelerate wraps around a model keeps it under this name
    # Adapters hand on whatever their base takes.
    base = module.get_base_model() if hasattr(module, "get_base_model") else module
    return "logits_to_keep" in inspect.signature(base.forward).parameters


def summed_cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the cross-entropy summed over all labels but those that are `NOT_COUNTED`.

    Args:
        logits: (..., classes).
        labels: class ids, the shape of `logits` without the last dimension.
    """
    flat = full_precision(logits).reshape(-1, logits.shape[-1])
    return F.cross_entropy(flat, labels.reshape(-1), ignore_index=NOT_COUNTED, reduction="sum")


def counted(labels: torch.Tensor) -> int:
    """Return how many labels are not `NOT_COUNTED`: the units of a loss over tokens."""
    return int((labels != NOT_COUNTED).sum())


def class_probabilities(names: Sequence[str], logits: torch.Tensor, several: bool = False) -> list[dict[str, float]]:
    """Return for each sample the probability of each label, the likeliest first; of many labels the likeliest ten.

    Args:
        names: the name of each label id.
        logits: (samples, labels).
        several: a sample may have several labels, each of its own probability; otherwise they add up to 1.
    """
    logits = full_precision(logits)
    likely, ids = (logits.sigmoid() if several else logits.softmax(-1)).topk(min(MOST_NAMED, logits.shape[-1]), dim=-1)
    return [
        {names[label]: probability for label, probability in zip(labels, probabilities, strict=True)}
        for labels, probabilities in zip(ids.tolist(), likely.tolist(), strict=True)
    ]


def reference_losses(logits: torch.Tensor, labels: torch.Tensor) -> list[dict[str, float]]:
    """Return for each sample the mean loss of its reference, in nats per token.

    Args:
        logits: (samples, tokens, vocabulary).
        labels: (samples, tokens), `NOT_COUNTED` where a token carries no loss.
    """
    losses = F.cross_entropy(
        full_precision(logits).flatten(0, 1), labels.flatten(), ignore_index=NOT_COUNTED, reduction="none"
    )
    counts = (labels != NOT_COUNTED).sum(1).clamp(min=1)
    return [{"loss": loss} for loss in (losses.view_as(labels).sum(1) / counts).tolist()]
