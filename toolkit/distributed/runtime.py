"""This process among all processes of a run: what it knows of them, and how they communicate."""

import gc
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from time import monotonic, sleep
from typing import Any, TypeVar, cast

import torch
import torch.distributed
from accelerate import Accelerator
from accelerate.utils import send_to_device
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from toolkit.batch_layout import NOTES, LateKeys, Layout, drawing_from
from toolkit.data.loader import KeyedRows
from toolkit.distributed.counts import Counts
from toolkit.distributed.launch import Launch
from toolkit.distributed.mesh import Strategy
from toolkit.distributed.phase import PhaseTracker
from toolkit.distributed.shared_outcome import Failure, Outcome, attempt, raise_shared
from toolkit.distributed.watchdog import Watchdog
from toolkit.errors import SharedUserError, UserError
from toolkit.signals import StopRequests
from toolkit.task import Batch

Result = TypeVar("Result")

# The control group waits as long as it takes: how long is too long, and for whom, the watchdog decides.
FOR_EVER = timedelta(days=30)
# A process that failed waits so long for the others, which may have failed alike or not at all.
SECONDS_TO_FOLLOW = 10.0
INTERVAL = 0.05
FINISHED = "finished"
"""In the watchdog's store: how many processes have finished a piece of work in which they communicate."""


@dataclass(frozen=True)
class Runtime:
    """This process among all processes of the run; `toolkit/distributed/start_runtime.py` makes it."""

    accelerator: Accelerator
    launch: Launch
    threads: int
    control: torch.distributed.ProcessGroup | None
    """A gloo group of all processes: they agree on the host, and nothing waits for a device."""
    phase: PhaseTracker
    """Called with what this process begins to do, for the message that names it when it hangs."""
    stop: StopRequests
    """What this process knows of requests to stop."""
    watchdog: Watchdog
    """Ends this process when another one died or hangs."""
    strategy: Strategy = Strategy()
    """How the model is sharded over the processes."""

    @cached_property
    def device(self) -> torch.device:
        return torch.device(self.accelerator.device)

    @cached_property
    def devices(self) -> tuple[torch.device, ...]:
        """All devices of this process; it has several where layers are spread over them. Batches go to the first."""
        if self.strategy.devices == 1:
            return (self.device,)
        return tuple(torch.device(self.device.type, number) for number in range(self.strategy.devices))

    @cached_property
    def zero(self) -> torch.Tensor:
        """A zero on the device, to begin sums with; nobody changes it in place."""
        return torch.zeros((), device=self.device)

    @property
    def has_own_memory(self) -> bool:
        """Whether the device has memory of its own, so that copies between it and pinned memory make nobody wait."""
        return self.device.type != "cpu"

    @property
    def is_main(self) -> bool:
        """Whether this is the process that prints and writes."""
        return bool(self.accelerator.is_main_process)

    @property
    def rank(self) -> int:
        """The number of this process, from 0."""
        return int(self.accelerator.process_index)

    @property
    def size(self) -> int:
        """Processes in all."""
        return int(self.accelerator.num_processes)

    @property
    def data_parallel_size(self) -> int:
        """Processes that see different samples: those that hold one copy of the model together see the same ones."""
        return self.size // self.strategy.together

    @property
    def data_parallel_rank(self) -> int:
        """Number of this process among those that see different samples; one for those that see the same ones."""
        return self.rank // self.strategy.together

    @property
    def is_counted(self) -> bool:
        """Whether this process counts its samples: one does of those that see the same ones."""
        return self.rank % self.strategy.together == self.strategy.stages - 1  # the last stage has the loss

    @property
    def keeps_gradients(self) -> bool:
        """Whether gradients live in the buffers that DDP sends, and are set to zero there between two steps.

        Given up instead, those of all micro-batches but the last would lie beside these buffers.
        """
        return self.size > 1 and not self.strategy.is_sharded

    @property
    def mesh(self) -> DeviceMesh:
        """The mesh of the processes, where the strategy has more than one dimension or splits layers."""
        return cast(DeviceMesh, self.accelerator.torch_device_mesh)

    @property
    def sharding_mesh(self) -> DeviceMesh:
        """The mesh that weights are sharded over; for hybrid sharding its first dimension is that of the copies."""
        if self.accelerator.torch_device_mesh is None:
            return init_device_mesh(self.device.type, (self.size,), mesh_dim_names=("dp_shard",))
        return self.mesh["dp_replicate", "dp_shard"] if self.strategy.replicate > 1 else self.mesh["dp_shard"]

    @property
    def precision(self) -> str:
        """Mixed precision: no, bf16 or fp16."""
        return self.strategy.zero.precision if self.strategy.zero else str(self.accelerator.mixed_precision)

    def accumulate_over(self, micro_batches: int) -> None:
        """Make `accelerator.accumulate` synchronise on the last of so many micro-batches, counted from now."""
        self.accelerator.gradient_accumulation_steps = micro_batches
        # Without this a number that changes from step to step synchronises on the wrong micro-batch.
        self.accelerator.step = 0

    def divisor(self, micro_batches: int) -> int:
        """Return by what Accelerate's `backward` divides a loss in a step of so many micro-batches."""
        return 1 if self.strategy.zero is not None else micro_batches

    def to_device(self, batch: Batch) -> Batch:
        """Return a batch on the device of this process, but for what the host alone reads."""
        if not self.has_own_memory:
            return dict(batch)
        moved = {name: tensor for name, tensor in batch.items() if name not in NOTES}
        notes = {name: batch[name] for name in NOTES if name in batch}
        return {**send_to_device(moved, self.device, non_blocking=True), **notes}

    def drawing_from(self, rows: KeyedRows | None) -> AbstractContextManager[Layout]:
        """Draw dropout in the block from the keys of these rows of a batch (`toolkit.batch_layout`)."""
        keys = None if rows is None else LateKeys(rows.count, lambda: self.put(rows.keys()))
        return drawing_from(keys, part=self.rank % self.strategy.tensor)

    def put(self, values: torch.Tensor) -> torch.Tensor:
        """Return a tensor of the host on the device of this process, without waiting for the copy."""
        return (values.pin_memory() if self.has_own_memory else values).to(self.device, non_blocking=True)

    def seed(self, number: int) -> None:
        """Seed what dropout draws from. (`torch.manual_seed` would visit every backend: 60 times the cost.)"""
        torch.default_generator.manual_seed(number)
        if self.has_own_memory:
            backend = torch.get_device_module(self.device)
            (backend.manual_seed_all if self.strategy.devices > 1 else backend.manual_seed)(number)

    def all_reduce_counts(self, mine: Counts) -> Counts:
        """Return the sum of the counts of all processes: the one small all-reduce of a step, on the host."""
        if self.control is None:
            return mine
        if not self.is_counted:
            mine = Counts(stop=mine.stop, trouble=mine.trouble, lacking=mine.lacking, flops=mine.flops)
        vector = torch.tensor(mine.vector(), dtype=torch.float64)
        torch.distributed.all_reduce(vector, group=self.control)
        return Counts.of_sum(vector.tolist())

    def any_of(self, mine: bool) -> bool:
        """Return whether `mine` is true in any process."""
        return self.all_reduce_counts(Counts(trouble=int(mine))).trouble > 0

    def gather(self, mine: Any) -> list[Any]:
        """Return the values of all processes, by rank, in the main process; an empty list in the others."""
        if self.control is None:
            return [mine]
        values: list[Any] | None = [None] * self.size if self.is_main else None
        torch.distributed.gather_object(mine, values, dst=0, group=self.control)
        return values or []

    def gather_all(self, mine: Any) -> list[Any]:
        """Return the values of all processes, by rank, in every process; over the host."""
        if self.control is None:
            return [mine]
        values: list[Any] = [None] * self.size
        torch.distributed.all_gather_object(values, mine, group=self.control)
        return values

    def counted(self, values: list[Result]) -> list[Result]:
        """Return those values, of one per process, that come from processes which see different samples."""
        return values[self.strategy.stages - 1 :: self.strategy.together]

    def gather_rows(self, rows: torch.Tensor, counts: list[int]) -> torch.Tensor:
        """Return the rows of all processes that see different samples, one after another; no gradient flows through.

        `counts` are the numbers of rows, one for each of these processes.
        """
        if self.control is None:
            return rows
        # Tensors that are gathered have to be of one size.
        padded = rows.new_zeros((max(counts), *rows.shape[1:]))
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in range(self.size)]
        torch.distributed.all_gather(parts, padded)
        return torch.cat([part[:count] for part, count in zip(self.counted(parts), counts, strict=True)])

    def together(self, work: Callable[[], Result], talking: bool = False) -> Result:
        """Run something in every process, and fail in all of them if it fails in one, so that none is left waiting.

        With `talking` they communicate in it. A process that fails gives the others some seconds to finish too. If they
        do not, they wait for it in a collective: it raises its error alone, and the watchdog ends them.
        """
        outcome = attempt(work)
        if talking and not self.all_finish(wait=outcome.error is not None):
            raise cast(Exception, outcome.error)
        failures: list[Failure | None] = [outcome.failure]
        if self.control is not None:
            failures *= self.size
            torch.distributed.all_gather_object(failures, outcome.failure, group=self.control)
        if outcome.is_defect:
            raise cast(Exception, outcome.error)
        raise_shared(failures)
        return cast(Result, outcome.result)

    def all_finish(self, wait: bool) -> bool:
        """Count this process as finished; with `wait`, give the others some seconds and return whether all finished."""
        if self.watchdog.store is None:
            return True
        # Each time adds as many as there are processes.
        own = self.watchdog.store.add(FINISHED, 1)
        until = monotonic() + SECONDS_TO_FOLLOW
        while wait and self.watchdog.store.add(FINISHED, 0) < -(-own // self.size) * self.size:
            if monotonic() > until:
                return False
            sleep(INTERVAL)
        return True

    def share(self, tensor: torch.Tensor) -> None:
        """Give all processes the main one's values of a tensor on the device, bit for bit."""
        if self.control is None:
            return
        # As bytes, since not every backend sends every type.
        values = tensor.detach().contiguous().reshape(-1)
        content = values.view(torch.uint8)
        torch.distributed.broadcast(content, src=0)
        with torch.no_grad():
            tensor.copy_(values.view(tensor.shape))

    def on_main(self, work: Callable[[], Result]) -> Result:
        """Run something in the main process alone, and return its result, or raise its error, in all."""
        outcome = attempt(work) if self.is_main else Outcome[Result]()
        shared = [(outcome.result, outcome.failure)]
        if self.control is not None:
            torch.distributed.broadcast_object_list(shared, src=0, group=self.control)
        if outcome.is_defect:
            raise cast(Exception, outcome.error)
        if isinstance(outcome.error, UserError):
            raise SharedUserError(*outcome.error.problems)
        result, failure = shared[0]
        raise_shared([failure])
        return cast(Result, result)

    def read_later(self, *numbers: torch.Tensor) -> Callable[[], list[float]]:
        """Start copying numbers to the host and return what reads them; only that waits, and only for these copies.

        Any of them may be on the host already: where gradients are offloaded, so is their norm. Or on another device of
        this process: the norm is where the first gradient is.
        """
        if not self.has_own_memory:
            return lambda: [float(number) for number in numbers]
        host = torch.empty(len(numbers), dtype=torch.float64, pin_memory=True)
        for place, number in zip(host, numbers, strict=True):
            # The event is recorded for what this device has begun.
            ours = number.to(self.device) if number.device.type == self.device.type else number
            place.copy_(ours, non_blocking=True)
        arrived = torch.get_device_module(self.device).Event()
        arrived.record()

        def read() -> list[float]:
            arrived.synchronize()
            return host.tolist()

        return read

    def free_memory(self) -> None:
        """Give back the memory of tensors that nothing refers to any more."""
        gc.collect()
        if self.has_own_memory:
            torch.get_device_module(self.device).empty_cache()

    def close(self) -> None:
        """Leave the process groups, all processes together.

        The order matters. A process that exits while a gloo thread still serves another one aborts with "terminate
        called without an active exception". So what holds a group (the reducer of a wrapped model) is dropped first,
        then all wait for each other, and then the groups are destroyed.
        """
        self.phase("ending")
        self.accelerator.free_memory()
        gc.collect()
        self.watchdog.leave()
        # A process that was killed meanwhile does not matter: the result of the run is written down.
        with suppress(RuntimeError):
            if self.control is not None:
                torch.distributed.barrier(group=self.control)
        self.watchdog.close()
        with suppress(RuntimeError):
            if torch.distributed.is_initialized():
                torch.distributed.destroy_process_group()
