"""Compare two ledgers: the first step at which each kind of number differs, and by how much."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from math import inf
from pathlib import Path
from typing import Any

from toolkit.verify.evidence import is_count, readable_rows

NOTABLE = 1e-6
"""A step is named if its relative difference is larger."""
EXACT = {"samples": ("fingerprint", "samples"), "units": ("units",), "skipped steps": ("skipped",)}
ROUNDED = {"losses": "loss", "gradient norms": "gradient_norm", "learning rates": "learning_rate"}
FRACTIONS = ("units",)
"""Fields of `EXACT` that may be fractions, which are rounded: units are a sum of weights where rows have one."""


@dataclass
class Divergence:
    """Where one kind of number differs, over the steps that both runs have."""

    first: int | None = None
    """The first step at which it differs at all."""
    notable: int | None = None
    """The first step at which it differs by more than `NOTABLE`, relatively."""
    largest: float = 0.0
    """The largest relative difference."""
    at: int | None = None
    """The step of the largest difference."""
    beyond: int | None = None
    """The first step at which it differs by more than rounding."""

    def add(self, step: int, difference: float, tolerance: float) -> None:
        """Add the relative difference at one step."""
        if not difference:
            return
        self.first = self.first or step
        if difference > NOTABLE:
            self.notable = self.notable or step
        if difference > tolerance:
            self.beyond = self.beyond or step
        if difference > self.largest:
            self.largest, self.at = difference, step

    def largest_text(self) -> str:
        """Return the largest difference, and where it is."""
        return "0" if self.first is None else f"{self.largest:.2g} at step {self.at:,}"

    def __str__(self) -> str:
        if self.first is None:
            return "the same at every step"
        if self.largest == inf:
            return f"differ first at step {self.first:,}"
        notable = "at no step" if self.notable is None else f"first at step {self.notable:,}"
        return (
            f"differ first at step {self.first:,}, by more than {NOTABLE:g} {notable}; the most at step {self.at:,}, "
            f"by {self.largest:.2g}"
        )


class LedgerComparison:
    """Two ledgers, compared step by step."""

    def __init__(self, first: Path, second: Path, tolerance: float, last: int | None) -> None:
        self.tolerance = tolerance
        self.ends = [0, 0]
        """The last step of each."""
        self.common = 0
        """The number of steps that both have."""
        self.last_common = 0
        self.divergences = {name: Divergence() for name in (*EXACT, *ROUNDED)}
        self.evaluations: list[tuple[int, Mapping[str, float]]] = [(0, {}), (0, {})]
        """Step and metrics of the last evaluation of each."""
        left, right = self.ascending_rows(0, first), self.ascending_rows(1, second)
        a, b = next(left, None), next(right, None)
        while a is not None and b is not None:
            if a[0] == b[0] <= (inf if last is None else last):
                self.add(a[0], a[1], b[1])
            a_is_ahead, b_is_ahead = a[0] > b[0], b[0] > a[0]
            a = a if a_is_ahead else next(left, None)
            b = b if b_is_ahead else next(right, None)
        # The rows that only one of them has still say where it ends.
        for _ in chain(left, right):
            pass

    def ascending_rows(self, number: int, path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the rows of one ledger whose steps ascend; `toolkit verify` reports the others."""
        for row in readable_rows(path):
            step = row.get("step")
            if not is_count(step) or step <= self.ends[number]:
                continue
            self.ends[number] = step
            if isinstance(row.get("evaluation"), Mapping):
                self.evaluations[number] = (step, row["evaluation"])
            yield step, row

    def add(self, step: int, a: Mapping[str, Any], b: Mapping[str, Any]) -> None:
        """Compare the two rows of one step."""
        self.common += 1
        self.last_common = step
        for name, fields in EXACT.items():
            difference = max(exact_difference(field, a.get(field), b.get(field)) for field in fields)
            self.divergences[name].add(step, difference, self.tolerance)
        for name, field in ROUNDED.items():
            self.divergences[name].add(step, relative_difference(a.get(field), b.get(field)), self.tolerance)


def exact_difference(field: str, a: Any, b: Any) -> float:
    """Return 0 for equal values and infinity for others; of `FRACTIONS` the relative difference."""
    if field in FRACTIONS and (isinstance(a, float) or isinstance(b, float)):
        return relative_difference(a, b)
    return 0.0 if a == b else inf


def relative_difference(a: Any, b: Any) -> float:
    """Return |a - b| / max(|a|, |b|): 0 for equal values, infinity if one is no number."""
    if a == b:
        return 0.0
    if not isinstance(a, int | float) or not isinstance(b, int | float):
        return inf
    return float(abs(a - b) / max(abs(a), abs(b)))
