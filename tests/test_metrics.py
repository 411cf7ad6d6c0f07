"""Metrics against scikit-learn and scipy, whatever the size of the batches that predictions come in."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef, r2_score

from toolkit.errors import UserError
from toolkit.evaluation_metrics import joined, scores_of
from toolkit.label_metrics import Thresholds
from toolkit.metrics import (
    Selected,
    Undefined,
    accuracy,
    class_metrics,
    correlation,
    from_evaluate,
    macro_f1,
    multilabel_f1,
    positive_class,
    regression_errors,
    takes_probabilities,
    two_classes,
)
from toolkit.task import Metric
from toolkit.tasks.text_classification.metrics import named_metrics

RANDOM = np.random.default_rng(0)
TWO = np.where(RANDOM.random((2, 103)) < [[0.3], [0.4]], 1, 0)
CLASSES = RANDOM.integers(0, 5, (2, 103))
LABELS = RANDOM.integers(0, 2, (2, 103, 4))
NUMBERS = RANDOM.normal(size=(2, 103))

EXPECTED: list[tuple[Metric, np.ndarray, dict[str, float]]] = [
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
@pytest.mark.parametrize("as_lists", [False, True])
@pytest.mark.parametrize(("metric", "data", "expected"), EXPECTED, ids=lambda value: getattr(value, "__name__", ""))
def test_metrics_equal_their_reference(
    metric: Metric, data: np.ndarray, expected: dict[str, float], size: int, as_lists: bool
) -> None:
    batches = [data[:, start : start + size] for start in range(0, 103, size)]
    sides = ([batch[side].tolist() if as_lists else batch[side] for batch in batches] for side in (0, 1))
    predictions, references = map(joined, sides)
    assert isinstance(predictions, list) == as_lists
    assert scores_of([metric], predictions, references) == pytest.approx(expected, abs=1e-12)


def test_single_precision_is_scored_in_double_precision() -> None:
    """A mean of squares in float32 differs in the seventh digit."""
    single = (NUMBERS * 1e3).astype(np.float32)
    for metric in (regression_errors, correlation):
        assert metric(*single) == metric(*single.astype(np.float64))


def test_a_constant_prediction_has_no_correlation() -> None:
    assert correlation([1.0, 1.0, 1.0], [1.0, 2.0, 3.0]) == {"pearson": 0.0, "spearman": 0.0}


def test_two_classes_have_the_metrics_of_glue_and_others_do_not() -> None:
    assert class_metrics(["a", "b", "c"]) == [accuracy, macro_f1]
    assert class_metrics(["a", "b"]) == [accuracy, macro_f1, two_classes]
    assert positive_class(["ham", "spam"]) == {"f1": "of 'spam', the second of the two labels"}
    assert positive_class(["a", "b", "c"]) == positive_class([]) == {}
    # Who always says the same has found nothing out.
    assert two_classes([0, 0, 0], [0, 1, 0]) == {"f1": 0.0, "matthews_correlation": 0.0}


def test_no_metric_hides_another_or_the_loss() -> None:
    def again(predictions: Any, references: Any) -> dict[str, float]:
        return {"accuracy": 0.0}

    def loss(predictions: Any, references: Any) -> dict[str, float]:
        return {"loss": 0.0}

    for second, name in ((again, "accuracy"), (loss, "loss")):
        with pytest.raises(
            UserError, match=f"the metric {second.__name__} returns '{name}', which the loss or another"
        ):
            scores_of([accuracy, second], [1], [1])


def test_a_metric_that_returns_a_number_alone_is_named() -> None:
    def share(predictions: Any, references: Any) -> Any:
        return 0.5

    with pytest.raises(UserError, match="the metric share returned a float; it has to return a mapping of names"):
        scores_of([share], [1], [1])


@pytest.mark.parametrize("value", [[0.5, 0.7], np.zeros(2), None, "high"])
def test_a_score_that_is_no_number_is_named(value: Any) -> None:
    def by_class(predictions: Any, references: Any) -> Any:
        return {"accuracy": 0.5, "f1": value}

    with pytest.raises(UserError, match=f"the metric by_class returns a {type(value).__name__} as 'f1'; it has to be"):
        scores_of([by_class], [1], [1])


def nan_mean(predictions: Any, references: Any) -> dict[str, float]:
    """Return a score that is made for gaps, and one that is not."""
    return {"without_gaps": float(np.nanmean(predictions)), "mean": float(np.mean(predictions))}


@pytest.mark.parametrize("kind", ["single", "multi", "number"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_numbers_that_are_not_finite_leave_scores_undefined(kind: Any, value: float) -> None:
    """As of a model that a far too high learning rate has spoiled."""
    wanted: Any = {"single": [0, 1, 0], "multi": [[0, 1], [1, 1], [0, 0]], "number": [0.1, 0.4, 0.2]}[kind]
    predicted = np.array([0.1, value, 0.2]) if kind == "number" else np.zeros(np.shape(wanted), dtype=np.int64)
    sure = np.full((3, 2), np.nan, dtype=np.float32)
    named = named_metrics(kind, [*"ab"])
    metrics = [Selected(metric, (name,)) for name, metric in named.items()]
    found = scores_of(metrics, predicted, np.asarray(wanted), probabilities=sure)
    assert list(found) == list(named)
    for name, metric in named.items():
        if takes_probabilities(metric) or (kind == "number" and np.isnan(value)):
            assert isinstance(found[name], Undefined), name
            assert found[name].why == "the numbers that the model predicts are not finite"
    if kind == "number":
        assert list(scores_of([regression_errors, correlation], predicted, wanted)) == [
            "rmse",
            "mae",
            "r2",
            "pearson",
            "spearman",
        ]
        own = scores_of([nan_mean], np.array([1.0, np.nan]), wanted)
        assert (own["without_gaps"], isinstance(own["mean"], Undefined)) == (1.0, True)
    assert Thresholds([*"ab"])(sure, [[0, 1], [1, 1], [0, 0]]).details["thresholds"] == {"a": 0.5, "b": 0.5}


def test_parts_of_several_shapes_are_joined_as_a_list() -> None:
    """One prediction per token: batches are padded to different lengths."""
    rows = joined([np.zeros((2, 3)), np.ones((1, 5))])
    assert [len(row) for row in rows] == [3, 3, 5]


SCRIPT = """
import datasets
import evaluate

class Hits(evaluate.Metric):
    def _info(self):
        number = datasets.Value("int64")
        features = datasets.Features({"predictions": number, "references": number})
        return evaluate.MetricInfo(description="", citation="", inputs_description="", features=features)

    def _compute(self, predictions, references, weight):
        return {"hits": weight * sum(a == b for a, b in zip(predictions, references))}
"""


def test_a_script_of_evaluate_is_a_metric(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    (tmp_path / "hits.py").write_text(SCRIPT)
    metric = from_evaluate(str(tmp_path / "hits.py"), weight=2)
    assert metric(np.array([1, 2, 3]), np.array([1, 5, 3])) == {"hits": 4}
    with pytest.raises(UserError, match="no metric script 'accuracy'; give the path of one"):
        from_evaluate("accuracy")
