"""Metrics of several labels by name, and thresholds: the best F1 there is, whatever the last digits are."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk

from toolkit.label_metrics import Thresholds, best_threshold, named_label_metrics
from toolkit.metrics import Undefined, takes_probabilities
from toolkit.tasks.text_classification.metrics import probabilities_of

RANDOM = np.random.default_rng(5)
LABELS = [*"abc"]
SURE = RANDOM.integers(1, 1000, (97, 3)) / 1000
WANTED = (RANDOM.random((97, 3)) < SURE * 0.7).astype(np.int64)


def scores(sure: Any, wanted: Any) -> dict[str, float]:
    found = {}
    for name, metric in named_label_metrics(LABELS).items():
        found[name] = metric(sure if takes_probabilities(metric) else (sure > 0.5).astype(np.int64), wanted)[name]
    return found


def test_metrics_equal_their_reference() -> None:
    found, predicted = scores(SURE, WANTED), (SURE > 0.5).astype(int)
    averages = ("micro", "macro", "weighted", "samples")
    expected = {f"{kind}_f1": sk.f1_score(WANTED, predicted, average=kind, zero_division=0) for kind in averages}
    expected |= {
        "exact_match": np.mean((predicted == WANTED).all(1)),
        "hamming_loss": np.mean(predicted != WANTED),
        "micro_precision": WANTED[predicted == 1].mean(),
        "micro_recall": predicted[WANTED == 1].mean(),
        "macro_auroc": np.mean([sk.roc_auc_score(WANTED[:, at], SURE[:, at]) for at in range(3)]),
        "micro_auroc": sk.roc_auc_score(WANTED.ravel(), SURE.ravel()),
        "macro_average_precision": np.mean([sk.average_precision_score(WANTED[:, at], SURE[:, at]) for at in range(3)]),
        "f1_b": sk.f1_score(WANTED[:, 1], predicted[:, 1]),
        "recall_c": sk.recall_score(WANTED[:, 2], predicted[:, 2]),
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    assert all(math.isfinite(value) for value in found.values())


@pytest.mark.filterwarnings("error")
def test_a_label_that_no_sample_has() -> None:
    wanted = WANTED.copy()
    wanted[:, 0] = 0
    sure = SURE.copy()
    sure[:, 0] = 0.1
    found = scores(sure, wanted)
    assert isinstance(found["f1_a"], Undefined)
    assert found["macro_auroc"] == pytest.approx(
        np.mean([sk.roc_auc_score(wanted[:, at], sure[:, at]) for at in (1, 2)])
    )
    found = scores(sure[:1], np.zeros((1, 3), dtype=np.int64))
    assert isinstance(found["macro_auroc"], Undefined)


def f1_at(threshold: float, sure: Any, wanted: Any) -> float:
    right = np.sum(wanted * (sure > threshold))
    return float(2 * right / (np.sum(sure > threshold) + np.sum(wanted)))


PAIRS = st.lists(st.tuples(st.integers(1, 999), st.booleans()), min_size=1, max_size=25)


@settings(deadline=None, max_examples=60)
@given(PAIRS)
@example([(500, False), (700, True)])
@example([(500, True), (300, False)])
def test_no_threshold_is_better_and_the_last_digits_decide_nothing(pairs: list[tuple[int, bool]]) -> None:
    sure, wanted = np.array([p / 1000 for p, _ in pairs]), np.array([int(has) for _, has in pairs])
    found = best_threshold(sure, wanted)
    if not wanted.any():
        assert found == 0.5
        return
    candidates = [
        0.0,
        *((sure + np.roll(sure, 1)) / 2),
        *(np.sort(sure)[:-1] + np.diff(np.sort(sure)) / 2),
        *(sure - 5e-4),
    ]
    assert f1_at(found, sure, wanted) == pytest.approx(max(f1_at(one, sure, wanted) for one in (*candidates, 0.5)))
    # (One that is one half itself may be a rounded one above it.)
    if 0.5 not in sure and f1_at(0.5, sure, wanted) >= f1_at(found, sure, wanted):
        assert found == 0.5
    # As another number of processes would round them.
    noise = np.random.default_rng(len(pairs)).uniform(-4e-7, 4e-7, len(sure))
    assert best_threshold(sure + noise, wanted) == found


def test_what_is_rounded_to_one_half_does_not_part_there() -> None:
    sure, wanted = np.array([0.50004] * 100 + [0.6] * 10), np.array([0] * 100 + [1] * 10)
    found = best_threshold(sure, wanted)
    assert 0.5001 < found < 0.6
    assert f1_at(found, sure, wanted) == 1


def test_labels_that_a_model_is_sure_of_are_ranked() -> None:
    """Near 1 single precision has no more than seven digits."""
    random = np.random.default_rng(0)
    wanted = random.integers(0, 2, (3000, 1))
    logits = (16 + wanted * 0.5 + random.normal(0, 0.5, wanted.shape)).astype(np.float32)
    model = SimpleNamespace(logits=torch.from_numpy(logits))
    probabilities = probabilities_of("multi")
    assert probabilities is not None
    sure = probabilities(lambda **_: model, {}).numpy()  # type: ignore[arg-type]
    area = named_label_metrics(["a"])["micro_auroc"](sure, wanted)["micro_auroc"]
    assert area == pytest.approx(sk.roc_auc_score(wanted, logits), abs=1e-4)


def test_thresholds_that_a_model_was_saved_with_are_taken() -> None:
    chosen = Thresholds(LABELS)(SURE, WANTED)
    limits = chosen.details["thresholds"]
    assert list(limits) == LABELS
    assert (chosen.predictions == ([limits[label] for label in LABELS] < SURE)).all()
    other = 1 - WANTED
    again = Thresholds(LABELS, {"a": 0.9, "b": 0.2})(SURE, other)
    assert (again.predictions == (SURE > [0.9, 0.2, 0.5])).all()
    assert again.details["thresholds"] == {"a": 0.9, "b": 0.2}
