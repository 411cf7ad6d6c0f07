"""In which order an evaluation visits its samples, and which of its groups a batch belongs to."""

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np

from toolkit.data.order import Ids
from toolkit.task import TaskData


class LongestFirst:
    """All samples, the longest first: little padding, and a lack of memory shows at once.

    The order does not depend on the number of processes or the batch size, and the metrics are fed in this order, so
    that even a metric that adds floating-point numbers gets the same ones in the same order.

    Samples of different groups never share a round, so that the loss of a round is that of one group. Groups may share
    samples: what belongs to the same of them is one part.
    """

    def __init__(self, data: TaskData, batch_size: int, most: int | None = None) -> None:
        """Order all evaluation samples, or the `most` longest of those that are worth a trial.

        A source may know that predictions are made of some samples only, and say which by a method `worth_a_trial`.
        """
        source = data.evaluate
        assert source is not None
        ids = np.arange(len(source), dtype=np.int64)
        if most is not None and hasattr(source, "worth_a_trial"):
            ids = np.array(source.worth_a_trial(), dtype=np.int64)
        lengths = source.lengths(ids)
        chosen: Ids = (ids if lengths is None else ids[np.lexsort((ids, -lengths))])[:most]
        part_of, self.parts_of_group = parts(data, len(source))
        # The part with the longest sample first.
        _, first, part = np.unique(part_of[chosen], return_index=True, return_inverse=True)
        self.ids: Ids = chosen[np.argsort(first[part], kind="stable")]
        self.batch_size = batch_size
        self.part_of = part_of

    @cached_property
    def rounds(self) -> list[Ids]:
        """The samples that all processes evaluate at once, round by round."""
        changes = np.flatnonzero(np.diff(self.part_of[self.ids])) + 1
        return [
            part[start : start + self.batch_size]
            for part in np.split(self.ids, changes)
            for start in range(0, len(part), self.batch_size)
        ]

    @property
    def steps_per_epoch(self) -> int:
        """Rounds in which all processes evaluate a batch each."""
        return len(self.rounds)

    def global_batches(self, first: int, end: int) -> Iterator[Ids]:
        """Yield the ids of each round from `first` up to `end`, of all processes together."""
        yield from self.rounds[first:end]

    def part(self, number: int) -> int:
        """Return the part that the samples of a round belong to."""
        return int(self.part_of[self.rounds[number][0]])

    def of_groups(self, by_part: Mapping[int, tuple[float, float]]) -> dict[str, float]:
        """Return the mean loss of each group, given the summed loss and the units of each part that was evaluated."""
        means = {}
        for group, own in self.parts_of_group.items():
            losses, units = zip(*([by_part[part] for part in own if part in by_part] or [(0.0, 0.0)]), strict=True)
            if sum(units):
                means[group] = sum(losses) / sum(units)
        return means


def parts(data: TaskData, count: int) -> tuple[np.ndarray[Any, Any], dict[str, list[int]]]:
    """Return the part of each of so many evaluation samples (int64), and the parts of each group, by name."""
    owner = np.arange(count) if data.item_of is None else np.asarray(data.item_of)
    part_of, inside = np.zeros(count, dtype=np.int64), {}
    for group, members in data.groups.items():
        inside[group] = np.isin(owner, members)
        part_of = np.unique(2 * part_of + inside[group], return_inverse=True)[1]
    return part_of, {group: np.unique(part_of[own]).tolist() for group, own in inside.items()}
