"""Metrics of classes by name, against scikit-learn and against formulas written out by hand."""

import math
import warnings
from dataclasses import replace
from time import process_time
from typing import Any

import numpy as np
import pytest
from sklearn import metrics as sk
from tiny_recipe import Tiny, task

from toolkit.class_metrics import named_class_metrics, ranked
from toolkit.config.schema import EvaluateConfig
from toolkit.evaluation_metrics import scores_of
from toolkit.evaluation_scores import Collector, Scored
from toolkit.metric_choice import with_metrics
from toolkit.metrics import Selected, Undefined, log_odds, named_number_metrics, takes_probabilities
from toolkit.task import Postprocessed

RANDOM = np.random.default_rng(3)


def sample(classes: int, count: int = 211) -> tuple[Any, Any, Any]:
    """Return probabilities (float32, as a model gives them), the classes they predict, and the right ones."""
    logits = RANDOM.normal(size=(count, classes)).astype(np.float32)
    wanted = np.where(RANDOM.random(count) < 0.5, logits.argmax(1), RANDOM.integers(0, classes, count))
    sure = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    return sure, sure.argmax(1), wanted


def all_scores(named: dict[str, Any], predicted: Any, wanted: Any, sure: Any = None) -> dict[str, float]:
    """Return the score of every name, each metric called once for each of its names, as it is alone."""
    found = {}
    for name, metric in named.items():
        found[name] = metric(sure if takes_probabilities(metric) else predicted, wanted)[name]
    return found


def calibration_by_hand(sure: Any, wanted: Any) -> float:
    error = 0.0
    for low in range(15):
        inside = [(row.max(), row.argmax() == right) for row, right in zip(sure, wanted, strict=True)]
        inside = [(p, ok) for p, ok in inside if low / 15 < p <= (low + 1) / 15]
        if inside:
            means = [sum(column) / len(inside) for column in zip(*inside, strict=True)]
            error += len(inside) / len(wanted) * abs(means[0] - means[1])
    return error


def test_two_classes() -> None:
    sure, predicted, wanted = sample(2)
    found = all_scores(named_class_metrics(["ham", "spam"]), predicted, wanted, sure)
    double = sure.astype(np.float64)
    expected = {
        "accuracy": sk.accuracy_score(wanted, predicted),
        "macro_f1": sk.f1_score(wanted, predicted, average="macro"),
        "f1": sk.f1_score(wanted, predicted),
        "precision": sk.precision_score(wanted, predicted),
        "recall": sk.recall_score(wanted, predicted),
        "matthews_correlation": sk.matthews_corrcoef(wanted, predicted),
        "cohen_kappa": sk.cohen_kappa_score(wanted, predicted),
        "balanced_accuracy": sk.balanced_accuracy_score(wanted, predicted),
        "weighted_f1": sk.f1_score(wanted, predicted, average="weighted"),
        "macro_precision": sk.precision_score(wanted, predicted, average="macro"),
        "macro_recall": sk.recall_score(wanted, predicted, average="macro"),
        "weighted_precision": sk.precision_score(wanted, predicted, average="weighted"),
        "weighted_recall": sk.recall_score(wanted, predicted, average="weighted"),
        "auroc": sk.roc_auc_score(wanted, double[:, 1]),
        "log_loss": -np.mean(np.log(double[np.arange(len(wanted)), wanted])),
        "average_precision": sk.average_precision_score(wanted, double[:, 1]),
        "brier": np.mean((double[:, 1] - wanted) ** 2),
        "calibration_error": calibration_by_hand(double, wanted),
        "f1_ham": sk.f1_score(wanted, predicted, pos_label=0),
        "f1_spam": sk.f1_score(wanted, predicted, pos_label=1),
        "precision_ham": sk.precision_score(wanted, predicted, pos_label=0),
        "precision_spam": sk.precision_score(wanted, predicted, pos_label=1),
        "recall_ham": sk.recall_score(wanted, predicted, pos_label=0),
        "recall_spam": sk.recall_score(wanted, predicted, pos_label=1),
    }
    assert list(found) == list(expected)
    assert found == pytest.approx(expected, rel=1e-6)


def test_more_classes() -> None:
    sure, predicted, wanted = sample(6)
    found = all_scores(named_class_metrics([*"abcdef"]), predicted, wanted, sure)
    best = np.argsort(-sure, axis=1)
    for rank in (2, 3, 5):
        hits = np.mean([right in row[:rank] for row, right in zip(best, wanted, strict=True)])
        assert found[f"top_{rank}_accuracy"] == pytest.approx(hits)
    against = [sk.roc_auc_score(wanted == one, sure[:, one]) for one in range(6)]
    # Odds have four digits: samples that are closer than that count as a tie.
    assert found["auroc"] == pytest.approx(np.mean(against), abs=1e-4)
    assert "top_10_accuracy" not in found
    assert not {"f1", "brier", "average_precision"} & set(found)
    assert found["recall_c"] == pytest.approx(sk.recall_score(wanted == 2, predicted == 2))


@pytest.mark.parametrize("classes", [2, 4])
def test_what_is_not_defined_says_why_and_ends_nothing(classes: int) -> None:
    """One sample, or samples of one class alone, as a small group of an evaluation has them."""
    sure, predicted, wanted = sample(classes)
    named = named_class_metrics([*"abcd"][:classes])
    for places in ([0], np.flatnonzero(wanted == 1), np.flatnonzero((wanted == 1) & (predicted == 1))):
        metrics = [Selected(metric, (name,)) for name, metric in named.items()]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = scores_of(metrics, predicted[places], wanted[places], probabilities=sure[places])
        assert all(math.isfinite(value) or isinstance(value, Undefined) for value in found.values())
        assert isinstance(found["auroc"], Undefined)
        assert found["auroc"].why == "not every class is in the evaluation data"
    assert isinstance(found["cohen_kappa"], Undefined)
    assert isinstance(found["f1_a"], Undefined)


@pytest.mark.parametrize("classes", [2, 3, 400])
def test_odds_of_many_classes(classes: int) -> None:
    """Each class against the sum of the others, also of who is nearly sure."""
    logits = RANDOM.normal(size=(300, classes)) * np.tile([1.0, 9.0, 30.0], 100)[:, None]
    sure = np.exp(logits - logits.max(axis=1, keepdims=True))
    values = sure / sure.sum(axis=1, keepdims=True)
    found = ranked(sure)
    others = [np.delete(values, number, axis=1).sum(axis=1) for number in range(classes)]
    expected = log_odds(values, np.stack(others, axis=1))
    assert np.abs(found - expected).max() <= 2e-4


def test_many_classes_take_no_copy_each() -> None:
    many = RANDOM.random((2000, 1000))
    begun = process_time()
    ranked(many)
    assert process_time() - begun < 1, "a copy for each class takes more than two seconds"


def test_probabilities_are_kept_as_they_come() -> None:
    """A batch at a time: an array of its own for each sample takes many times the memory."""
    batches = [((3, 1), [[0.2, 0.8], [0.6, 0.4]]), ((0,), [[0.9, 0.1]])]
    for samples, expected in ((None, [0.2, 0.6, 0.9]), ([0, 1, 0, 3], [0.9, 0.6, 0.9, 0.2])):
        made = replace(task(Tiny()), probabilities=lambda model, batch: batch["x"])
        if samples is not None:
            items = Postprocessed([0] * len(samples), [0] * len(samples), samples=samples)
            made = replace(made, postprocess=lambda predictions, items=items: items)
        collector = Collector(made, 1, last=False, shown=0, wanted=set())
        for ids, sure in batches:
            collector.add(Scored(ids, [0] * len(ids), [0] * len(ids), probabilities=np.array(sure)))
        assert len(collector.probabilities) == 2
        assert collector.postprocess(are_all=True)
        assert collector.of_items()[:, 0].tolist() == expected


def test_numbers() -> None:
    from scipy import stats

    predicted, wanted = RANDOM.normal(size=(2, 83))
    found = all_scores(named_number_metrics(), predicted, wanted)
    errors = predicted - wanted
    assert found == pytest.approx(
        {
            "rmse": np.sqrt(np.mean(errors**2)),
            "mse": np.mean(errors**2),
            "mae": np.mean(np.abs(errors)),
            "r2": 1 - np.sum(errors**2) / np.sum((wanted - wanted.mean()) ** 2),
            "pearson": np.corrcoef(predicted, wanted)[0, 1],
            "spearman": np.corrcoef(stats.rankdata(predicted), stats.rankdata(wanted))[0, 1],
            "kendall": stats.kendalltau(predicted, wanted).statistic,
            "median_absolute_error": np.median(np.abs(errors)),
            "max_error": np.abs(errors).max(),
            "explained_variance": 1 - np.var(errors) / np.var(wanted),
        }
    )
    for two in ([1.0, 1.0], [1.0, 2.0]), ([1.0], [3.0]):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            constant = all_scores(named_number_metrics(), *two)
        assert isinstance(constant["pearson"], Undefined)
        assert constant["pearson"].why == "all predictions are alike"
    assert isinstance(constant["r2"], Undefined)
    assert constant["mse"] == 4


def test_scores_of_one_metric_are_computed_once() -> None:
    config = Tiny(evaluate=EvaluateConfig(metrics="two, one, none"))
    made = task(config)
    calls = []

    def counted(predictions: Any, references: Any) -> dict[str, float]:
        calls.append(1)
        return {"one": 1.0, "two": 2.0, "three": 3.0}

    made = replace(made, named_metrics={"one": counted, "two": counted, "three": counted, "none": counted})
    chosen = with_metrics(made, config)
    found = scores_of(chosen.metrics, [0], [0])
    assert (found["two"], found["one"], len(calls)) == (2.0, 1.0, 1)
    assert set(found) == {"one", "two", "none"}
    assert isinstance(found["none"], Undefined)
