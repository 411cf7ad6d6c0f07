"""Where a run happens: the one place that builds the Accelerator, and everything that processes say to each other."""

import gc
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from socket import gethostname
from time import monotonic, sleep
from typing import Any, TypeVar, cast

import torch
import torch.distributed
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, GradientAccumulationPlugin, send_to_device
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from toolkit.config.schema import Config
from toolkit.distributed.counts import Counts
from toolkit.distributed.launch import Launch, is_true, read_launch, several_machines, unsupported
from toolkit.distributed.mesh import Strategy, read_strategy, shown_to_accelerate
from toolkit.distributed.outcome import Failure, Outcome, attempt, raise_shared
from toolkit.distributed.phase import PhaseTracker
from toolkit.distributed.preflight import compare_starts
from toolkit.distributed.rendezvous import SAME, group_patience, meet, meeting_place
from toolkit.distributed.watchdog import Watchdog, start_watchdog
from toolkit.errors import SharedUserError, UserError
from toolkit.signals import StopRequests
from toolkit.task import Batch

Result = TypeVar("Result")

# The control group waits as long as it takes: how long is too long, and for whom, is judged by the watch.
FOR_EVER = timedelta(days=30)
# Who failed waits so long for the others, which may have failed alike or have nothing to do with it.
SECONDS_TO_FOLLOW = 10.0
INTERVAL = 0.05
THROUGH = "through"


@dataclass(frozen=True)
class Runtime:
    """This process among all processes of the run."""

    accelerator: Accelerator
    launch: Launch
    threads: int
    control: torch.distributed.ProcessGroup | None
    """A gloo group of all processes: what is agreed on is agreed on the host, and nothing waits for a device."""
    phase: PhaseTracker
    """Called with what this process begins to do."""
    stop: StopRequests
    """What this process knows of requests to stop."""
    watchdog: Watchdog
    """Ends this process when another one died or hangs."""
    strategy: Strategy = Strategy()
    """How the model is spread over the processes."""

    @property
    def device(self) -> torch.device:
        """The device of this process."""
        return torch.device(self.accelerator.device)

    @property
    def has_own_memory(self) -> bool:
        """Whether the device has memory of its own, so that copies between it and pinned memory make nobody wait."""
        return self.device.type != "cpu"

    @property
    def is_main(self) -> bool:
        """Whether this is the process that speaks and writes."""
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
        return self.size // self.strategy.tensor

    @property
    def data_parallel_rank(self) -> int:
        """The number of this process among those that see different samples; tensor-parallel ones have the same."""
        return self.rank // self.strategy.tensor

    @property
    def is_counted(self) -> bool:
        """Whether what this process sees counts: of those that see the same samples one does."""
        return self.rank % self.strategy.tensor == 0

    @property
    def mesh(self) -> DeviceMesh:
        """The mesh of the processes, where the strategy has more than one dimension or splits layers."""
        return cast(DeviceMesh, self.accelerator.torch_device_mesh)

    @property
    def sharding_mesh(self) -> DeviceMesh:
        """The part of the mesh that weights are sharded over, and before it the one that copies are kept over, if any."""
        if self.accelerator.torch_device_mesh is None:
            return init_device_mesh(self.device.type, (self.size,), mesh_dim_names=("dp_shard",))
        return self.mesh["dp_replicate", "dp_shard"] if self.strategy.replicate > 1 else self.mesh["dp_shard"]

    @property
    def precision(self) -> str:
        """Mixed precision: no, bf16 or fp16."""
        return str(self.accelerator.mixed_precision)

    def accumulate_over(self, micro_batches: int) -> None:
        """Make `accelerator.accumulate` synchronise on the last of so many micro-batches, counted from now."""
        self.accelerator.gradient_accumulation_steps = micro_batches
        # Without this a number that changes from step to step synchronises on the wrong micro-batch.
        self.accelerator.step = 0

    def to_device(self, batch: Batch) -> Batch:
        """Return the batch on the device of this process."""
        moved: Batch = send_to_device(batch, self.device, non_blocking=True)
        return moved

    def put(self, values: torch.Tensor) -> torch.Tensor:
        """Return a tensor of the host on the device of this process, without waiting for the copy."""
        return (values.pin_memory() if self.has_own_memory else values).to(self.device, non_blocking=True)

    def seed(self, number: int) -> None:
        """Seed what dropout draws from. (`torch.manual_seed` would visit every backend: 60 times the cost.)"""
        torch.default_generator.manual_seed(number)
        if self.has_own_memory:
            torch.get_device_module(self.device).manual_seed(number)

    def all_reduce_counts(self, mine: Counts) -> Counts:
        """Return the sum of the counts of all processes: the one small all-reduce of a step, on the host."""
        counted = mine if self.is_counted else Counts(stop=mine.stop, trouble=mine.trouble)
        vector = torch.tensor(counted.vector(), dtype=torch.float64)
        if self.control is not None:
            torch.distributed.all_reduce(vector, group=self.control)
        return Counts.of_sum(vector.tolist())

    def any_of(self, mine: bool) -> bool:
        """Return whether it is so in any process."""
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
        """Return of the values of all processes those of the ones that see different samples."""
        return values[:: self.strategy.tensor]

    def gather_rows(self, rows: torch.Tensor, counts: list[int]) -> torch.Tensor:
        """Return the rows of all that see different samples, one after another; `counts` says how many each has.

        No gradient flows through.
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

        With `talking` the processes communicate in it. The others may then wait in there for one that failed, which does not
        wait for them in turn: it raises its error alone.
        """
        outcome = attempt(work)
        if talking and not self.all_come(wait=outcome.error is not None):
            raise cast(Exception, outcome.error)
        failures: list[Failure | None] = [outcome.failure]
        if self.control is not None:
            failures *= self.size
            torch.distributed.all_gather_object(failures, outcome.failure, group=self.control)
        if outcome.is_defect:
            raise cast(Exception, outcome.error)
        raise_shared(failures)
        return cast(Result, outcome.result)

    def all_come(self, wait: bool) -> bool:
        """Say that this process is through with something; return whether all are, after waiting some seconds for them if asked."""
        if self.watchdog.store is None:
            return True
        # Each time adds as many as there are processes.
        own = self.watchdog.store.add(THROUGH, 1)
        until = monotonic() + SECONDS_TO_FOLLOW
        while wait and self.watchdog.store.add(THROUGH, 0) < -(-own // self.size) * self.size:
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

        Any of them may be on the host already: where gradients are offloaded, so is their norm.
        """
        if not self.has_own_memory:
            return torch.stack([number.double() for number in numbers]).tolist
        host = torch.empty(len(numbers), dtype=torch.float64, pin_memory=True)
        for place, number in zip(host, numbers, strict=True):
            place.copy_(number, non_blocking=True)
        arrived = torch.get_device_module(self.device).Event()
        arrived.record()

        def read() -> list[float]:
            arrived.synchronize()
            return host.tolist()

        return read

    def close(self) -> None:
        """Leave the process groups, all processes together.

        The order matters: a rank that exits while a gloo thread still serves another one aborts with
        "terminate called without an active exception". So all meet first, then what holds a group (the reducer of a
        wrapped model) is dropped, and then the groups go.
        """
        self.phase("ending")
        self.accelerator.free_memory()
        gc.collect()
        self.watchdog.leave()
        # A process that was killed meanwhile is missed by nobody: what the run came to is written down.
        with suppress(RuntimeError):
            if self.control is not None:
                torch.distributed.barrier(group=self.control)
        self.watchdog.close()
        with suppress(RuntimeError):
            if torch.distributed.is_initialized():
                torch.distributed.destroy_process_group()


def start_runtime(config: Config) -> Runtime:
    """Return the runtime of this process.

    Raises:
        UserError: the launch configuration asks for something that this machine or the toolkit cannot do.
    """
    launch = read_launch()
    on_cpu = launch.use_cpu is True or not torch.accelerator.is_available()
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    precision = os.environ.get("ACCELERATE_MIXED_PRECISION", "no").lower()
    strategy, unfit = read_strategy(world_size, precision)
    problems = [*unsupported(), *contradictions(launch, on_cpu, world_size), *unfit]
    if problems:
        raise UserError(*problems)
    local_processes = int(os.environ.get("LOCAL_WORLD_SIZE", str(world_size)))
    threads = choose_threads(config, usable_cores() // local_processes, computes_on_host=on_cpu or strategy.offloaded)
    meeting = meet(config.timeout.rendezvous)
    compare_starts(meeting, config, on_cpu)
    patience = group_patience(config.timeout.progress, on_cpu)
    handlers = meeting_place(meeting, patience)
    with shown_to_accelerate(strategy, on_cpu, precision, handlers) as sharded:
        accelerator = Accelerator(
            cpu=on_cpu,
            gradient_accumulation_plugin=GradientAccumulationPlugin(
                num_steps=1, sync_with_dataloader=False, sync_each_batch=config.batch.reduce_each
            ),
            dataloader_config=DataLoaderConfiguration(even_batches=False),
            step_scheduler_with_optimizer=False,
            kwargs_handlers=handlers,
            **sharded,
        )
    if accelerator.num_processes != world_size:
        raise UserError(
            f"WORLD_SIZE is {world_size}, but Accelerate sees {accelerator.num_processes} process(es): they would train apart. "
            "Start them with `accelerate launch` and a file of accelerate_configs/, or unset WORLD_SIZE and RANK"
        )
    if strategy.sharded != bool(accelerator.is_fsdp2):
        raise UserError(
            f"the launch configuration asks for {strategy.description}, but Accelerate would train {accelerator.distributed_type.value}; "
            "start the processes with `accelerate launch` and a file of accelerate_configs/"
        )
    if accelerator.torch_device_mesh is not None:
        # Each dimension of a mesh has a group of its own, made with torch's time-out.
        for group in accelerator.torch_device_mesh.get_all_groups():
            torch.distributed.distributed_c10d._set_pg_timeout(patience, group)
    if strategy.tensor > 1:
        # Accelerate 1.15 imports a class here that Transformers 5.23 no longer has; the model's plan is applied in `prepare`.
        accelerator._prepare_tp = lambda *prepared: prepared
    phase, stop = PhaseTracker(), StopRequests(config.checkpoint.grace)
    if accelerator.num_processes == 1:
        return Runtime(accelerator, launch, threads, None, phase, stop, Watchdog(), strategy)
    control = torch.distributed.new_group(backend="gloo", timeout=FOR_EVER)
    watchdog = start_watchdog(accelerator.process_index, accelerator.num_processes, control, phase, config.timeout)
    watchdog.stopping = lambda: stop.reason is not None
    return Runtime(accelerator, launch, threads, control, phase, stop, watchdog, strategy)


def choose_threads(config: Config, cores: int, computes_on_host: bool) -> int:
    """Set the threads of torch in this process, and return their number.

    A launcher sets OMP_NUM_THREADS=1, which is no choice of the user's and would leave cores idle where the model or an
    offloaded optimizer computes on the host.
    """
    if config.threads is None and not computes_on_host:
        return torch.get_num_threads()
    threads = config.threads or max(1, cores)
    os.environ["OMP_NUM_THREADS"] = str(threads)
    torch.set_num_threads(threads)
    return threads


def usable_cores() -> int:
    """Return the cores that this process may use, where the system says so (Linux), or else all."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def contradictions(launch: Launch, on_cpu: bool, world_size: int) -> list[str]:
    """Return a sentence for everything that was asked of the launcher and is not so."""
    problems = []
    precision = os.environ.get("ACCELERATE_MIXED_PRECISION", "no").lower()
    # There torch finds no GPU any more: the run would go on, on the CPU.
    if launch.use_cpu is not True and torch.cuda._is_in_bad_fork():
        problems.append(
            "this process was forked from one that had used CUDA already, such as a notebook, and CUDA does not work in such a copy; start "
            "the processes from the notebook with toolkit.notebook.launch, or in a terminal with `accelerate launch`"
        )
    local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    kind = None if on_cpu else torch.accelerator.current_accelerator()
    if kind is not None and kind.type != "cuda":
        problems.append(
            f"torch finds an accelerator of the type {kind.type} here, on which this toolkit was never tried; train on "
            "a GPU that torch calls cuda (NVIDIA, AMD), or on this CPU: set ACCELERATE_USE_CPU=true in the environment"
        )
    if launch.use_cpu is False and on_cpu:
        file = "cpu_several_nodes.yaml on all machines" if several_machines() else "cpu.yaml"
        if is_true("ACCELERATE_USE_FSDP") or is_true("ACCELERATE_USE_PARALLELISM_CONFIG"):
            file = "cpu_fsdp2.yaml or another cpu_*.yaml that spreads the model"
        problems.append(
            f"the launch configuration ({launch.description}) asks for an accelerator, but torch finds none on this machine; "
            f"use accelerate_configs/{file}, or repair the driver"
        )
    if not on_cpu and local > torch.accelerator.device_count():
        problems.append(
            f"{local} processes were started on this machine, which has {torch.accelerator.device_count()} accelerator(s); "
            "start at most one for each"
        )
    if precision == "fp16" and on_cpu:
        problems.append(
            "the launch configuration asks for mixed precision fp16, which needs an accelerator; on CPU use bf16 or no"
        )
    if world_size > 1 and "MASTER_ADDR" not in os.environ:
        problems.append(
            f"WORLD_SIZE is {world_size}, but MASTER_ADDR, where the processes meet, is not set: no launcher started this one. "
            "Start them with `accelerate launch` and a file of accelerate_configs/, or unset WORLD_SIZE and RANK"
        )
    # 0 and -1 are Accelerate's "as many as there are" and "to be given later".
    unmet = launch.processes not in (None, 0, -1, world_size)
    if unmet and several_machines():
        problems.append(
            f"`accelerate launch` on this machine ({gethostname()}) was asked for {launch.processes} processes, but all machines together "
            f"started {world_size}; {SAME}"
        )
    elif unmet:
        problems.append(
            f"`accelerate launch` was asked for {launch.processes} processes, but started {world_size}; on CPU use "
            f"`accelerate launch --config_file accelerate_configs/cpu.yaml --num_processes {launch.processes}`"
        )
    return problems
