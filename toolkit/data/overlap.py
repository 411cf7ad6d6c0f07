"""How many evaluation samples are in the training data too: metrics of such samples say nothing about new ones."""

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from time import monotonic
from typing import Any

import numpy as np

from toolkit.task import Source

MAX_TRAINING, MAX_EVALUATION = 100_000, 20_000
"""Samples that are compared, spread over all of them, as far as the time allows."""
SECONDS = 2.0
"""All processes wait during this time. Evaluation samples come first, and take at most half of it."""
READ_AT_ONCE = 1000
"""Samples that are read together, once it is known how long they take."""
LABELS = ("label", "labels", "score", "id", "row", "identities", "name", "asked")
"""Parts of a sample that a model does not read."""


@dataclass(frozen=True)
class Overlap:
    """The evaluation samples that are training samples too."""

    shared: int
    compared: int
    """Evaluation samples that were compared."""
    training: int
    """Training samples that they were compared with."""
    is_all: bool
    """Whether these are all samples of both."""

    @property
    def share(self) -> float:
        """The share of the evaluation samples."""
        return self.shared / max(1, self.compared)

    def __str__(self) -> str:
        part = "" if self.is_all else f" with {self.training:,} training samples"
        return (
            f"{self.shared:,} of {self.compared:,} evaluation samples ({self.share:.1%}) are in the training data "
            f"too, as far as they were compared{part}: the metrics promise too much; take them out of one or the other"
        )


def overlap_of(train: Source, evaluate: Source) -> Overlap:
    """Compare samples by their content, without labels."""
    began = monotonic()
    wanted = fingerprints(evaluate, MAX_EVALUATION, began + SECONDS / 2)
    found = fingerprints(train, MAX_TRAINING, began + SECONDS)
    seen = set(found) - {None}
    shared = sum(fingerprint in seen for fingerprint in wanted)
    return Overlap(shared, len(wanted), len(found), (len(wanted), len(found)) == (len(evaluate), len(train)))


def in_bisecting_order(count: int, limit: int) -> np.ndarray[Any, Any]:
    """Return at most `limit` of the numbers below `count`, in an order whose every beginning is spread over all."""
    ids = np.linspace(0, count - 1, min(limit, count)).round().astype(np.int64)
    # Steps by the golden section fall into the largest gap; without a common divisor they visit every place once.
    step = max(1, round(len(ids) * (math.sqrt(5) - 1) / 2))
    while len(ids) and math.gcd(step, len(ids)) != 1:
        step += 1
    ordered: np.ndarray[Any, Any] = ids[np.arange(len(ids)) * step % max(1, len(ids))]
    return ordered


def fingerprints(source: Source, limit: int, until: float) -> list[bytes | None]:
    """Return the fingerprints of as many samples as can be read in time; None for one that can't be compared.

    A source whose samples are slow to read may know them without reading, and return them from a method
    `fingerprints(ids)`.

    Args:
        source: of the samples.
        limit: at most so many samples, spread over all of them.
        until: when to stop, by the monotonic clock; some samples are read in any case.
    """
    ids, size, began = in_bisecting_order(len(source), limit), 1, monotonic()
    found: list[bytes | None] = []
    known = getattr(source, "fingerprints", None)
    while len(found) < len(ids):
        some = np.sort(ids[len(found) : len(found) + size]).tolist()
        found += known(some) if known is not None else [fingerprint_of(sample) for sample in source.fetch(some)]
        now = monotonic()
        if now >= until:
            break
        # No more than the time that is left allows: from a slow source, the last samples would take much longer.
        each = (now - began) / len(found)
        size = max(1, min(2 * size, READ_AT_ONCE, int((until - now) / max(each, 1e-9))))
    return found


def fingerprint_of(sample: Any) -> bytes | None:
    """Return a hash of what a model reads of a sample, or None if it holds a value of an unknown kind."""
    state = blake2b(digest_size=16)
    return state.digest() if add(state, sample) else None


def add(state: Any, value: Any) -> bool:
    """Add a value to a hash; return whether its kind is known."""
    match value:
        case Mapping():
            names = sorted((name for name in value if name not in LABELS), key=str)
            state.update(repr(names).encode("utf-8", "backslashreplace"))
            return bool(names) and all(add(state, value[name]) for name in names)
        case str() | bytes() | bool() | int() | float() | np.generic() | None:
            state.update(repr(value).encode("utf-8", "backslashreplace"))
        case np.ndarray():
            state.update(repr((value.shape, str(value.dtype))).encode())
            state.update(np.ascontiguousarray(value).tobytes())
        case Sequence():
            state.update(f"{len(value)}[".encode())
            try:
                # Nearly always token ids, which are added together.
                state.update(array("q", value).tobytes())
            except (TypeError, OverflowError):
                return all(add(state, entry) for entry in value)
        case _:
            return False
    state.update(b",")
    return True
