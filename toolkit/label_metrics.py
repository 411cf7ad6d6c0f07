"""Metrics of several labels for each sample that `evaluate.metrics` can name, and thresholds that are chosen by F1."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from toolkit.metrics import Scores, Undefined, log_odds, multilabel_f1, of_probabilities
from toolkit.task import Metric, Tuned

HALF = 0.5
"""The threshold of a probability where none is chosen."""
DIGITS = 4
"""Of a probability, when thresholds are chosen: more depend on how many processes there are."""


def named_label_metrics(labels: Sequence[str]) -> dict[str, Metric]:
    """Return the metrics that `evaluate.metrics` can name, where a sample may have several of these labels."""
    found: dict[str, Metric] = dict.fromkeys(("micro_f1", "macro_f1", "exact_match"), multilabel_f1)
    kinds = [f"{average}_{score}" for score in ("precision", "recall") for average in ("micro", "macro")]
    found |= dict.fromkeys((*kinds, "weighted_f1", "samples_f1", "hamming_loss"), label_averages)
    ranking = ("macro_auroc", "micro_auroc", "macro_average_precision", "ranking_average_precision")
    found |= dict.fromkeys(ranking, of_probabilities(partial(label_ranking)))
    by_label = partial(each_label, tuple(labels))
    return found | {f"{score}_{label}": by_label for score in ("f1", "precision", "recall") for label in labels}


def zeros_and_ones(values: Any) -> np.ndarray[Any, Any]:
    """Return 0 or 1 in the shape (samples, labels)."""
    return np.asarray(values, dtype=np.int64)


def label_averages(predictions: Any, references: Any) -> Scores:
    """Return averages of precision, recall and F1, and the share of (sample, label) pairs that are wrong."""
    from sklearn.metrics import f1_score, hamming_loss, precision_score, recall_score

    predicted, wanted = zeros_and_ones(predictions), zeros_and_ones(references)
    scores: Scores = {}
    for name, function in (("precision", precision_score), ("recall", recall_score)):
        for average in ("micro", "macro"):
            scores[f"{average}_{name}"] = float(function(wanted, predicted, average=average, zero_division=0))
    for average in ("weighted", "samples"):
        scores[f"{average}_f1"] = float(f1_score(wanted, predicted, average=average, zero_division=0))
    return scores | {"hamming_loss": float(hamming_loss(wanted, predicted))}


def each_label(labels: Sequence[str], predictions: Any, references: Any) -> Scores:
    """Return precision, recall and F1 of each label; undefined where it occurs on neither side."""
    from sklearn.metrics import precision_recall_fscore_support

    predicted, wanted = zeros_and_ones(predictions), zeros_and_ones(references)
    precision, recall, f1, _ = precision_recall_fscore_support(wanted, predicted, average=None, zero_division=0)
    anywhere = (predicted | wanted).any(axis=0)
    scores: Scores = {}
    for number, label in enumerate(labels):
        for name, values in (("precision", precision), ("recall", recall), ("f1", f1)):
            why = Undefined(f"no sample has, or is predicted to have, {label!r}")
            scores[f"{name}_{label}"] = float(values[number]) if anywhere[number] else why
    return scores


def label_ranking(probabilities: Any, references: Any) -> Scores:
    """Return areas under the curves of labels, and how high the labels of a sample rank.

    A mean over labels is that of those which some samples have and others not.
    """
    from sklearn.metrics import average_precision_score, label_ranking_average_precision_score, roc_auc_score

    shares, wanted = np.asarray(probabilities, dtype=np.float64), zeros_and_ones(references)
    values = log_odds(shares, 1 - shares)
    counts = wanted.sum(axis=0)
    differ = (counts > 0) & (counts < len(wanted))
    scores: Scores = {"ranking_average_precision": float(label_ranking_average_precision_score(wanted, values))}
    if not differ.any():
        none = Undefined("each label is that of all samples, or of none")
        return scores | dict.fromkeys(("macro_auroc", "micro_auroc", "macro_average_precision"), none)
    return scores | {
        "macro_auroc": float(roc_auc_score(wanted[:, differ], values[:, differ], average="macro")),
        "micro_auroc": float(roc_auc_score(wanted.ravel(), values.ravel())),
        "macro_average_precision": float(
            average_precision_score(wanted[:, differ], values[:, differ], average="macro")
        ),
    }


@dataclass(frozen=True)
class Thresholds:
    """A task's `tuned` of several labels: each has a probability above which it is predicted."""

    labels: Sequence[str]
    known: Mapping[str, float] | None = None
    """Those of a saved model; None chooses them."""

    @property
    def summary(self) -> dict[str, str]:
        """A line for the plan."""
        if self.known is not None:
            return {"thresholds": 'of the saved model, for the metrics that begin with "tuned_"'}
        return {
            "thresholds": 'of each label the one with the best F1, for the metrics that begin with "tuned_" (chosen on '
            "the evaluation data itself, these promise too much)"
        }

    def __call__(self, probabilities: Any, references: Any) -> Tuned:
        """Return the predictions that the thresholds make, and in `details` the thresholds by label.

        Both arguments have the shape (samples, labels).
        """
        values, wanted = np.asarray(probabilities, dtype=np.float64), zeros_and_ones(references)
        chosen = self.known
        if chosen is None:
            chosen = {label: best_threshold(values[:, at], wanted[:, at]) for at, label in enumerate(self.labels)}
        limits = np.array([chosen.get(label, HALF) for label in self.labels])
        return Tuned((values > limits).astype(np.int64), {"thresholds": dict(chosen)})


def best_threshold(probabilities: np.ndarray[Any, Any], references: np.ndarray[Any, Any]) -> float:
    """Return the threshold of one label with the highest F1; one half where no sample has the label, or a probability
    is not a number.

    Of several that are as good it is the one nearest to one half. It is the shortest decimal between the two
    probabilities that it parts, so that it does not depend on their last digits, which differ with the number of
    processes.
    """
    if not references.any() or not np.isfinite(probabilities).all():
        return HALF
    from sklearn.metrics import precision_recall_curve

    precision, recall, limits = precision_recall_curve(references, np.round(probabilities, DIGITS))
    both = precision + recall
    f1 = np.divide(2 * precision * recall, both, out=np.zeros_like(both), where=both > 0)[:-1]
    # A limit is the lowest probability that is predicted; the highest one that is not stands before it.
    below = np.concatenate([[0.0], limits[:-1]])
    best = np.flatnonzero(f1 >= f1.max() - 1e-12)
    found = [nearest_to_half(float(below[at]), float(limits[at])) for at in best]
    return sorted(found, key=lambda threshold: (abs(threshold - HALF), threshold))[0]


def nearest_to_half(low: float, high: float) -> float:
    """Return one half if it lies between two probabilities, or else the shortest decimal there, and of these the one
    nearest to their middle."""
    # Not if it equals the lower one: that is rounded, and what was rounded down to one half is above it.
    if low < HALF < high:
        return HALF
    for digits in range(1, DIGITS + 2):
        step = 10**digits
        inside = [number / step for number in {int(low * step) + 1, int((low + high) / 2 * step), int(high * step) - 1}]
        inside = sorted(number for number in inside if low < number < high)
        if inside:
            middle = (low + high) / 2
            return float(min(inside, key=lambda number: abs(number - middle)))
    return low
