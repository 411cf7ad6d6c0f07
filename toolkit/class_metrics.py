"""Metrics of one class for each sample that `evaluate.metrics` can name, of predictions and of probabilities.

All are scikit-learn's, but for the calibration error, which it does not have. What can't be had of some samples, such
as an AUROC where all have one class, is undefined, and says why.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from toolkit.metrics import TWO, Scores, Undefined, accuracy, log_odds, macro_f1, of_probabilities, two_classes
from toolkit.task import Metric

TOP = (2, 3, 5, 10)
"""How many of the likeliest classes may hold the right one."""
BINS = 15
"""Of the calibration error, as in arXiv 1706.04599."""


def named_class_metrics(labels: Sequence[str]) -> dict[str, Metric]:
    """Return the metrics that `evaluate.metrics` can name, of a classifier with these labels."""
    found: dict[str, Metric] = {"accuracy": accuracy, "macro_f1": macro_f1}
    if len(labels) == TWO:
        found |= {"f1": two_classes, "precision": of_positive, "recall": of_positive}
    found |= dict.fromkeys(("matthews_correlation", "cohen_kappa", "balanced_accuracy"), agreement)
    found |= dict.fromkeys(("weighted_f1", "macro_precision", "macro_recall"), averages)
    found |= dict.fromkeys(("weighted_precision", "weighted_recall"), averages)
    ids = tuple(range(len(labels)))
    ranks = [rank for rank in TOP if rank < len(labels)]
    found |= dict.fromkeys([f"top_{rank}_accuracy" for rank in ranks], sure_of(top_accuracy, ids, ranks))
    found |= {"auroc": sure_of(auroc, ids), "log_loss": sure_of(log_losses, ids)}
    if len(labels) == TWO:
        found |= dict.fromkeys(("average_precision", "brier"), sure_of(of_two_probabilities))
    found["calibration_error"] = sure_of(calibration)
    by_class = partial(each_class, tuple(labels))
    return found | {f"{score}_{label}": by_class for score in ("f1", "precision", "recall") for label in labels}


def sure_of(metric: Any, *first: Any) -> Metric:
    """Return a metric of probabilities with its first arguments set."""
    return of_probabilities(partial(metric, *first))


def of_positive(predictions: Any, references: Any) -> Scores:
    """Return precision and recall of the second of two classes."""
    from sklearn.metrics import precision_score, recall_score

    return {
        "precision": float(precision_score(references, predictions, zero_division=0)),
        "recall": float(recall_score(references, predictions, zero_division=0)),
    }


def agreement(predictions: Any, references: Any) -> Scores:
    """Return what corrects the accuracy for chance or for rare classes; undefined where there is one class alone."""
    from sklearn.metrics import balanced_accuracy_score, cohen_kappa_score, matthews_corrcoef

    alone = len({*np.unique(references).tolist(), *np.unique(predictions).tolist()}) < TWO
    return {
        "matthews_correlation": float(matthews_corrcoef(references, predictions)),
        "balanced_accuracy": float(balanced_accuracy_score(references, predictions)),
        "cohen_kappa": (
            Undefined("references and predictions have one class alone")
            if alone
            else float(cohen_kappa_score(references, predictions))
        ),
    }


def averages(predictions: Any, references: Any) -> Scores:
    """Return precision, recall and F1 of the classes, averaged alike (macro) or by how often they occur (weighted)."""
    from sklearn.metrics import precision_recall_fscore_support

    scores: Scores = {}
    for average in ("macro", "weighted"):
        *values, _ = precision_recall_fscore_support(references, predictions, average=average, zero_division=0)
        names = (f"{average}_{score}" for score in ("precision", "recall", "f1"))
        scores |= dict(zip(names, map(float, values), strict=True))
    return scores


def each_class(labels: Sequence[str], predictions: Any, references: Any) -> Scores:
    """Return precision, recall and F1 of each class; undefined where it occurs on neither side."""
    from sklearn.metrics import precision_recall_fscore_support

    ids = list(range(len(labels)))
    precision, recall, f1, support = precision_recall_fscore_support(
        references, predictions, labels=ids, average=None, zero_division=0
    )
    predicted = np.bincount(np.asarray(predictions, dtype=np.int64), minlength=len(labels))
    scores: Scores = {}
    for number, label in enumerate(labels):
        nowhere = not support[number] and not predicted[number]
        for score, values in (("precision", precision), ("recall", recall), ("f1", f1)):
            why = Undefined(f"no sample is, or is predicted to be, {label!r}")
            scores[f"{score}_{label}"] = why if nowhere else float(values[number])
    return scores


def shares(probabilities: Any) -> np.ndarray[Any, Any]:
    """Return probabilities in double precision, (samples, classes), each row of which adds up to 1."""
    values = np.asarray(probabilities, dtype=np.float64)
    normal: np.ndarray[Any, Any] = values / values.sum(axis=1, keepdims=True)
    return normal


def ranked(probabilities: Any) -> np.ndarray[Any, Any]:
    """Return the odds of each class as `log_odds` has them, (samples, classes)."""
    values = shares(probabilities)
    # What the other classes have is summed from both sides: 1 less the own one would be 0 for whoever is sure.
    before, after = (np.zeros_like(values) for _ in range(2))
    np.cumsum(values[:, :-1], axis=1, out=before[:, 1:])
    np.cumsum(values[:, :0:-1], axis=1, out=after[:, -2::-1])
    return log_odds(values, before + after)


def top_accuracy(ids: Sequence[int], ranks: Sequence[int], probabilities: Any, references: Any) -> Scores:
    """Return the share of samples whose class is among the likeliest ones."""
    from sklearn.metrics import top_k_accuracy_score

    values = ranked(probabilities)
    return {
        f"top_{rank}_accuracy": float(top_k_accuracy_score(references, values, k=rank, labels=ids)) for rank in ranks
    }


def auroc(ids: Sequence[int], probabilities: Any, references: Any) -> Scores:
    """Return the area under the ROC curve: of two classes the second, of more each against the rest, on average."""
    from sklearn.metrics import roc_auc_score

    if len(np.unique(references)) < len(ids):
        return {"auroc": Undefined("not every class is in the evaluation data")}
    values, wanted = ranked(probabilities), np.asarray(references)
    against = [float(roc_auc_score(wanted == number, values[:, number])) for number in ids]
    return {"auroc": against[1] if len(ids) == TWO else float(np.mean(against))}


def log_losses(ids: Sequence[int], probabilities: Any, references: Any) -> Scores:
    """Return the mean negative logarithm of the right class's probability, in nats; weights and smoothing of the loss
    that was trained with are not in it."""
    from sklearn.metrics import log_loss

    return {"log_loss": float(log_loss(references, shares(probabilities), labels=ids))}


def of_two_probabilities(probabilities: Any, references: Any) -> Scores:
    """Return average precision and Brier score of the second of two classes."""
    from sklearn.metrics import average_precision_score, brier_score_loss

    wanted, values = np.asarray(references, dtype=np.int64), shares(probabilities)[:, 1]
    precision = (
        float(average_precision_score(wanted, ranked(probabilities)[:, 1]))
        if wanted.any()
        else Undefined("no sample of the evaluation data has the second class")
    )
    return {"average_precision": precision, "brier": float(brier_score_loss(wanted, values, pos_label=1))}


def calibration(probabilities: Any, references: Any) -> Scores:
    """Return the expected calibration error: by how much the probability of the predicted class differs from the share
    of right ones, in 15 bins of equal width, weighted by their samples (Guo et al. 2017)."""
    values = shares(probabilities)
    sure, right = values.max(axis=1).round(6), values.argmax(axis=1) == np.asarray(references)
    bins = np.minimum(np.ceil(sure * BINS).astype(np.int64) - 1, BINS - 1)
    gaps = np.abs(np.bincount(bins, right - sure, minlength=BINS))
    return {"calibration_error": float(gaps.sum() / len(sure))}
