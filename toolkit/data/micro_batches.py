"""How a global batch is cut into micro-batches: a detail of execution, which changes the speed and never the result."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heapreplace
from typing import Any

import numpy as np

from toolkit.data.order import Ids, fingerprint, fingerprints_of

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
    """Elements that are computed, 0 where lengths are unknown: the number of samples times the longest, or, where they
    run end to end, the sum of their lengths."""
    used: int = 0
    """Elements before padding; 0 where lengths are unknown."""
    padded_squared: int = 0
    """Pairs of elements of one sample, after padding; 0 where lengths are unknown."""
    used_squared: int = 0
    """Pairs of elements of one sample, before padding; 0 where lengths are unknown."""
    fingerprint: int = 0
    """Of the samples as they were cut, modulo 2^64, which the ledger adds up; 0 for a dummy."""


@dataclass(frozen=True)
class Limits:
    """What one process may run through the model at once; it decides how a batch is cut, and never a number."""

    samples: int | None = None
    """The most samples; None for no limit."""
    tokens: int | None = None
    """The most elements, padding included where there is any; None for no limit. A sample that is longer runs alone."""


def accumulation(samples: int, processes: int, micro: int | None) -> int:
    """Return the fewest micro-batches in which each process can run its share of `samples`, at most `micro` in each."""
    return 1 if micro is None else -(-samples // (processes * micro))


def cut(
    step: int,
    ids: Ids,
    lengths: Lengths | None,
    processes: int,
    micro: int | None,
    call_cost: int | None = None,
    *,
    tokens: int | None = None,
    packed: bool = False,
) -> list[MicroBatch]:
    """Cut one global batch into accumulation x processes micro-batches.

    Args:
        step: the optimizer step, counted from 0.
        ids: the samples of the global batch, shape (samples,).
        lengths: their lengths, same shape; None leaves the samples in the order of `ids`, in even parts.
        processes: the data-parallel size.
        micro: the most samples in one micro-batch; None for no limit.
        call_cost: what one more pass through the model costs beside its elements, in elements: the global batch is cut
            finer than the limits demand where the padding that is saved outweighs it. None never does.
        tokens: the most elements in one micro-batch, a longer sample being alone in its own; None for no limit. It
            takes lengths.
        packed: whether samples run end to end: the elements of a micro-batch are then the sum of its lengths, and no
            longer the number of its samples times the longest.

    Returns:
        The micro-batches in dealing order: first one for each process, then the second of each, and so on. Where
        lengths are known, the samples of each stand in order of falling length, equal ones by id.
    """
    rounds = accumulation(len(ids), processes, micro)
    if lengths is None and rounds * processes == 1:
        return [MicroBatch(step, rounds, tuple(ids.tolist()), fingerprint=fingerprint(ids))]
    if lengths is None:
        chunks = np.array_split(np.arange(len(ids)), min(rounds * processes, len(ids)))
    else:
        longest_first = np.lexsort((ids, -lengths))
        ordered, most = lengths[longest_first].tolist(), micro or len(ids)
        if packed:
            rounds, parts = even_parts(ordered, processes, rounds, most, tokens)
            chunks = [longest_first[part] for part in parts]
        else:
            if tokens is not None:
                rounds = max(rounds, -(-fewest_runs(ordered, most, tokens) // processes))
            rounds, sizes = cheapest_cut(ordered, processes, rounds, most, call_cost, tokens)
            chunks = np.split(longest_first, np.cumsum(sizes)[:-1])
    micro_batches = planned(step, rounds, ids, lengths, chunks, packed)
    # The cheapest is copied where one is missing.
    micro_batches.sort(key=lambda batch: -batch.padded)
    dummy = MicroBatch(step, rounds, micro_batches[-1].ids[:1], dummy=True)
    micro_batches += [dummy] * (rounds * processes - len(chunks))
    # Every other round is dealt backwards, so that no process gets the costliest of each.
    dealt = []
    for number in range(rounds):
        one_each = micro_batches[number * processes : (number + 1) * processes]
        dealt += one_each if number % 2 == 0 else one_each[::-1]
    return dealt


def planned(
    step: int, rounds: int, ids: Ids, lengths: Lengths | None, chunks: Sequence[Ids], packed: bool
) -> list[MicroBatch]:
    """Return the micro-batches that these chunks of positions in `ids` are; see `cut`.

    A step of a thousand processes has thousands of them: what is summed up is summed for all at once.
    """
    counts = np.array([len(chunk) for chunk in chunks], dtype=np.int64)
    ends: Ids = np.cumsum(counts)
    starts, positions = ends - counts, np.concatenate(chunks)
    mine = ids[positions]
    bounds = list(zip(starts.tolist(), ends.tolist(), strict=True))
    numbers, fingerprints = mine.tolist(), fingerprints_of(mine, starts)
    if lengths is None:
        return [
            MicroBatch(step, rounds, tuple(numbers[first:end]), fingerprint=seen)
            for (first, end), seen in zip(bounds, fingerprints, strict=True)
        ]
    own = lengths[positions]
    used, squared = np.add.reduceat(own, starts), np.add.reduceat(own * own, starts)
    longest = np.maximum.reduceat(own, starts)
    padded, padded_squared = (used, squared) if packed else (longest * counts, longest * longest * counts)
    sums = (values.tolist() for values in (padded, used, padded_squared, squared))
    return [
        MicroBatch(step, rounds, tuple(numbers[first:end]), False, computed, before, pairs, pairs_before, seen)
        for (first, end), computed, before, pairs, pairs_before, seen in zip(bounds, *sums, fingerprints, strict=True)
    ]


def cheapest_cut(
    longest_first: list[int],
    processes: int,
    fewest: int,
    most: int,
    call_cost: int | None,
    tokens: int | None = None,
) -> tuple[int, list[int]]:
    """Return how many micro-batches each process runs, at least `fewest`, and the sizes of all of them.

    One process's cost is taken as its number of micro-batches times (the costliest micro-batch + the cost of a call).
    The number is doubled as long as that falls.
    """

    def attempt(rounds: int) -> tuple[float, list[int]]:
        sizes = balanced_sizes(longest_first, min(rounds * processes, len(longest_first)), most, tokens)
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


def balanced_sizes(longest_first: list[int], parts: int, most: int, tokens: int | None = None) -> list[int]:
    """Return the sizes of `parts` consecutive runs of samples, at most `most` each, whose padded cost is as even as it
    gets.

    The cost of a run is its number of samples times its longest. The smallest bound on the cost of a run under which
    `parts` runs are enough is found by bisection, to 1%. With `tokens` no run of several samples costs more than that.
    """
    if parts == len(longest_first):
        return [1] * parts
    low = sum(longest_first) // parts
    high = longest_first[0] * most
    sizes = sizes_within(high, longest_first, parts, most, tokens)
    while high - low > max(1, high // 100):
        middle = (low + high) // 2
        attempt = sizes_within(middle, longest_first, parts, most, tokens)
        if attempt is None:
            low = middle
        else:
            high, sizes = middle, attempt
    assert sizes is not None, "the accumulation leaves room for every sample"
    return sizes


def sizes_within(
    bound: int, longest_first: list[int], parts: int, most: int, tokens: int | None = None
) -> list[int] | None:
    """Return sizes of `parts` runs, none empty, of which none costs more than `bound` or is larger than `most`; None if
    there are none."""
    sizes = []
    start, total = 0, len(longest_first)
    for left in range(parts, 0, -1):
        length = longest_first[start]
        # At least one sample must remain for every run that follows.
        size = min(most, bound // length if length else most, total - start - (left - 1))
        if tokens is not None and size > 1:
            size = min(size, most_at_once(length, most, tokens))
        if size < 1:
            return None
        sizes.append(size)
        start += size
    return sizes if start == total else None


def most_at_once(length: int, most: int, tokens: int) -> int:
    """Return how many samples of a length run together: one in any case."""
    return max(1, min(most, tokens // length)) if length else most


def fewest_runs(longest_first: list[int], most: int, tokens: int) -> int:
    """Return in how many consecutive runs all samples find room, each as large as the limits allow."""
    runs = start = 0
    while start < len(longest_first):
        start += most_at_once(longest_first[start], most, tokens)
        runs += 1
    return runs


def even_parts(
    longest_first: list[int], processes: int, fewest: int, most: int, tokens: int | None
) -> tuple[int, list[list[int]]]:
    """Return how many micro-batches each process runs, and the positions of the samples of each, none empty.

    Each sample goes, longest first, where the sum of lengths is smallest (Graham, "Bounds on multiprocessing timing
    anomalies", 1969: at most a third above the evenest cut). The number of micro-batches is the smallest from `fewest`
    on with which none of several samples exceeds `tokens`.
    """
    total = len(longest_first)
    rounds = fewest if tokens is None else max(fewest, -(-sum(longest_first) // (tokens * processes)))
    while rounds * processes < total:
        if rounds * processes == 1:
            parts = [list(range(total))]
        else:
            parts = [[] for _ in range(rounds * processes)]
            places = [(0, number) for number in range(len(parts))]
            for position, length in enumerate(longest_first):
                load, number = places[0]
                parts[number].append(position)
                if len(parts[number]) < most:
                    # What has no length counts too: no part may stay empty.
                    heapreplace(places, (load + max(1, length), number))
                else:
                    heappop(places)
        if tokens is None or all(
            len(part) == 1 or sum(longest_first[position] for position in part) <= tokens for part in parts
        ):
            return rounds, parts
        rounds += 1
    return max(fewest, -(-total // processes)), [[position] for position in range(total)]


def halved(micro_batches: Iterable[MicroBatch]) -> Limits | None:
    """Return the limits under which none of these micro-batches of a step costs more than half of the costliest.

    What is halved is the number of elements, or where lengths are unknown the number of samples. Returns None where
    every micro-batch is a single sample: nothing is left to be cut.
    """
    several = [micro for micro in micro_batches if len(micro.ids) > 1]
    if not several:
        return None
    if costliest := max(micro.padded for micro in several):
        return Limits(tokens=costliest // 2)
    return Limits(samples=max(len(micro.ids) for micro in several) // 2)
