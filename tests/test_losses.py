"""Losses of samples with labels: against torch's own, against a reference by hand, and in a training."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from test_loop import by_hand, relative, run
from tiny_recipe import Network, Sequences, Tiny, collate, task
from torch.testing import assert_close

from toolkit.config.batch import BatchConfig
from toolkit.config.optim import OptimConfig
from toolkit.data.loader import checked_units
from toolkit.errors import UserError
from toolkit.losses import NOT_COUNTED, SAMPLE_WEIGHTS, LabelLoss, summed_cross_entropy

WEIGHTS = [0.25, 3.0, 0.0, 1.5]
PAIRS = [[1.0, 5.0], [0.5, 0.75], [0.6, 3.0], [1.0, 0.0]]


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


def classes_of(*shape: int) -> torch.Tensor:
    labels = torch.randint(0, 4, shape, generator=torch.Generator().manual_seed(1))
    return labels.masked_fill(torch.rand(shape, generator=torch.Generator().manual_seed(2)) < 0.3, NOT_COUNTED)


def mean_of(loss: LabelLoss, logits: torch.Tensor, labels: torch.Tensor, **more: torch.Tensor) -> torch.Tensor:
    """Return what a step learns from: the sum divided by the units."""
    batch = {"labels": labels, **more}
    return loss(logits, batch) / loss.units(batch)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.7])
@pytest.mark.parametrize("weights", [None, WEIGHTS])
@pytest.mark.parametrize("shape", [(29,), (5, 7)])
def test_classes_have_the_mean_that_torch_has(
    shape: tuple[int, ...], weights: list[float] | None, smoothing: float
) -> None:
    """Of samples, and of tokens, some of which do not count; value and gradient."""
    logits, labels = normal(*shape, 4).requires_grad_(), classes_of(*shape)
    found = mean_of(LabelLoss("single", None if weights is None else [weights], smoothing), logits, labels)
    weight = None if weights is None else torch.tensor(weights, dtype=torch.float64)
    expected = F.cross_entropy(logits.flatten(0, -2), labels.flatten(), weight, label_smoothing=smoothing)
    assert_close(found, expected, rtol=1e-14, atol=0)
    gradients = [torch.autograd.grad(value, logits)[0] for value in (found, expected)]
    assert_close(*gradients, rtol=1e-12, atol=1e-16)


def test_several_labels_have_the_binary_cross_entropy_with_weights_of_both_answers() -> None:
    logits, labels = normal(31, 4), (normal(31, 4) > 0.5).double()
    each = F.binary_cross_entropy_with_logits(logits, labels, reduction="none")
    assert_close(mean_of(LabelLoss("multi"), logits, labels), each.mean(), rtol=1e-14, atol=0)
    without, present = torch.tensor(PAIRS, dtype=torch.float64).T
    weights = torch.where(labels > 0, present, without)
    found = mean_of(LabelLoss("multi", PAIRS), logits, labels)
    assert_close(found, (weights * each).sum() / weights.sum(), rtol=1e-14, atol=0)
    smoothed = F.binary_cross_entropy_with_logits(logits, 0.8 * labels + 0.1, reduction="mean")
    assert_close(mean_of(LabelLoss("multi", None, 0.2), logits, labels), smoothed, rtol=1e-14, atol=0)


def focal_by_hand(logits: Any, label: int, weights: Any, smoothing: float, focal: float) -> float:
    """Return the loss of one label with numbers of Python alone."""
    powers = [math.exp(value) for value in logits]
    total = 0.0
    for number, power in enumerate(powers):
        probability = power / sum(powers)
        wanted = (1 - smoothing) * (number == label) + smoothing / len(powers)
        total -= wanted * weights[number] * (1 - probability) ** focal * math.log(probability)
    return total


@pytest.mark.parametrize("focal", [0.0, 0.5, 2.0])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_focal_loss_by_hand(smoothing: float, focal: float) -> None:
    logits, labels = normal(17, 4), classes_of(17)
    counted = labels != NOT_COUNTED
    rows = list(zip(logits[counted].tolist(), labels[counted].tolist(), strict=True))
    expected = sum(focal_by_hand(row, label, WEIGHTS, smoothing, focal) for row, label in rows)
    found = LabelLoss("single", [WEIGHTS], smoothing, focal)
    assert float(found(logits, {"labels": labels})) == pytest.approx(expected, rel=1e-13)
    assert found.units({"labels": labels}) == pytest.approx(sum(WEIGHTS[label] for _, label in rows), rel=1e-15)

    several = (normal(17, 4) > 0).double()
    expected = sum(
        focal_by_hand([0.0, float(logits[row, place])], int(several[row, place]), PAIRS[place], smoothing, focal)
        for row in range(17)
        for place in range(4)
    )
    found = LabelLoss("multi", PAIRS, smoothing, focal)
    assert float(found(logits, {"labels": several})) == pytest.approx(expected, rel=1e-13)


@pytest.mark.parametrize("kind", ["single", "multi"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_focal_loss_of_what_is_certain_has_a_gradient(kind: str, dtype: torch.dtype) -> None:
    """There the power of 1 - p has no slope where it is below 1."""
    logits = torch.tensor([[900.0, -900.0], [-900.0, 900.0]], dtype=dtype, requires_grad=True)
    labels = torch.tensor([0, 0]) if kind == "single" else torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    loss = LabelLoss(kind, focal=0.5)(logits, {"labels": labels})
    loss.backward()
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()
    # What is right is left alone, and what is wrong is pulled with its whole weight.
    assert float(logits.grad[0].abs().max()) < 1e-10
    assert float(logits.grad[1].abs().max()) > 0.5


@given(
    counts=st.lists(st.integers(0, 4), min_size=2, max_size=9).filter(any), kind=st.sampled_from(["single", "multi"])
)
def test_a_weight_is_how_often_a_sample_stands_there(counts: list[int], kind: str) -> None:
    many = len(counts)
    logits = normal(many, 4)
    labels = classes_of(many).clamp(min=0) if kind == "single" else (normal(many, 4) > 0).double()
    loss = LabelLoss(kind, [[0.25, 3.0, 0.5, 1.5]] if kind == "single" else [[1.0, 5.0], [0.5, 0.75]] * 2, 0.1)
    repeated = torch.repeat_interleave(torch.arange(many), torch.tensor(counts))
    found = mean_of(loss, logits, labels, **{SAMPLE_WEIGHTS: torch.tensor(counts, dtype=torch.float32)})
    assert_close(found, mean_of(loss, logits[repeated], labels[repeated]), rtol=1e-13, atol=0)


def test_numbers_have_a_weighted_squared_error() -> None:
    predicted, wanted = normal(13, 1), normal(13)
    weights = torch.tensor([0.5, 0.25, 2.0, 0.0] * 3 + [1.0])
    found = mean_of(LabelLoss("regression"), predicted, wanted, **{SAMPLE_WEIGHTS: weights})
    expected = np.average((predicted.squeeze(-1) - wanted).numpy() ** 2, weights=weights.numpy())
    assert float(found) == pytest.approx(expected, rel=1e-14)
    assert_close(mean_of(LabelLoss("regression"), predicted, wanted), F.mse_loss(predicted.squeeze(-1), wanted))


def test_tokens_of_a_text_are_smoothed_as_torch_does() -> None:
    logits, labels = normal(3, 5, 4), classes_of(3, 5)
    found = summed_cross_entropy(logits, labels, label_smoothing=0.1) / int((labels != NOT_COUNTED).sum())
    expected = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=0.1)
    assert_close(found, expected, rtol=1e-14, atol=0)


@pytest.mark.parametrize(("micro", "balance"), [(None, True), (1, True), (3, False)])
def test_a_training_with_weights_is_that_of_a_loop_by_hand(
    monkeypatch: pytest.MonkeyPatch, micro: int | None, balance: bool
) -> None:
    """Its units are fractions, and those of a step may be below 1; an evaluation has the same loss."""
    weights, smoothing = [0.03, 0.011, 0.2], 0.1
    config = Tiny(batch=BatchConfig(size=8, micro=micro, balance=balance, eval=5), optim=OptimConfig(lr=0.05, clip=0.3))
    loss = LabelLoss("single", [weights], smoothing)

    def weighted(config: Tiny) -> Any:
        return replace(
            task(config),
            units=loss.units,
            loss=lambda model, batch: loss(model(batch["values"], batch["mask"]), batch),
        )

    monkeypatch.setattr("test_loop.task", weighted)
    found, rows = run(config)
    plain = F.cross_entropy
    weight = torch.tensor(weights, dtype=torch.float64)
    monkeypatch.setattr(F, "cross_entropy", lambda *given: plain(*given, weight=weight, label_smoothing=smoothing))
    expected, expected_rows = by_hand(config)
    assert relative(found, expected) < 1e-13
    assert [row.loss for row in rows] == pytest.approx([row["loss"] for row in expected_rows], rel=1e-13)
    assert any(0 < row.units < 1 for row in rows)

    model, held_out = Network(), Sequences(config.data.held_out, 10_000)
    model.load_state_dict(found)
    batch = collate(held_out.fetch(range(len(held_out))))
    evaluated = F.cross_entropy(model(batch["values"], batch["mask"]), batch["labels"])
    assert rows[-1].evaluation is not None
    assert rows[-1].evaluation["loss"] == pytest.approx(evaluated.item(), rel=1e-13)


@pytest.mark.parametrize("units", [-1, -0.5, math.nan, math.inf, None, "many", torch.ones(2)])
def test_units_that_are_no_weights_are_refused(units: Any) -> None:
    with pytest.raises(UserError, match="units"):
        checked_units(units)


@pytest.mark.parametrize("units", [7, np.int64(7), torch.tensor(7), 7.5, np.float32(7.5), torch.tensor(7.5)])
def test_whole_units_stay_whole(units: Any) -> None:
    value = checked_units(units)
    assert value == float(units)
    assert type(value) is (int if value == 7 else float)
