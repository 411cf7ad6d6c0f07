"""How much of the evaluation data is in the training data too: what was trained on says nothing about new samples."""

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from time import monotonic
from typing import Any

import numpy as np

from toolkit.scoring import evenly
from toolkit.task import Source

MOST_TRAINING, MOST_EVALUATION = 100_000, 20_000
"""Samples that are looked at, spread over all of them, as far as the time allows."""
SECONDS = 2.0
"""All processes wait meanwhile. Evaluation samples come first, and take at most half of it."""
AT_ONCE = 1000
"""Samples that are fetched together, once it is known how long they take."""
LABELS = ("label", "labels", "score", "id", "name", "asked")
"""What a sample says beside what a model reads."""


@dataclass(frozen=True)
class Overlap:
    """Evaluation samples that are training samples too."""

    shared: int
    looked_at: int
    """Evaluation samples that were compared."""
    training: int
    """Training samples that they were compared with."""
    is_all: bool
    """Whether these are all samples of both."""

    @property
    def share(self) -> float:
        """Of the evaluation samples."""
        return self.shared / max(1, self.looked_at)

    def __str__(self) -> str:
        part = "" if self.is_all else f" with {self.training:,} training samples"
        return (
            f"{self.shared:,} of {self.looked_at:,} evaluation samples ({self.share:.1%}) are in the training data "
            f"too, as far as they were compared{part}: the metrics promise too much; take them out of one or the other"
        )


def overlap_of(train: Source, evaluate: Source) -> Overlap:
    """Compare samples by their content, labels left out."""
    began = monotonic()
    wanted = contents(evaluate, MOST_EVALUATION, began + SECONDS / 2)
    found = contents(train, MOST_TRAINING, began + SECONDS)
    seen = set(found) - {None}
    shared = sum(content in seen for content in wanted)
    return Overlap(shared, len(wanted), len(found), (len(wanted), len(found)) == (len(evaluate), len(train)))


def in_bisecting_order(count: int, most: int) -> np.ndarray[Any, Any]:
    """Return at most so many of the numbers below `count`, in an order of which each beginning is spread over all of them."""
    ids = np.array(sorted(evenly(np.arange(count), most)), dtype=np.int64)
    # Steps by the golden section fall into the largest gap; without a common divisor they come to every place once.
    step = max(1, round(len(ids) * (math.sqrt(5) - 1) / 2))
    while len(ids) and math.gcd(step, len(ids)) != 1:
        step += 1
    ordered: np.ndarray[Any, Any] = ids[np.arange(len(ids)) * step % max(1, len(ids))]
    return ordered


def contents(source: Source, most: int, until: float) -> list[bytes | None]:
    """Return what tells the content of samples apart, of as many as can be read in time; None for one that can't be compared.

    A source whose samples are dear to read may know it without reading them, and say it by a method `fingerprints(ids)`.

    Args:
        source: of the samples.
        most: at most so many samples, spread over all of them.
        until: when to stop, by the monotonic clock; some are read in any case.
    """
    ids, size, began = in_bisecting_order(len(source), most), 1, monotonic()
    found: list[bytes | None] = []
    known = getattr(source, "fingerprints", None)
    while len(found) < len(ids):
        some = np.sort(ids[len(found) : len(found) + size]).tolist()
        found += known(some) if known is not None else [content_of(sample) for sample in source.fetch(some)]
        now = monotonic()
        if now >= until:
            break
        # As many as the time that is left suffices for: of a slow source the last ones would take much longer than that.
        each = (now - began) / len(found)
        size = max(1, min(2 * size, AT_ONCE, int((until - now) / max(each, 1e-9))))
    return found


def content_of(sample: Any) -> bytes | None:
    """Return a hash of what a model reads of a sample, or None if there is nothing that is known here."""
    state = blake2b(digest_size=16)
    return state.digest() if add(state, sample) else None


def add(state: Any, value: Any) -> bool:
    """Add a value to a hash; return whether its kind is known here."""
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
                # Token ids, nearly always: in one go.
                state.update(array("q", value).tobytes())
            except (TypeError, OverflowError):
                return all(add(state, part) for part in value)
        case _:
            return False
    state.update(b",")
    return True
