"""Rows that lie end to end inside a model: the numbers of padded ones, for every family that is taken."""

import copy
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from launching import ROOT, python
from small_families import WORDS, has_head, small_model

from toolkit.batch_layout import LENGTHS, Trial, drawing_from, layout
from toolkit.data.collate import pad
from toolkit.data.loader import KeyedRows
from toolkit.dropout import know_samples, remember_callers
from toolkit.losses import causal_logits, output_of
from toolkit.models.packing import MODELS, lay_end_to_end, take_padding_out
from toolkit.rehearsal.few_samples import watching
from toolkit.task import Batch

HEADS = (
    *("AutoModel", "AutoModelForCausalLM", "AutoModelForMaskedLM", "AutoModelForSequenceClassification"),
    *("AutoModelForTokenClassification", "AutoModelForQuestionAnswering"),
)
ENCODERS = {"bert", "roberta", "xlm-roberta", "camembert", "electra", "albert", "distilbert", "modernbert", "ernie"}
IN_FLOAT32 = {"cohere": 1e-7, "gemma": 1e-7, "gemma3_text": 1e-7}
"""What computes in float32 all the same rounds at 6e-8."""
LENGTHS_OF_ROWS = (9, 9, 7, 5, 5, 2)
SAMPLES = [
    {"input_ids": np.random.default_rng(number).integers(3, WORDS, length)}
    for number, length in enumerate(LENGTHS_OF_ROWS)
]
WHOLE: list[Sequence[int]] = [range(6)]


def batch_of(rows: Sequence[int], packed: bool, side: str = "right", samples: Any = SAMPLES) -> Batch:
    """Return a batch of some rows; without their lengths nothing is packed."""
    batch = pad([samples[row] for row in rows], {"input_ids": 1}, side)
    return batch if packed else {name: tensor for name, tensor in batch.items() if name != LENGTHS}


def values_of(model: torch.nn.Module, batch: Batch, causal: bool) -> torch.Tensor:
    """Return everything that a model says of the tokens of a batch, or of its rows, in one row."""
    if causal:
        found = [causal_logits(model, batch)]
    else:
        output = output_of(model, batch)
        names = ("logits", "start_logits", "end_logits", "last_hidden_state", "pooler_output")
        found = [output[name] for name in names if output.get(name) is not None]
    tokens = batch["input_ids"].shape
    mask = batch["attention_mask"].bool()
    return torch.cat([(tensor[mask] if tensor.shape[:2] == tokens else tensor).flatten() for tensor in found])


def run(
    model: torch.nn.Module, parts: Sequence[Sequence[int]], packed: bool, causal: bool, side: str = "right"
) -> tuple[float, torch.Tensor]:
    """Return a loss, and the gradients of all weights in one row, of all rows cut into these parts."""
    model.zero_grad()
    total = 0.0
    for part in parts:
        with drawing_from(KeyedRows(0, 3, part).keys()):
            loss = values_of(model, batch_of(part, packed, side), causal).pow(3).sum()
            loss.backward()  # type: ignore[no-untyped-call]
        total += loss.item()
    return total, torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def apart(one: tuple[float, torch.Tensor], other: tuple[float, torch.Tensor]) -> float:
    """Return the larger of the relative differences of loss and gradients."""
    return max(abs(one[0] - other[0]) / abs(other[0]), float((one[1] - other[1]).norm() / other[1].norm()))


def remember_functions(model: torch.nn.Module) -> None:
    """Find what calls dropout as a function, as a run does before its first step."""
    trial = Trial()
    with drawing_from(KeyedRows(0, 0, [0, 1]).keys()) as own, watching(model, trial, list, []), torch.no_grad():
        own.trial = trial
        output_of(model, batch_of([0, 1], True))
    for module in trial.callers:
        remember_callers(module)


@pytest.fixture
def packs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The tokens of each batch whose padding is taken out."""
    import toolkit.models.packing as packing

    seen: list[int] = []
    place = packing.end_to_end

    def noted(lengths: Any, *rest: Any) -> Any:
        seen.append(sum(lengths))
        return place(lengths, *rest)

    monkeypatch.setattr(packing, "end_to_end", noted)
    return seen


@pytest.mark.parametrize("kind", sorted(MODELS))
def test_numbers_are_those_of_padded_rows(kind: str, packs: list[int]) -> None:
    """Loss and gradients, with dropout and without, for each head; windows and shared keys where a family has them."""
    heads = [head for head in HEADS if has_head(kind, head)]
    # An encoder as a causal model is another matter, which nobody asks for.
    heads = [head for head in heads if head != "AutoModelForCausalLM" or kind not in ENCODERS]
    assert len(heads) >= 2
    for head in heads:
        causal = head == "AutoModelForCausalLM"
        model = know_samples(small_model(kind, head, num_labels=2))
        assert take_padding_out(model) is None
        bound = IN_FLOAT32.get(kind, 1e-12)
        model.train()
        remember_functions(model)
        expected = run(model, WHOLE, False, causal)
        packs.clear()
        assert apart(run(model, WHOLE, True, causal), expected) < bound, head
        assert packs == [sum(LENGTHS_OF_ROWS)]
        assert apart(run(model, [[5, 0], [1, 3, 4], [2]], True, causal), expected) < bound, head
        model.eval()
        without = run(model, WHOLE, False, causal)
        assert apart(run(model, WHOLE, True, causal), without) < bound, head
        assert layout().end_to_end is None


@pytest.mark.parametrize("kind", ["bert", "modernbert", "llama", "mistral", "gpt2"])
def test_a_changed_neighbour_changes_nothing(kind: str, packs: list[int]) -> None:
    """Not a bit: neither what the model makes of a row, nor the gradients of that."""
    model = know_samples(small_model(kind))
    take_padding_out(model)
    model.train()
    changed = [dict(sample) for sample in SAMPLES]
    changed[1] = {"input_ids": (SAMPLES[1]["input_ids"] + 7) % (WORDS - 3) + 3}
    changed[4] = {"input_ids": SAMPLES[4]["input_ids"][::-1].copy()}
    found = []
    for samples in (SAMPLES, changed):
        model.zero_grad()
        with drawing_from(KeyedRows(0, 0, range(6)).keys()):
            states = output_of(model, batch_of(range(6), True, samples=samples)).last_hidden_state
            rest = states[[0, 2, 3, 5]]
            rest.pow(2).sum().backward()
        # The tables of words: those of the neighbours get zeros at other places.
        weights = [p.grad for name, p in model.named_parameters() if p.grad is not None]
        found.append((rest.detach(), states.detach()[[1, 4]], weights))
    (rest, others, weights), (new_rest, new_others, new_weights) = found
    assert torch.equal(new_rest, rest)
    assert all(torch.equal(one, other) for one, other in zip(new_weights, weights, strict=True))
    assert not torch.equal(new_others, others)
    assert packs == [sum(LENGTHS_OF_ROWS)] * 2


def test_rows_that_are_padded_on_the_left_stay_padded(packs: list[int]) -> None:
    model = know_samples(small_model("llama", dropout=0.0))
    expected = copy.deepcopy(model)
    take_padding_out(model)
    one, other = (run(each, WHOLE, True, False, "left") for each in (model, expected))
    assert apart(one, other) == 0
    assert packs == []


@pytest.mark.parametrize("kind", ["gpt2", "llama", "mistral"])
def test_generation_with_its_cache_is_left_alone(kind: str, packs: list[int]) -> None:
    model = small_model(kind, "AutoModelForCausalLM").eval()
    batch = batch_of(range(6), False, "left")
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    options: dict[str, Any] = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 1}
    expected = model.generate(**inputs, **options)
    know_samples(model)
    take_padding_out(model)
    with drawing_from(KeyedRows(0, 0, range(6)).keys()):
        assert torch.equal(model.generate(**inputs, **options), expected)
    assert packs == []


def test_what_it_does_not_know_is_padded() -> None:
    """Embeddings instead of tokens, positions of the caller's own, a cache: the hook leaves them alone."""
    model = small_model("llama")
    ids = torch.ones(2, 3, dtype=torch.int64)
    assert lay_end_to_end(model, (), {"input_ids": ids}) is None
    for kind, attention in (("t5", "sdpa"), ("bert", "eager")):
        reason = take_padding_out(small_model(kind, attn_implementation=attention))
        assert reason is not None
        assert (kind if kind == "t5" else attention) in reason
    assert take_padding_out(torch.nn.Linear(2, 2)) == "it is no model of Transformers"


def test_trainings_come_to_the_weights_of_padded_ones() -> None:
    """Two of the seven tasks of the benchmark, and fewer steps; it exits with 1 beyond 1e-12."""
    script = ROOT / "benchmarks" / "numerics" / "packed.py"
    done = python(script, "--recipes", "classify", "prefer", "--steps", "6")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = re.findall(r"^\| (classify|prefer) \| [\d.]+ to [\d.]+ (?:\| \S+ ){3}\|$", done.stdout, re.MULTILINE)
    assert rows == ["classify", "prefer"]
