"""Metrics against scikit-learn and scipy, offline, whatever the size of the batches they are fed in."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef, r2_score

from toolkit.metrics import (
    accuracy,
    class_metrics,
    correlation,
    macro_f1,
    multilabel_f1,
    positive_class,
    regression_errors,
    two_classes,
)

RANDOM = np.random.default_rng(0)
TWO = np.where(RANDOM.random((2, 103)) < [[0.3], [0.4]], 1, 0)
CLASSES = RANDOM.integers(0, 5, (2, 103))
LABELS = RANDOM.integers(0, 2, (2, 103, 4))
NUMBERS = RANDOM.normal(size=(2, 103))

EXPECTED: list[tuple[Callable[..., Any], np.ndarray, dict[str, float]]] = [
    (accuracy, CLASSES, {"accuracy": accuracy_score(CLASSES[1], CLASSES[0])}),
    (macro_f1, CLASSES, {"macro_f1": f1_score(CLASSES[1], CLASSES[0], average="macro")}),
    (
        two_classes,
        TWO,
        {"f1": f1_score(TWO[1], TWO[0]), "matthews_correlation": matthews_corrcoef(TWO[1], TWO[0])},
    ),
    (
        multilabel_f1,
        LABELS,
        {
            "micro_f1": f1_score(LABELS[1], LABELS[0], average="micro"),
            "macro_f1": f1_score(LABELS[1], LABELS[0], average="macro"),
            "exact_match": accuracy_score(LABELS[1], LABELS[0]),
        },
    ),
    (
        regression_errors,
        NUMBERS,
        {
            "rmse": float(np.sqrt(np.mean((NUMBERS[0] - NUMBERS[1]) ** 2))),
            "mae": float(np.mean(np.abs(NUMBERS[0] - NUMBERS[1]))),
            "r2": r2_score(NUMBERS[1], NUMBERS[0]),
        },
    ),
    (
        correlation,
        NUMBERS,
        {"pearson": pearsonr(*NUMBERS).statistic, "spearman": spearmanr(*NUMBERS).statistic},
    ),
]


@pytest.mark.parametrize("size", [1, 10, 103])
@pytest.mark.parametrize(("maker", "data", "expected"), EXPECTED, ids=lambda value: getattr(value, "__name__", ""))
def test_metrics_equal_their_reference(
    maker: Callable[..., Any], data: np.ndarray, expected: dict[str, float], size: int, tmp_path: Path
) -> None:
    metric = maker(cache_dir=str(tmp_path))
    for start in range(0, 103, size):
        predictions, references = data[:, start : start + size]
        metric.add_batch(predictions=predictions, references=references)
    assert metric.compute() == pytest.approx(expected, abs=1e-12)


def test_a_constant_prediction_has_no_correlation(tmp_path: Path) -> None:
    metric = correlation(cache_dir=str(tmp_path))
    metric.add_batch(predictions=[1.0, 1.0, 1.0], references=[1.0, 2.0, 3.0])
    assert metric.compute() == {"pearson": 0.0, "spearman": 0.0}


def test_two_classes_have_the_metrics_of_glue_and_others_do_not(tmp_path: Path) -> None:
    assert class_metrics(["a", "b", "c"]) == [accuracy, macro_f1]
    assert class_metrics(["a", "b"]) == [accuracy, macro_f1, two_classes]
    assert positive_class(["ham", "spam"]) == {"f1": "of 'spam', the second of the two labels"}
    assert positive_class(["a", "b", "c"]) == positive_class([]) == {}
    # Who always says the same has found nothing out.
    metric = two_classes(cache_dir=str(tmp_path))
    metric.add_batch(predictions=[0, 0, 0], references=[0, 1, 0])
    assert metric.compute() == {"f1": 0.0, "matthews_correlation": 0.0}
