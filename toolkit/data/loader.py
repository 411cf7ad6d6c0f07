"""Samples to batches: the sampler that plans the micro-batches, and the loader that fetches and collates them."""

import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import islice
from math import isfinite
from operator import index
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler
from torch.utils.data._utils.pin_memory import pin_memory

from toolkit.batch_layout import ROW_SAMPLES
from toolkit.data.micro_batches import Lengths, MicroBatch, cut, halved
from toolkit.data.order import Ids, Order, mix64
from toolkit.errors import UserError
from toolkit.randomness import seed_for
from toolkit.signals import held_back, leave_signals_to_the_run
from toolkit.task import Batch, Source, Task

LENGTHS_AT_ONCE = 1 << 20
# The cuts of small steps take a third of the time one after another: all they need lies in the processor's caches by
# then. A large one alone takes so long that others would be missed.
SAMPLES_AT_ONCE = 256
UPPER = 1 if sys.byteorder == "little" else 0
"""Which half of a 64-bit integer in memory is the upper one."""


@dataclass(frozen=True)
class KeyedRows:
    """The rows of a batch, and what dropout is drawn from for each of them."""

    seed: int
    """The run's."""
    step: int
    """The optimizer step, counted from 0."""
    ids: Sequence[int]
    """The samples of the micro-batch."""
    samples: torch.Tensor | None = None
    """The place in `ids` of the sample that each row belongs to; None if each has one row."""

    @property
    def count(self) -> int:
        """How many they are."""
        return len(self.ids) if self.samples is None else len(self.samples)

    def keys(self) -> torch.Tensor:
        """Return hashes of (seed, step, sample id, which row of the sample), int32 (rows + 1,): the last one is for
        what belongs to no sample."""
        key = np.uint64(seed_for(self.seed, "dropout", self.step))
        rows = mix64(np.asarray(self.ids, dtype=np.uint64) ^ key)
        if self.samples is not None:
            places = self.samples.numpy()
            # Rows of one sample are counted in the order in which they stand.
            order = np.argsort(places, kind="stable")
            counted = np.empty(len(places), dtype=np.uint64)
            counted[order] = np.arange(len(places)) - np.searchsorted(places[order], places[order])
            rows = rows[places] + counted
        hashes = np.empty(len(rows) + 1, dtype=np.uint64)
        hashes[:-1], hashes[-1] = rows, key
        # The upper half of each.
        return torch.from_numpy(mix64(hashes).view(np.int32)[UPPER::2].copy())


@dataclass(frozen=True)
class LoadedMicroBatch:
    """A micro-batch with its tensors, in host memory."""

    plan: MicroBatch
    ids: tuple[int, ...]
    """The samples that were asked for; as many came."""
    batch: Batch
    units: float
    """What the loss is averaged over: a whole number, or the sum of their weights; 0 for a dummy micro-batch."""
    dropout_rows: KeyedRows | None = None
    """What dropout is drawn from; None for evaluation."""

    def pin_memory(self) -> "LoadedMicroBatch":
        """Return it in pinned memory, from which a device copies while the host goes on; torch's loader calls this."""
        return replace(self, batch=pin_memory(self.batch))  # type: ignore[no-untyped-call]


class MicroBatchSampler(Sampler[MicroBatch]):
    """Yields the micro-batches of all processes, from one step to another and across epochs.

    They come in the order in which `Accelerator.prepare` deals batches: the first to process 0, the next to process 1,
    and so on; their number is a multiple of the process count by construction. It has no `set_epoch` on purpose:
    Accelerate would call it with epochs of its own counting.
    """

    def __init__(
        self,
        order: Order,
        source: Source,
        processes: int,
        end: int,
        *,
        first: int = 0,
        micro: int | None = None,
        tokens: int | None = None,
        balance: bool = False,
        packed: bool = False,
        call_cost: int | None = None,
    ) -> None:
        self.order = order
        self.source = source
        self.processes = processes
        self.first = first
        self.end = end
        # May be changed; what is planned from then on keeps them.
        self.micro = micro
        self.tokens = tokens
        self.call_cost = call_cost
        self.balance = balance
        self.packed = packed
        """Whether the model computes without padding."""
        # Accelerate reads it.
        self.drop_last = False

    def __iter__(self) -> Iterator[MicroBatch]:
        steps = enumerate(self.order.global_batches(self.first, self.end), self.first)
        for step, ids in steps:
            some = [(step, ids), *islice(steps, SAMPLES_AT_ONCE // len(ids) - 1 if len(ids) < SAMPLES_AT_ONCE else 0)]
            yield from [plan for number, own in some for plan in self.of_ids(number, own)]

    def of_ids(self, step: int, ids: Ids) -> list[MicroBatch]:
        """Return the micro-batches of one step, given its samples, of all processes, in dealing order."""
        lengths = self.source.lengths(ids) if self.balance else None
        return cut(
            step, ids, lengths, self.processes, self.micro, self.call_cost, tokens=self.tokens, packed=self.packed
        )

    def of_step(self, step: int) -> list[MicroBatch]:
        """Return the micro-batches of one step, of all processes, in dealing order."""
        alone = copy(self)
        alone.first, alone.end = step, step + 1
        return list(alone)

    def halve(self, step: int) -> bool:
        """Cut this step and the others into micro-batches of at most half of this one's costliest; return whether
        there is anything left to be cut."""
        limits = halved(self.of_step(step))
        if limits is None:
            return False
        self.micro = limits.samples or self.micro
        self.tokens = limits.tokens or self.tokens
        return True


def longest_samples(source: Source, count: int) -> tuple[Ids, Lengths | None]:
    """Return the ids of the longest samples and their lengths, the longest first; the first ones and None where
    lengths are unknown. Memory: the lengths of a part of the samples."""
    ids = np.arange(min(count, len(source)), dtype=np.int64)
    lengths = source.lengths(ids)
    if lengths is None:
        return ids, None
    for start in range(len(ids), len(source), LENGTHS_AT_ONCE):
        more = np.arange(start, min(start + LENGTHS_AT_ONCE, len(source)), dtype=np.int64)
        of_more = source.lengths(more)
        assert of_more is not None
        ids, lengths = np.concatenate([ids, more]), np.concatenate([lengths, of_more])
        chosen = np.lexsort((ids, -lengths))[:count]
        ids, lengths = ids[chosen], lengths[chosen]
    order = np.lexsort((ids, -lengths))
    return ids[order], lengths[order]


class MicroBatches(Dataset[LoadedMicroBatch]):
    """Fetches and collates a whole micro-batch at once, in a loader's worker where there are any."""

    def __init__(self, source: Source, task: Task, seed: int, steps_per_epoch: int | None) -> None:
        """Fetch for training, or, without `steps_per_epoch`, for evaluation, which is the same at every step."""
        self.source = source
        self.task = task
        self.seed = seed
        self.steps_per_epoch = steps_per_epoch

    def __getitems__(self, plan: MicroBatch) -> LoadedMicroBatch:
        """Return the micro-batch that was planned; torch's loader hands over what the batch sampler yielded."""
        samples = self.source.fetch(plan.ids)
        if len(samples) != len(plan.ids):
            raise UserError(
                f"the source was asked for {len(plan.ids)} samples and returned {len(samples)} (the first id is "
                f"{plan.ids[0]}); fetch has to return one sample for each id, in their order"
            )
        batch = self.task.collate(self.transformed(plan, samples))
        samples_of_rows = batch.get(ROW_SAMPLES)
        if samples_of_rows is not None:
            batch = {name: tensor for name, tensor in batch.items() if name != ROW_SAMPLES}
        units = 0 if plan.dummy else checked_units(self.task.units(batch))
        trains = self.steps_per_epoch is not None
        rows = KeyedRows(self.seed, plan.step, plan.ids, samples_of_rows) if trains else None
        return LoadedMicroBatch(plan, plan.ids, batch, units, rows)

    def transformed(self, plan: MicroBatch, samples: list[Any]) -> list[Any]:
        """Return the samples with what is random about them, drawn for each from (seed, epoch, id) alone."""
        if self.steps_per_epoch is not None:
            transform, purpose, epoch = self.task.transform, "transform", plan.step // self.steps_per_epoch
        else:
            transform, purpose, epoch = self.task.evaluate_transform, "evaluation transform", 0
        if transform is None:
            return samples
        return [
            transform(sample, np.random.default_rng(seed_for(self.seed, purpose, epoch, number)))
            for number, sample in zip(plan.ids, samples, strict=True)
        ]


def checked_units(units: Any) -> float:
    """Return what a task counts in a batch: a whole number as it is, so that sums of counts stay exact.

    Raises:
        UserError: it is no number, infinite or below 0.
    """
    value: float
    try:
        value = index(units)
    except TypeError:
        try:
            value = float(units)
        except (TypeError, ValueError, RuntimeError):  # RuntimeError: a tensor of several numbers
            raise UserError(
                f"the task's `units` returned a {type(units).__name__} that is no number; it has to return how many "
                "units a batch has, or the sum of their weights"
            ) from None
    if not isfinite(value) or value < 0:
        raise UserError(
            f"the task counts {value} units in a batch; it has to be a number of at least 0: look for a weight that is "
            "negative, infinite or not a number"
        )
    return value


class Fetched(Dataset[LoadedMicroBatch | UserError]):
    """Hands a `UserError` over as it is: raised in a worker it would come with the worker's trace for a message."""

    def __init__(self, batches: MicroBatches) -> None:
        self.batches = batches

    def __getitems__(self, plan: MicroBatch) -> LoadedMicroBatch | UserError:
        """Return the micro-batch that was planned, or what the user can mend about it."""
        try:
            return self.batches.__getitems__(plan)
        except UserError as error:
            return error


def build_loader(
    sampler: MicroBatchSampler, task: Task, seed: int, steps_per_epoch: int | None = None, pinned: bool = False
) -> "DataLoader[LoadedMicroBatch | UserError]":
    """Return a loader of `LoadedMicroBatch`, still to be prepared by Accelerate; see `MicroBatches`.

    `pinned` puts them into pinned memory: in a thread if there are workers, otherwise in the caller's.
    """
    # That there are more workers than cores the plan says once, and not each loader that Accelerate makes of this.
    warnings.filterwarnings("ignore", "This DataLoader will create")
    return DataLoader(
        Fetched(MicroBatches(sampler.source, task, seed, steps_per_epoch)),
        batch_sampler=sampler,  # type: ignore[arg-type]  # a MicroBatch stands where torch expects a list of indices
        collate_fn=as_it_is,
        num_workers=task.data.workers,
        pin_memory=pinned,
        worker_init_fn=leave_signals_to_the_run if task.data.workers else None,
        # The loader draws a seed for its workers; from a generator of its own, so that the global one is left alone.
        generator=torch.Generator(),
    )


def started(loader: "DataLoader[LoadedMicroBatch | UserError]") -> Iterator[LoadedMicroBatch]:
    """Iterate over a loader; its workers, which are forked for the first batch, are deaf to requests to stop.

    Raises:
        UserError: something about the samples that the user can mend.
    """
    try:
        for loaded in forked(loader):
            if isinstance(loaded, UserError):
                raise loaded
            yield loaded
    except Exception as error:
        # What the trace holds keeps the workers alive, and at its end the process would wait for them for ever.
        traceback.clear_frames(error.__traceback__)
        raise


def forked(loader: "DataLoader[LoadedMicroBatch | UserError]") -> Iterator[LoadedMicroBatch | UserError]:
    """Iterate over a loader, and hold signals back while its workers are forked."""
    batches = iter(loader)
    if loader.num_workers:
        with held_back():
            first = next(batches, None)
        if first is None:
            return
        yield first
    yield from batches


def as_it_is(loaded: Any) -> Any:
    """Return what `MicroBatches` already collated (a function of its own, so that workers can be spawned)."""
    return loaded
