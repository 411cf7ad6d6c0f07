"""How good single predictions of an evaluation are: the worst and the best for a reader, and quality by length."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from toolkit.details import finite
from toolkit.task import Task

EXTREMES = 5
"""So many of the worst predictions are shown, and as many of the best."""
BARS = 20
"""Of the histogram of all qualities."""
LENGTHS = 10
"""Groups of about the same size, by length."""

Array = np.ndarray[Any, Any]


def quality_of(
    task: Task,
    predictions: Sequence[Any] | Array,
    references: Sequence[Any] | Array,
    values: Sequence[float],
    numbers: Sequence[int],
    samples: Sequence[int] | None,
    show: Callable[[int, Any, Any], dict[str, Any]] | None,
) -> dict[str, Any]:
    """Return what evaluation.json keeps of the quality of all predictions: plain values, which JSON can hold.

    Args:
        task: it has a `quality`.
        predictions: one per sample, or per item that the task made of them.
        references: what they are held against.
        values: how good each of them is; not-a-number counts as worse than all others.
        numbers: what `show` calls each of them.
        samples: the sample that each is of; None where it is of no single one.
        show: returns what a reader sees of one of them.
    """
    assert task.quality is not None
    qualities = np.asarray(values, dtype=np.float64)
    known = np.isfinite(qualities)
    if not known.any():
        return {}
    order = np.lexsort((np.asarray(numbers), np.where(known, qualities, -np.inf)))

    def shown(places: Array) -> list[dict[str, Any]]:
        assert show is not None
        return [
            {**show(numbers[place], predictions[place], references[place]), "quality": finite(qualities[place])}
            for place in places.tolist()
        ]

    counts, edges = np.histogram(qualities[known], BARS)
    found: dict[str, Any] = {
        "name": task.quality.name,
        "mean": float(qualities[known].mean()),
        "histogram": {"edges": edges.tolist(), "counts": counts.tolist()},
    }
    if samples is not None and task.data.evaluate is not None:
        lengths = task.data.evaluate.lengths(np.asarray(samples, dtype=np.int64))
        found["by_length"] = [] if lengths is None else by_length(lengths[known], qualities[known])
    if show is not None:
        most = min(EXTREMES, len(order) // 2)
        found |= {"worst": shown(order[:most]), "best": shown(order[::-1][:most])}
    return found


def by_length(lengths: Array, qualities: Array) -> list[dict[str, float]]:
    """Return the mean quality of the shortest samples, of the next longer ones, and so on: samples of one length are
    never in two groups."""
    order = np.argsort(lengths, kind="stable")
    lengths, qualities = lengths[order], qualities[order]
    if len(lengths) == 0 or lengths[0] == lengths[-1]:
        return []
    places = np.linspace(0, len(lengths), LENGTHS + 1).astype(np.int64)[1:-1]
    # Each group begins where a length does.
    starts = np.unique([0, *np.searchsorted(lengths, lengths[places])])
    return [
        {
            "from": int(lengths[start]),
            "to": int(lengths[end - 1]),
            "samples": int(end - start),
            "mean": float(qualities[start:end].mean()),
        }
        for start, end in zip(starts, [*starts[1:], len(lengths)], strict=True)
    ]
