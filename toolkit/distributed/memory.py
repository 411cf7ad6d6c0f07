"""Memory that runs out: what says so, what is left, and the message: in which phase, with which samples, what to lower,
and how the run goes on."""

import errno
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import psutil

from toolkit.config.schema import Config
from toolkit.distributed.phase import OPTIMIZER_STEP, PREDICTING, PREPARING, WRITING, Phase

# Torch has a class of its own only for the errors of a GPU's allocator.
LACKS = re.compile(r"out of memory|can't allocate memory|not enough memory|ALLOC_FAILED|bad_alloc", re.IGNORECASE)
AMOUNT = re.compile(r"(?:tried|unable) to allocate ([\d.,]+) ?(\w+)", re.IGNORECASE)
ON_GPU = re.compile(r"\b(CUDA|HIP|GPU|CUBLAS|CUDNN)", re.IGNORECASE)
UNITS = (("GB", 10**9), ("MB", 10**6), ("kB", 10**3))


class OutOfMemoryError(MemoryError):
    """Memory ran out in one process or several, and every process of the run raises this at the same place."""


class StepLacksMemoryError(Exception):
    """Memory ran out in a step, in one process or several; weights and averages are as they were before it.

    Every process of the run raises this at the same place, and can do the step again.
    """

    def __init__(self, step: int) -> None:
        super().__init__(f"memory ran out in step {step + 1}")
        self.step = step


@dataclass(frozen=True)
class Lack:
    """That memory ran out in this process, in a form that holds none and can be sent to the others."""

    text: str
    """Which memory, of `lack_of`."""
    phase: Phase
    """What the process was doing; of the micro-batch it keeps the ids and the shapes."""

    @staticmethod
    def of(error: BaseException, phase: Phase) -> "Lack":
        """Return what is to be kept of an error."""
        micro = phase.batch
        if micro is not None:
            shapes = {name: tensor.to("meta") for name, tensor in micro.batch.items()}
            phase = phase._replace(batch=replace(micro, batch=shapes))
        return Lack(lack_of(error), phase)


def lacks_memory(error: BaseException) -> bool:
    """Return whether an error means that memory ran out: of the host, of a GPU, or pinned."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and bool(LACKS.search(str(error))))


def lack_of(error: BaseException) -> str:
    """Return in words which memory ran out, and how much was asked for if the error has the amount."""
    text = str(error)
    kind = "the GPU's memory" if ON_GPU.search(text) else "the host's memory"
    amount = AMOUNT.search(text)
    if amount is None:
        return f"{kind} ran out"
    number, unit = amount.groups()
    if unit == "bytes":
        unit, scale = next((entry for entry in UNITS if float(number) >= entry[1]), UNITS[-1])
        number = f"{float(number) / scale:,.1f}"
    return f"{kind} ran out when {number} {unit} more were asked for"


def host_memory_left() -> int:
    """Return the bytes that this process and the others of its machine can still take: what the system has, or what is
    left of the limit of a control group, of which the system kills a process that goes beyond it."""
    return min([int(psutil.virtual_memory().available), *(left for _, left in control_groups())])


def host_limits() -> list[int]:
    """Return the bytes that limit this process: what the system has, and what it allows."""
    limits = [int(psutil.virtual_memory().total), *sorted({most for most, _ in control_groups()})]
    if sys.platform != "win32":
        import resource

        own = resource.getrlimit(resource.RLIMIT_AS)[0]
        limits += [own] if own != resource.RLIM_INFINITY else []
    return limits


def control_groups(
    root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")
) -> Iterator[tuple[int, int]]:
    """Yield the limit of each control group that this process is in, where there are any (Linux), and what is left."""
    names = []
    with suppress(OSError):
        names = [line.rstrip().rpartition(":")[2].lstrip("/") for line in own.read_text(encoding="utf-8").splitlines()]
    # In a container the files of its own group lie at the root.
    places = {root, *(folder for name in names for folder in (root / name, *(root / name).parents))}
    for place in {*places, root / "memory"}:
        for limit, usage in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
            with suppress(OSError, ValueError):  # no such file, or no limit: "max"
                most, taken = (int((place / name).read_text(encoding="utf-8")) for name in (limit, usage))
                text = (place / "memory.stat").read_text(encoding="utf-8")
                cached = re.search(r"^(?:total_)?inactive_file (\d+)$", text, re.MULTILINE)
                yield most, max(0, most - taken + (int(cached[1]) if cached else 0))


def out_of_memory_message(lack: str, phase: Phase, config: Config, is_sharded: bool, newest: str | None) -> str:
    """Return the message for the user.

    Args:
        lack: of `lack_of`.
        phase: what the process was doing.
        config: of the run.
        is_sharded: whether the launch file already shards the model.
        newest: the name of the newest checkpoint, if there is one.
    """
    after = f" after step {phase.place[0]:,}" if phase.step is None and phase.place[0] else ""
    step = f" of step {phase.step:,}" if phase.step is not None else after
    on = f", with {described(phase.batch)}" if phase.batch is not None else ""
    goes_on = f"goes on from {newest}" if newest else "begins again from the start"
    here, from_scratch = ", or ".join(remedies(phase, config, is_sharded)), ", or ".join(others(phase, config))
    return f"{lack}; the process was {phase.what}{step}{on}. Give {here}: the same command with that {goes_on}" + (
        f". Or, in a new --output, give {from_scratch}" if from_scratch else ""
    )


def described(micro: Any) -> str:
    """Return how many samples a micro-batch has, and how large the largest of its tensors is."""
    count, sizes = len(micro.ids), {name: tuple(tensor.shape) for name, tensor in micro.batch.items()}
    largest = max(sizes, key=lambda name: prod(sizes[name]), default="")
    shape = f" ({largest}: {' x '.join(f'{size:,}' for size in sizes[largest])})" if largest else ""
    return f"{count:,} sample{'s' if count > 1 else ''} at once{shape}"


def remedies(phase: Phase, config: Config, is_sharded: bool) -> Iterator[str]:
    """Yield what can be given against it that changes no number, so that the run goes on with it."""
    evaluates = phase.step is None
    if phase.batch is not None and len(phase.batch.ids) > 1:
        spread = getattr(getattr(config, "model", None), "device_map", None) is not None
        auto = "" if evaluates or is_sharded or spread else ", or --batch.micro auto"
        half = f"--batch.{'eval' if evaluates else 'micro'} {len(phase.batch.ids) // 2} or less"
        yield f"{half}{auto} (it changes no number)"
    keeps_all = getattr(getattr(config, "model", None), "checkpoint_activations", None) is False
    if phase.batch is not None and not evaluates and keeps_all:
        yield "--model.checkpoint_activations true"
    if phase.batch is None and phase.what not in (PREPARING, OPTIMIZER_STEP, WRITING):
        yield "the machine more memory, or start fewer processes on it"
    elif is_sharded:
        yield "a launch with more processes (docs/parallelism.md)"
    else:
        yield "a launch file that spreads the model over several GPUs or processes (docs/parallelism.md)"


def others(phase: Phase, config: Config) -> Iterator[str]:
    """Yield what else can be given: it makes another run."""
    model: Any = getattr(config, "model", None)
    if phase.what in (PREPARING, OPTIMIZER_STEP) and hasattr(model, "lora") and model.name is not None:
        yield "--model.lora.rank 16, which trains adapters alone"
    sections = {"generate": ("tokens", "max_length", "beams")} if phase.what == PREDICTING else {}
    if phase.batch is not None and len(phase.batch.ids) == 1:
        sections["data"] = ("max_length", "max_target_length", "block")
    for section, names in sections.items():
        settings = getattr(config, section, None)
        yield from (f"a smaller {section}.{name}" for name in names if getattr(settings, name, None) is not None)
