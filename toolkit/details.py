"""What a reader wants to know of the predictions of an evaluation beside its metrics, for a task to name: see
`Task.details` and `Task.quality`. report.html draws each of them."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from toolkit.task import Quality

Array = np.ndarray[Any, Any]
Scores = Mapping[str, float] | None
Details = Callable[[Any, Any], Mapping[str, Any]]


def class_details(labels: Sequence[str]) -> Details:
    """Return a task's `details` for classes: which one is taken for which."""

    def details(predictions: Any, references: Any) -> Mapping[str, Any]:
        return {"confusion": confusion(labels, np.asarray(predictions), np.asarray(references))}

    return details


def confusion(labels: Sequence[str], predicted: Array, wanted: Array) -> dict[str, Any]:
    """Return a confusion matrix without its zeros: of each pair that occurs the label, what it was taken for, and how
    often; both are numbers in `labels`."""
    pairs, counts = np.unique(np.stack([wanted, predicted]).astype(np.int64), axis=1, return_counts=True)
    return {"labels": list(labels), "counts": np.vstack([pairs, counts]).T.tolist()}


def label_details(labels: Sequence[str]) -> Details:
    """Return a task's `details` for several labels each: how often each was found, missed, and given wrongly."""

    def details(predictions: Any, references: Any) -> Mapping[str, Any]:
        given, right = np.asarray(predictions) > 0, np.asarray(references) > 0
        columns = {"found": given & right, "missed": ~given & right, "wrong": given & ~right}
        counts = {name: values.sum(axis=0).tolist() for name, values in columns.items()}
        return {
            "labels": [
                dict(zip(("label", *counts), row, strict=True)) for row in zip(labels, *counts.values(), strict=True)
            ]
        }

    return details


POINTS = 500
"""Of so many predicted numbers the report shows a point each."""


def number_details(predictions: Any, references: Any) -> Mapping[str, Any]:
    """Return the details of predicted numbers: some of them with their references, evenly spread."""
    given, wanted = (np.asarray(side, dtype=np.float64).ravel() for side in (predictions, references))
    places = np.linspace(0, len(given) - 1, min(POINTS, len(given))).round().astype(np.int64)
    return {"points": [[finite(wanted[place]), finite(given[place])] for place in places]}


def finite(value: float) -> float | None:
    """Return a number as JSON can hold it."""
    return float(value) if np.isfinite(value) else None


def right_class(labels: Sequence[str]) -> Quality:
    """Return how good a predicted class is: the probability of the right one, 0 where it is not among those kept."""
    return Quality(
        "probability of the right class",
        lambda prediction, reference, scores: (scores or {}).get(labels[int(reference)], 0.0),
    )


def share_right(prediction: Sequence[Any], reference: Sequence[Any], scores: Scores) -> float:
    """Return the share of the parts of a sample, such as words or labels, that are right."""
    return float(np.mean(np.asarray(prediction, dtype=object) == np.asarray(reference, dtype=object)))


RIGHT_WORDS = Quality("share of words with the right tag", share_right)
RIGHT_LABELS = Quality("share of labels that are right", share_right)
CLOSE = Quality(
    "minus the distance from the right number",
    lambda prediction, reference, scores: -abs(float(prediction - reference)),
)


def words_in_common(prediction: str, reference: str | Sequence[str], scores: Scores) -> float:
    """Return the F1 of the words of a text and of the reference that is nearest, each counted as often as it occurs."""
    given = Counter(prediction.lower().split())
    best = 0.0
    for text in [reference] if isinstance(reference, str) else reference:
        wanted = Counter(text.lower().split())
        count = given.total() + wanted.total()
        best = max(best, 2 * (given & wanted).total() / count if count else 1.0)
    return best


COMMON_WORDS = Quality("F1 of the words", words_in_common)
MARGIN = Quality(
    "reward of the chosen side, less that of the other",
    lambda prediction, reference, scores: float(prediction[0] - prediction[1]),
)
