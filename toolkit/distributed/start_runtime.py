"""How this process becomes part of a run: what the launcher asked for, the rendezvous, the Accelerator, the watchdog.

This is the one place that builds the Accelerator.
"""

import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed
from accelerate import Accelerator
from accelerate.utils import (
    DataLoaderConfiguration,
    DistributedDataParallelKwargs,
    DistributedType,
    GradientAccumulationPlugin,
    InitProcessGroupKwargs,
)
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]
from torch.distributed.constants import default_pg_nccl_timeout, default_pg_timeout
from torch.distributed.rendezvous import register_rendezvous_handler

from toolkit.config.schema import Config
from toolkit.distributed.device_map import asks_for_devices, device_map_problems, devices_here, distributed_problem
from toolkit.distributed.launch import contradictions, read_launch, unsupported
from toolkit.distributed.launcher_variables import check_launcher_variables
from toolkit.distributed.mesh import Strategy, read_strategy, shown_to_accelerate
from toolkit.distributed.phase import PhaseTracker
from toolkit.distributed.preflight import compare_starts
from toolkit.distributed.rendezvous import Rendezvous, join_rendezvous
from toolkit.distributed.runtime import FOR_EVER, Runtime
from toolkit.distributed.watchdog import Watchdog, start_watchdog
from toolkit.errors import UserError
from toolkit.signals import StopRequests

SCHEME = "finetune"
"""Of the address under which torch finds the rendezvous that has already taken place."""
# The groups' time-out is longer by so much: a process may begin to hang a while after the others began to wait.
SECONDS_FOR_THE_WATCHDOG = 120.0
LONGEST = 30 * 86400.0


def start_runtime(config: Config) -> Runtime:
    """Return the runtime of this process.

    Raises:
        UserError: the launch configuration asks for something that this machine or the toolkit cannot do.
    """
    check_launcher_variables()
    launch = read_launch()
    on_cpu = launch.use_cpu is True or not torch.accelerator.is_available()
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    precision = os.environ.get("ACCELERATE_MIXED_PRECISION", "no").lower()
    strategy, unfit = read_strategy(config, world_size, precision)
    spread = device_map_problems(config, strategy, on_cpu, precision)
    problems = [*unsupported(), *contradictions(launch, on_cpu, world_size), *unfit, *spread]
    if problems:
        raise UserError(*problems)
    if asks_for_devices(config):
        strategy = replace(strategy, devices=devices_here(on_cpu))
    local_processes = int(os.environ.get("LOCAL_WORLD_SIZE", str(world_size)))
    threads = choose_threads(config, usable_cores() // local_processes, computes_on_host=on_cpu or strategy.offloaded)
    rendezvous = join_rendezvous(config.timeout.rendezvous)
    compare_starts(rendezvous, config, on_cpu)
    timeout = group_timeout(config.timeout.progress, on_cpu)
    accelerator = build_accelerator(config, strategy, on_cpu, precision, group_options(rendezvous, timeout))
    if accelerator.num_processes != world_size:
        raise UserError(
            f"WORLD_SIZE is {world_size}, but Accelerate sees {accelerator.num_processes} process(es): they would "
            "train apart. Start them with `accelerate launch` and a file of accelerate_configs/, or unset WORLD_SIZE "
            "and RANK"
        )
    deepspeed = accelerator.distributed_type == DistributedType.DEEPSPEED
    if strategy.sharded != bool(accelerator.is_fsdp2) or (strategy.zero is not None) != deepspeed:
        raise UserError(
            f"the launch configuration asks for {strategy.description}, but Accelerate would train "
            f"{accelerator.distributed_type.value}; start the processes with `accelerate launch` and a file of "
            "accelerate_configs/"
        )
    if strategy.devices > 1 and accelerator.use_distributed:
        raise UserError(distributed_problem(strategy.devices))
    if accelerator.torch_device_mesh is not None:
        # Each dimension of a mesh has a group of its own, made with torch's time-out.
        for group in accelerator.torch_device_mesh.get_all_groups():
            torch.distributed.distributed_c10d._set_pg_timeout(timeout, group)
    phase, stop = PhaseTracker(), StopRequests(config.checkpoint.grace)
    if accelerator.num_processes == 1:
        return Runtime(accelerator, launch, threads, None, phase, stop, Watchdog(), strategy)
    control = torch.distributed.new_group(backend="gloo", timeout=FOR_EVER)
    watchdog = start_watchdog(accelerator.process_index, accelerator.num_processes, control, phase, config.timeout)
    watchdog.stopping = lambda: stop.reason is not None
    return Runtime(accelerator, launch, threads, control, phase, stop, watchdog, strategy)


def build_accelerator(
    config: Config, strategy: Strategy, on_cpu: bool, precision: str, options: list[Any]
) -> Accelerator:
    """Return the Accelerator; it makes the process groups."""
    # Accelerate looks twice in each optimizer step whether this package is installed, and Python then searches all of
    # its path for it: 0.1 ms. None says that there is no such package; no optimizer of it is built here.
    sys.modules.setdefault("lomo_optim", None)  # type: ignore[arg-type]
    with shown_to_accelerate(strategy, config, on_cpu, precision, options) as shown:
        accelerator = Accelerator(
            gradient_accumulation_plugin=GradientAccumulationPlugin(
                num_steps=1, sync_with_dataloader=False, sync_each_batch=config.batch.reduce_each
            ),
            dataloader_config=DataLoaderConfiguration(even_batches=False),
            step_scheduler_with_optimizer=False,
            # Gradients live in the buffers that are sent, and not a second time beside them.
            kwargs_handlers=[*options, DistributedDataParallelKwargs(gradient_as_bucket_view=True)],
            **{"cpu": on_cpu, **shown},
        )
    if strategy.tensor > 1:
        # Accelerate 1.15 imports a class here that Transformers 5.23 no longer has; `prepare` applies the model's plan.
        accelerator._prepare_tp = lambda *prepared: prepared
    return accelerator


def group_timeout(progress: float, on_cpu: bool) -> timedelta:
    """Return the time-out of the process groups: longer than that of the watchdog, which says who hangs, and where.

    With its own ten minutes NCCL would abort the process before, whatever timeout.progress is, and nothing in the run
    folder would say why.
    """
    own = default_pg_timeout if on_cpu else default_pg_nccl_timeout or default_pg_timeout
    return timedelta(seconds=min(max(own.total_seconds(), progress), LONGEST) + SECONDS_FOR_THE_WATCHDOG)


def group_options(rendezvous: Rendezvous | None, timeout: timedelta) -> list[Any]:
    """Return what makes Accelerate build its process group in the store of the rendezvous, with this time-out."""
    if rendezvous is None:
        return []

    def found(url: str, timeout: timedelta = default_pg_timeout, **others: Any) -> Iterator[tuple[Store, int, int]]:
        yield PrefixStore("groups", rendezvous.store), rendezvous.endpoint.rank, rendezvous.endpoint.size

    register_rendezvous_handler(SCHEME, found)  # type: ignore[no-untyped-call]
    return [InitProcessGroupKwargs(init_method=f"{SCHEME}://", timeout=timeout)]


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
