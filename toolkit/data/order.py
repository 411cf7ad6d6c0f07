"""Which samples form which global batch: a pure function of (seed, epoch, step), which knows nothing of processes.

The shuffle is a keyed permutation that is computed, not stored: any position of any epoch costs the same to reach, and
memory does not grow with the number of samples. Numpy only.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import isqrt
from typing import Any, Protocol

import numpy as np

from toolkit.randomness import seed_for

Ids = np.ndarray[Any, np.dtype[np.int64]]

# Rounds of the permutation. From 16 on, all permutations of a handful of elements come out equally often, which is the
# hardest case (tests/data/test_order.py counts them); 24 leaves a margin and costs 2 ms for 8,192 positions.
ROUNDS = 24
# Of `mix64`; to make them of Python's numbers at each call would take as long as the arithmetic on a small batch.
GAMMA = np.uint64(0x9E3779B97F4A7C15)
SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))
FACTORS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
# The batches of many steps are computed at once: the permutation of 16 positions takes 180 us, of 4,096 less than 800.
POSITIONS_AT_ONCE = 4096


class Order(Protocol):
    """Which samples form which global batch: for training a shuffle, for evaluation the longest first."""

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps in one pass over the samples."""

    def global_batches(self, first: int, end: int) -> Iterator[Ids]:
        """Yield the sample ids of each optimizer step from `first` up to `end`, counted from 0 over all epochs."""


@dataclass(frozen=True)
class ShuffledOrder:
    """Every sample once per epoch, in an order drawn from (seed, epoch); the last global batch of an epoch may be
    smaller."""

    samples: int
    batch_size: int
    seed: int

    @cached_property
    def steps_per_epoch(self) -> int:
        """Optimizer steps in one pass over the samples."""
        return -(-self.samples // self.batch_size)

    def global_batch(self, step: int, steps: int = 1) -> Ids:
        """Return the sample ids of one optimizer step, counted from 0 over all epochs, or of so many steps of one
        epoch, one after another. Time and memory: these alone."""
        epoch, index = divmod(step, self.steps_per_epoch)
        start = index * self.batch_size
        positions = np.arange(start, min(start + steps * self.batch_size, self.samples), dtype=np.int64)
        return permute(positions, self.samples, seed_for(self.seed, "order", epoch))

    def global_batches(self, first: int, end: int) -> Iterator[Ids]:
        """Yield what `global_batch` returns for each step from `first` up to `end`; many are computed at once."""
        most = max(1, POSITIONS_AT_ONCE // self.batch_size)
        step = first
        while step < end:
            steps = min(most, end - step, self.steps_per_epoch - step % self.steps_per_epoch)
            ids = self.global_batch(step, steps)
            for start in range(0, len(ids), self.batch_size):
                yield ids[start : start + self.batch_size]
            step += steps


def permute(positions: Ids, size: int, key: int) -> Ids:
    """Return where a keyed permutation of range(size) sends these positions.

    An alternating Feistel network: the position is written as two digits (left, right) on a grid of about sqrt(size) x
    sqrt(size), and each round adds to one digit a hash of the other, which can be undone, so that the whole is a
    permutation of the grid. A result beyond `size` is sent through again (cycle walking; the grid is larger than `size`
    by less than one row, so that this is rare). Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002.
    """
    if size < 1:
        raise ValueError(f"a permutation of {size} elements does not exist")
    columns = isqrt(size - 1) + 1
    rows = -(-size // columns)
    keys = mix64(np.arange(ROUNDS, dtype=np.uint64) + np.uint64(key % 2**64))
    result = np.array(positions, dtype=np.uint64)
    pending = np.arange(len(result))
    while len(pending):
        left, right = np.divmod(result[pending], np.uint64(columns))
        for number, round_key in enumerate(keys):
            if number % 2 == 0:
                left = (left + mix64(right ^ round_key)) % np.uint64(rows)
            else:
                right = (right + mix64(left ^ round_key)) % np.uint64(columns)
        result[pending] = left * np.uint64(columns) + right
        pending = pending[result[pending] >= size]
    return result.astype(np.int64)


def mix64(values: np.ndarray[Any, np.dtype[np.uint64]]) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Hash 64-bit integers to 64-bit integers, one to one: the output function of SplitMix64 (Steele et al., 2014)."""
    mixed = values + GAMMA
    mixed = (mixed ^ (mixed >> SHIFTS[0])) * FACTORS[0]
    mixed = (mixed ^ (mixed >> SHIFTS[1])) * FACTORS[1]
    return np.asarray(mixed ^ (mixed >> SHIFTS[2]), dtype=np.uint64)


def fingerprint(ids: Ids) -> int:
    """Return a 64-bit sum of hashes of sample ids: the same for any order and any cut, another one if an id is
    missing."""
    return int(mix64(np.asarray(ids, dtype=np.uint64)).sum(dtype=np.uint64))


def fingerprints_of(ids: Ids, starts: Ids) -> list[int]:
    """Return the fingerprint of each run of ids, given where the runs start; none is empty."""
    sums: list[int] = np.add.reduceat(mix64(np.asarray(ids, dtype=np.uint64)), starts).tolist()
    return sums
