"""Curves of a run, short enough for a page: a hundred thousand steps become some hundred points, and no extreme is
lost."""

from dataclasses import dataclass

import numpy as np

from toolkit.report.saved import Array, SavedRun

POINTS = 300
"""Of a curve: more than a chart has pixels to show apart."""


@dataclass(frozen=True)
class Curve:
    """What became of one number, in so many buckets of neighbouring steps; each array has the shape (buckets,)."""

    steps: Array
    """The last step of each bucket."""
    means: Array
    lowest: Array
    highest: Array

    def __len__(self) -> int:
        return len(self.steps)

    def is_exact(self) -> bool:
        """Return whether each bucket is one step."""
        return bool((self.lowest == self.highest).all())


def curve(steps: Array, values: Array, weights: Array | None = None) -> Curve:
    """Return the curve of some values; those that are no number are left out.

    Args:
        steps: of each value, ascending: shape (rows,).
        values: shape (rows,).
        weights: by which values are averaged, such as the seconds for a rate; all alike without.
    """
    known = np.isfinite(values) if weights is None else np.isfinite(values) & (weights > 0)
    steps, values = steps[known], values[known]
    weights = np.ones(len(values)) if weights is None else weights[known]
    if not len(steps):
        empty = np.empty(0)
        return Curve(empty, empty, empty, empty)
    starts = np.unique(np.linspace(0, len(steps), min(POINTS, len(steps)) + 1).astype(np.int64)[:-1])
    ends = np.append(starts[1:], len(steps))
    means = np.add.reduceat(values * weights, starts) / np.add.reduceat(weights, starts)
    return Curve(steps[ends - 1], means, np.minimum.reduceat(values, starts), np.maximum.reduceat(values, starts))


def curves_of(run: SavedRun) -> dict[str, Curve]:
    """Return the curves of a run by their name on the page; one without a single number is left out."""
    of, steps = run.columns, run.steps
    seconds = of["seconds"]
    with np.errstate(divide="ignore", invalid="ignore"):
        found = {
            "loss": curve(steps, of["loss"]),
            "learning rate": curve(steps, of["learning_rate"]),
            "gradient norm": curve(steps, of["gradient_norm"]),
            "samples/s": curve(steps, of["samples"] / seconds, seconds),
            "tokens/s": curve(steps, of["tokens"] / seconds, seconds),
            "padding": curve(steps, of["padding"]),
            "waiting for data": curve(steps, of["waiting"] / seconds, seconds),
            "host memory (GB)": curve(steps, of["host_memory"]),
            "device memory (GB)": curve(steps, of["device_memory"]),
        }
    return {name: one for name, one in found.items() if len(one)}


def thinned(run: SavedRun) -> list[int]:
    """Return the steps of the evaluations that are drawn: all of a usual run, some of one with very many."""
    steps = sorted(run.evaluations)
    places = np.unique(np.linspace(0, len(steps) - 1, min(POINTS, len(steps))).round().astype(np.int64))
    return [steps[place] for place in places] if steps else []
