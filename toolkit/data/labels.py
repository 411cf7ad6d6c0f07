"""Labels as a model needs them: ids of names, or numbers."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

Kind = Literal["single", "multi", "regression"]
Array = np.ndarray[Any, np.dtype[Any]]

UNKNOWN = -1
"""The code of a label that is missing or has no id."""


@dataclass(frozen=True)
class Labels:
    """The labels of some rows: row i has `values[starts[i]:starts[i + 1]]`, one value unless `kind` is multi."""

    kind: Kind
    names: list[str]
    """Names of the codes; empty for regression."""
    values: Array
    """int64 codes, or float64 numbers for regression."""
    starts: Array
    empty: Array
    """Which rows have no label (bool)."""
    unreadable: Array
    """Which rows have a label that is not a finite number, where numbers are needed (bool)."""
    in_order: bool = False
    """Whether the data itself gave the names their order."""
    vectors: bool = False
    """Whether they came as 0/1 vectors over all labels."""

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def content(self) -> tuple[Kind, list[str], Array, Array]:
        """Everything that a hash of the labels has to know."""
        return self.kind, self.names, self.values, self.starts

    def take(self, rows: Array) -> "Labels":
        """Return the labels of these rows, in this order."""
        counts = np.diff(self.starts)[rows]
        starts = starts_of(counts)
        values = self.values[np.repeat(self.starts[rows] - starts[:-1], counts) + np.arange(starts[-1])]
        return Labels(
            self.kind, self.names, values, starts, self.empty[rows], self.unreadable[rows], self.in_order, self.vectors
        )

    def renamed(self, names: Sequence[str]) -> "Labels":
        """Return the same labels as codes of other names; a label that is not among them becomes UNKNOWN."""
        ids = {name: number for number, name in enumerate(names)}
        table = np.array([*(ids.get(name, UNKNOWN) for name in self.names), UNKNOWN], dtype=np.int64)
        return Labels(self.kind, list(names), table[self.values], self.starts, self.empty, self.unreadable, True)

    def counts(self) -> Array:
        """Return how many rows carry each label."""
        return np.bincount(self.values[self.values >= 0], minlength=len(self.names))

    def target(self, row: int) -> int | float | list[float]:
        """Return what the model is to predict for a row: an id, a number, or a 0/1 vector over all labels."""
        values = self.values[self.starts[row] : self.starts[row + 1]]
        if self.kind != "multi":
            return values[0].item()  # type: ignore[no-any-return]
        vector = [0.0] * len(self.names)
        for value in values.tolist():
            vector[value] = 1.0
        return vector

    def targets(self, rows: Array) -> list[int | float | list[float]]:
        """Return the target of each of these rows."""
        return [self.target(row) for row in rows.tolist()]


def ordered(names: Sequence[str]) -> list[str]:
    """Return label names sorted, by value where all of them are whole numbers."""
    if all(re.fullmatch(r"-?\d+", name) for name in names):
        return sorted(names, key=lambda name: (int(name), name))
    return sorted(names)


def starts_of(counts: Array) -> Array:
    """Return where each row begins, and at last where all end, if row i has `counts[i]` entries."""
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts, dtype=np.int64)])
