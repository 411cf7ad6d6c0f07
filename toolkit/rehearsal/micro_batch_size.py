"""How many samples fit into memory at once, tried before the first step where `batch.micro` is auto.

The answer is remembered on this machine (`toolkit.data.cache`) for each model, device and precision. Processes of a
sharded model exchange something in each layer, so it is not tried there.
"""

import os
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psutil
import torch

from toolkit.checkpoint.staging import in_bytes
from toolkit.config.schema import Config
from toolkit.config.yaml import as_mapping
from toolkit.data.cache import digest_of, remember, remembered
from toolkit.data.loader import LoadedMicroBatch, MicroBatches, MicroBatchSampler, longest_samples
from toolkit.data.micro_batches import Limits, MicroBatch
from toolkit.distributed.memory import host_limits, host_memory_left, lack_of, lacks_memory, others
from toolkit.distributed.phase import FORWARD_PASS, Phase
from toolkit.distributed.runtime import Runtime
from toolkit.errors import SharedUserError
from toolkit.grad_cache import loss_of_batch
from toolkit.models.parameters import buffers_kept
from toolkit.optimizer import kept_bytes
from toolkit.output.meters import forget_peak, linux_peak
from toolkit.task import Task

FITS = "what_fits"
"""The folder of the cache."""
PART_OF_THE_REST = 0.9
"""Of the host's memory that is left, as much may be taken: the system ends a process that takes too much."""


@dataclass(frozen=True)
class WhatFits:
    """What all processes can run at once."""

    limits: Limits
    samples: int
    """How many of the longest samples fit."""
    key: str
    """Under which it is remembered."""

    def remember(self, limits: Limits) -> None:
        """Write down for later runs what fits, in the main process."""
        value = {"samples": limits.samples, "tokens": limits.tokens, "longest": self.samples}
        remember(FITS, self.key, value, replace=True)


def find_limits(
    task: Task,
    config: Config,
    runtime: Runtime,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: MicroBatches,
    sampler: MicroBatchSampler,
    step: int,
) -> WhatFits:
    """Try how many of the longest samples all processes can run forward and backward, and change nothing.

    The number is doubled until memory runs out, then bisected; an eighth is left free. Gradients and the averages of
    the optimizer lie in memory meanwhile. On a host without a limit nothing is tried that would need more than is left:
    such a process would be killed.

    Args:
        task: what is trained.
        config: its settings.
        runtime: where.
        model: as Accelerate prepared it, not sharded.
        optimizer: its optimizer, before the first step or loaded.
        batches: makes micro-batches of plans.
        sampler: plans them for the run.
        step: which samples are augmented as in this step.

    Raises:
        SharedUserError: not even one sample fits.
    """
    module = runtime.accelerator.unwrap_model(model)
    share = min(-(-config.batch.size // runtime.data_parallel_size), len(task.data.train))
    ids, lengths = longest_samples(task.data.train, share)
    by_length = sampler.balance and lengths is not None
    longest = None if lengths is None else int(lengths[0])
    key = key_of(task, config, runtime, module, host_limits(), share, longest, by_length, sampler.packed)
    if known := runtime.on_main(lambda: remembered(FITS, key)):
        return WhatFits(Limits(known["samples"], known["tokens"]), known["longest"], key)

    averages = 0 if optimizer.state else kept_bytes(config.optim, optimizer)
    host = HostMemory(runtime) if runtime.device.type == "cpu" else None

    def lack(count: int) -> str | None:
        """Return which memory so many samples lack in this process."""
        if host is not None and (refusal := host.refusal(count)) is not None:
            return refusal
        found = None
        try:
            micro = batches.__getitems__(MicroBatch(step, 1, tuple(ids[:count].tolist())))
            runtime.phase("trying how many samples fit into memory", step + 1, patient=True, batch=micro)
            trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
            held = torch.ones(averages, dtype=torch.uint8, device=runtime.device)
            for parameter in trained:
                parameter.grad = torch.zeros_like(parameter)
            if host is not None:
                host.begin()
            run_backward(task, runtime, module, micro)
            del held
        except Exception as error:
            if not lacks_memory(error):
                raise
            found = lack_of(error)
        finally:
            module.zero_grad(set_to_none=True)
        if found is None and host is not None:
            host.note(count)
        runtime.free_memory()
        return found

    fits, count = 0, 1
    too_many: int | None = None
    lacks: list[str | None] = []
    while count:
        found = runtime.gather_all(runtime.together(lambda count=count: lack(count)))  # type: ignore[misc]
        if any(found):
            too_many, lacks = count, found
        else:
            fits = count
        if too_many is None:
            count = min(2 * count, share) if count < share else 0
        else:
            count = (fits + too_many) // 2 if too_many - fits > max(1, too_many // 8) else 0
    if not fits:
        rank, lacking = next((rank, lack) for rank, lack in enumerate(lacks) if lack is not None)
        who = f"process {rank}: " if runtime.size > 1 else ""
        raise SharedUserError(does_not_fit(task, config, runtime, who + lacking))
    limits = Limits()
    if too_many is not None:
        fits -= fits // 8
        limits = Limits(samples=fits)
        if by_length and lengths is not None:
            limits = Limits(tokens=int(lengths[:fits].sum()) if sampler.packed else int(lengths[0]) * fits)
    answer = WhatFits(limits, fits, key)
    if runtime.is_main:
        answer.remember(limits)
    return answer


def run_backward(task: Task, runtime: Runtime, module: torch.nn.Module, micro: LoadedMicroBatch) -> None:
    """Run a micro-batch forward and backward, and wait for it; buffers keep their values. Nothing is sent: the module
    is not wrapped."""
    with buffers_kept(module), runtime.drawing_from(micro.dropout_rows):
        runtime.accelerator.backward(loss_of_batch(task, module, runtime.to_device(micro.batch)))
        if runtime.has_own_memory:
            torch.get_device_module(runtime.device).synchronize()


def does_not_fit(task: Task, config: Config, runtime: Runtime, lack: str) -> str:
    """Return the message for a model of which not even one sample fits; `lack` says which memory ran out, and where."""
    _, lengths = longest_samples(task.data.train, 1)
    sample = "a sample" if lengths is None else f"the longest sample, of length {lengths[0]:,},"
    alone = LoadedMicroBatch(MicroBatch(0, 1, (0,)), (0,), {}, 0)
    elsewhere = ["a launch file that spreads the model over several GPUs or processes (docs/parallelism.md)"]
    if getattr(getattr(config, "model", None), "checkpoint_activations", None) is False:
        elsewhere.insert(0, "--model.checkpoint_activations true")
    shorter = ", or ".join(others(Phase(FORWARD_PASS, 1, True, 0.0, batch=alone), config))
    return (
        f"batch.micro is auto, and {sample} does not fit by itself: {lack}, of {in_bytes(memory_of(runtime))}. "
        f"Give {', or '.join(elsewhere)}" + (f", or {shorter}" if shorter else "")
    )


class HostMemory:
    """What samples take of the host's memory, where the system tells (Linux); foretold from those that were tried."""

    def __init__(self, runtime: Runtime) -> None:
        self.processes = int(os.environ.get("LOCAL_WORLD_SIZE", str(runtime.size)))
        self.before = resident()
        self.held = 0
        """Bytes of what lies there whatever runs: gradients and averages."""
        self.each: float | None = None
        """Bytes for each sample."""

    def refusal(self, count: int) -> str | None:
        """Return why so many samples had better not be tried, if there is a reason."""
        now = resident()
        left = PART_OF_THE_REST * (host_memory_left() / self.processes + now - self.before)
        if self.each is None or self.held + self.each * count <= left:
            return None
        taken = f"{count:,} samples would take about {in_bytes(int(self.held + self.each * count))}"
        return f"the host's memory would run out: {taken}, and {in_bytes(int(left))} are left"

    def begin(self) -> None:
        """Begin to watch what the samples take, beside what is held by now."""
        self.held = max(0, resident() - self.before)
        forget_peak(torch.device("cpu"))

    def note(self, count: int) -> None:
        """Note what so many samples took."""
        peak = linux_peak()
        self.each = None if peak is None else max(0, peak - self.before - self.held) / count


def resident() -> int:
    """Return the bytes that this process takes of the host's memory."""
    return int(psutil.Process().memory_info().rss)


def memory_of(runtime: Runtime) -> int:
    """Return the bytes that the device of this process has, or 0 where it does not tell."""
    if not runtime.has_own_memory:
        return min(host_limits())
    with suppress(AttributeError, RuntimeError):
        properties = torch.get_device_module(runtime.device).get_device_properties(runtime.device)
        return int(properties.total_memory)
    return 0


def key_of(task: Task, config: Config, runtime: Runtime, module: torch.nn.Module, *more: Any) -> str:
    """Return under which name something about this model, device and precision is remembered."""
    device: Any = runtime.device.type
    with suppress(AttributeError, RuntimeError):
        device = torch.get_device_module(runtime.device).get_device_properties(runtime.device).name
    parameters = [(name, tuple(p.shape), str(p.dtype), p.requires_grad) for name, p in module.named_parameters()]
    settings = as_mapping(config).get("model")
    about = (torch.__version__, str(module), parameters, settings, config.optim.name)
    return digest_of(*about, str(device), memory_of(runtime), runtime.precision, runtime.size, *more)
