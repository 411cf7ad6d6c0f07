"""The metrics of predictions and references, of all samples and of each group of them."""

import math
import warnings
from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from toolkit.errors import UserError
from toolkit.metrics import TUNED, Undefined, name_of, takes_probabilities
from toolkit.task import Metric, Task

LOSS = "loss"
"""The name of the score that is there without a metric."""
NOT_FINITE = "the numbers that the model predicts are not finite"


def joined(batches: Sequence[Any]) -> Any:
    """Return the parts of batches one behind the other: an array if all are arrays of one shape, or else a list."""
    arrays = [batch for batch in batches if isinstance(batch, np.ndarray)]
    if len(arrays) == len(batches) and len({array.shape[1:] for array in arrays}) == 1:
        return np.concatenate(arrays)
    return list(chain.from_iterable(batches))


def part_of(values: Any, places: Sequence[int]) -> Any:
    """Return some of the values of all samples."""
    return values[np.asarray(places)] if isinstance(values, np.ndarray) else [values[place] for place in places]


def needs_probabilities(task: Task) -> bool:
    """Return whether something is made of the probabilities of all samples."""
    return task.probabilities is not None and (task.tuned is not None or any(map(takes_probabilities, task.metrics)))


def scores_of(
    metrics: Sequence[Metric],
    predictions: Any,
    references: Any,
    taken: Collection[str] = (LOSS,),
    probabilities: Any = None,
) -> dict[str, float]:
    """Return the scores of all metrics by name; `taken` are the names of other scores.

    Metrics that take `probabilities` are left out where there are none.

    Raises:
        UserError: a metric returns no mapping, or no number, or a name that is taken: one number would hide the other.
    """
    scores: dict[str, float] = {}
    for metric in metrics:
        given = probabilities if takes_probabilities(metric) else predictions
        if given is None:
            continue
        with warnings.catch_warnings():
            # scikit-learn's words for what a score of 0, or none, says already.
            warnings.filterwarnings("ignore", category=UserWarning, module="sklearn")
            own, called = returned_by(metric, given, references), name_of(metric)
        if not isinstance(own, Mapping):
            raise UserError(
                f"the metric {called} returned a {type(own).__name__}; it has to return a mapping of names to numbers"
            )
        if twice := [name for name in own if name in scores or name in taken]:
            raise UserError(
                f"the metric {called} returns {', '.join(map(repr, twice))}, which the loss or another metric of the "
                "task is called; give it another name"
            )
        scores |= {name: as_number(value, name, called) for name, value in own.items()}
    return scores


def as_number(value: Any, name: str, metric: str) -> float:
    """Return a score as a float.

    Raises:
        UserError: it is no number.
    """
    if isinstance(value, Undefined):
        return value
    try:
        return float(value)
    except (TypeError, ValueError):
        raise UserError(
            f"the metric {metric} returns a {type(value).__name__} as {name!r}; it has to be a number (of several, "
            "return each under a name of its own)"
        ) from None


def returned_by(metric: Metric, given: Any, references: Any) -> Any:
    """Return what a metric returns; of numbers that are not finite, its scores without a value are undefined.

    A metric may know what to do with such numbers. scikit-learn's refuse them, with a `ValueError`.
    """
    if not isinstance(given, np.ndarray) or given.dtype.kind != "f" or np.isfinite(given).all():
        return metric(given, references)
    found: Any
    try:
        with np.errstate(all="ignore"):
            found = metric(given, references)
    except ValueError:
        # What its scores are called does not depend on the numbers.
        found = dict.fromkeys(metric(np.ones_like(given), references), math.nan)
    if not isinstance(found, Mapping):
        return found
    return {name: Undefined(NOT_FINITE) if value != value else value for name, value in found.items()}


class Sides(NamedTuple):
    """What metrics take of some samples; each side has one entry per sample, or per item."""

    predictions: Any
    references: Any
    probabilities: Any = None
    tuned: Any = None
    """The predictions of `Task.tuned`."""

    def part(self, places: Sequence[int]) -> "Sides":
        """Return the sides of some samples."""
        return Sides(*(None if side is None else part_of(side, places) for side in self))

    def scores(self, metrics: Sequence[Metric], taken: Collection[str] = (LOSS,)) -> dict[str, float]:
        """Return the scores of all metrics by name, those of tuned predictions behind them; see `scores_of`."""
        scores = scores_of(metrics, self.predictions, self.references, taken, self.probabilities)
        if self.tuned is None:
            return scores
        tuned = scores_of(metrics, self.tuned, self.references, taken)
        return scores | {f"{TUNED}{name}": value for name, value in tuned.items()}

    def scores_of_groups(
        self, metrics: Sequence[Metric], groups: Mapping[str, Sequence[int]], losses: Mapping[str, float]
    ) -> dict[str, float]:
        """Return the scores of each group, such as "hard/accuracy", its loss before them where that is known.

        `groups` are the places of the samples of each.
        """
        found: dict[str, float] = {}
        for group, places in groups.items():
            loss = {LOSS: losses[group]} if group in losses else {}
            own = loss | self.part(places).scores(metrics)
            found |= {f"{group}/{name}": value for name, value in own.items()}
        return found
