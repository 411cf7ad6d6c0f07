"""How a global batch is cut into micro-batches: a detail of execution, which changes the speed and never the result."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from toolkit.data.order import Ids

Lengths = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class MicroBatch:
    """What one process runs through the model at once."""

    step: int
    """The optimizer step, counted from 0."""
    accumulation: int
    """How many micro-batches every process runs in this step."""
    ids: tuple[int, ...]
    """The samples."""
    dummy: bool = False
    """A copy that stands in where there are fewer samples than micro-batches; its loss and units do not count."""
    padded: int = 0
    """Elements after padding, the number of samples times the longest; 0 where lengths are unknown."""
    used: int = 0
    """Elements before padding; 0 where lengths are unknown."""
    padded_squared: int = 0
    """Pairs of elements of one sample, after padding; 0 where lengths are unknown."""
    used_squared: int = 0
    """Pairs of elements of one sample, before padding; 0 where lengths are unknown."""


def accumulation(samples: int, processes: int, micro: int | None) -> int:
    """Return the fewest micro-batches in which each process can run its share of `samples`, at most `micro` in each."""
    return 1 if micro is None else -(-samples // (processes * micro))


def cut(
    step: int, ids: Ids, lengths: Lengths | None, processes: int, micro: int | None, call_cost: int | None = None
) -> list[MicroBatch]:
    """Cut one global batch into accumulation x processes micro-batches.

    Args:
        step: the optimizer step, counted from 0.
        ids: the samples of the global batch, shape (samples,).
        lengths: their lengths, same shape; None leaves the samples in the order of `ids`, in even parts.
        processes: the data-parallel size.
        micro: the most samples in one micro-batch; None for no limit.
        call_cost: what one more pass through the model costs beside its elements, in elements: the global batch is cut
            finer than `micro` demands where the padding that is saved outweighs it. None never does.

    Returns:
        The micro-batches in dealing order: first one for each process, then the second of each, and so on.
    """
    rounds = accumulation(len(ids), processes, micro)
    if lengths is None and rounds * processes == 1:
        return [MicroBatch(step, rounds, tuple(ids.tolist()))]
    if lengths is None:
        parts = min(rounds * processes, len(ids))
        chunks = np.array_split(np.arange(len(ids)), parts)
    else:
        longest_first = np.lexsort((ids, -lengths))
        ordered, most = lengths[longest_first].tolist(), micro or len(ids)
        rounds, sizes = cheapest_cut(ordered, processes, rounds, most, call_cost)
        parts = len(sizes)
        chunks = np.split(longest_first, np.cumsum(sizes)[:-1])
    micro_batches = []
    for chunk in chunks:
        plan, count = MicroBatch(step, rounds, tuple(ids[chunk].tolist())), len(chunk)
        if lengths is not None:
            own = lengths[chunk]
            longest, used = int(own.max()), int(own.sum())
            squared = int((own * own).sum())
            plan = replace(
                plan, padded=longest * count, used=used, padded_squared=longest**2 * count, used_squared=squared
            )
        micro_batches.append(plan)
    # The cheapest is copied where one is missing.
    micro_batches.sort(key=lambda batch: -batch.padded)
    dummy = MicroBatch(step, rounds, micro_batches[-1].ids[:1], dummy=True)
    micro_batches += [dummy] * (rounds * processes - parts)
    # Every other round is dealt backwards, so that no process gets the costliest of each.
    dealt = []
    for number in range(rounds):
        one_each = micro_batches[number * processes : (number + 1) * processes]
        dealt += one_each if number % 2 == 0 else one_each[::-1]
    return dealt


def cheapest_cut(
    longest_first: list[int], processes: int, fewest: int, most: int, call_cost: int | None
) -> tuple[int, list[int]]:
    """Return how many micro-batches each process runs, at least `fewest`, and the sizes of all of them.

    One process's cost is taken as its number of micro-batches times (the costliest micro-batch + the cost of a call).
    The number is doubled as long as that falls.
    """

    def attempt(rounds: int) -> tuple[float, list[int]]:
        sizes = balanced_sizes(longest_first, min(rounds * processes, len(longest_first)), most)
        starts = np.cumsum([0, *sizes[:-1]]).tolist()
        costliest = max(size * longest_first[start] for size, start in zip(sizes, starts, strict=True))
        return rounds * (costliest + (call_cost or 0)), sizes

    rounds, (cost, sizes) = fewest, attempt(fewest)
    while call_cost is not None and 2 * rounds * processes <= len(longest_first):
        finer_cost, finer = attempt(2 * rounds)
        if finer_cost >= cost:
            break
        rounds, cost, sizes = 2 * rounds, finer_cost, finer
    return rounds, sizes


def balanced_sizes(longest_first: list[int], parts: int, most: int) -> list[int]:
    """Return the sizes of `parts` consecutive runs of samples, at most `most` each, whose padded cost is as even as it
    gets.

    The cost of a run is its number of samples times its longest. The smallest bound on the cost of a run under which
    `parts` runs are enough is found by bisection, to 1%.
    """
    if parts == len(longest_first):
        return [1] * parts
    low = sum(longest_first) // parts
    high = longest_first[0] * most
    sizes = sizes_within(high, longest_first, parts, most)
    while high - low > max(1, high // 100):
        middle = (low + high) // 2
        attempt = sizes_within(middle, longest_first, parts, most)
        if attempt is None:
            low = middle
        else:
            high, sizes = middle, attempt
    assert sizes is not None, "the accumulation leaves room for every sample"
    return sizes


def sizes_within(bound: int, longest_first: list[int], parts: int, most: int) -> list[int] | None:
    """Return sizes of `parts` runs, none empty, of which none costs more than `bound` or is larger than `most`; None if
    there are none."""
    sizes = []
    start, total = 0, len(longest_first)
    for left in range(parts, 0, -1):
        length = longest_first[start]
        # At least one sample must remain for every run that follows.
        size = min(most, bound // length if length else most, total - start - (left - 1))
        if size < 1:
            return None
        sizes.append(size)
        start += size
    return sizes if start == total else None
