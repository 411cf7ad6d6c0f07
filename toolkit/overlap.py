"""How much of the evaluation data is in the training data too: what was trained on says nothing about new samples."""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np

from toolkit.task import Source

MOST_TRAINING, MOST_EVALUATION = 100_000, 20_000
"""Samples that are looked at, spread over all of them: about two seconds at the most."""
AT_ONCE = 1000
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
    first, second = spread(len(evaluate), MOST_EVALUATION), spread(len(train), MOST_TRAINING)
    wanted = list(contents(evaluate, first))
    seen = set(contents(train, second)) - {None}
    shared = sum(content in seen for content in wanted)
    return Overlap(shared, len(first), len(second), len(first) == len(evaluate) and len(second) == len(train))


def spread(count: int, most: int) -> np.ndarray[Any, Any]:
    """Return at most so many of the numbers below `count`, evenly spread."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.int64))


def contents(source: Source, ids: np.ndarray[Any, Any]) -> Iterator[bytes | None]:
    """Yield what tells the content of samples apart; None for one that can't be compared.

    A source whose samples are dear to read may know it without reading them, and say it by a method `fingerprints(ids)`.
    """
    for start in range(0, len(ids), AT_ONCE):
        some = ids[start : start + AT_ONCE].tolist()
        known = getattr(source, "fingerprints", None)
        if known is not None:
            yield from known(some)
        else:
            yield from (content_of(sample) for sample in source.fetch(some))


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
