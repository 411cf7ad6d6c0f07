"""Before the first step: are all processes about to do the same thing?

Each machine has its own disk, packages and command line. Where they differ, the run would hang, or worse, train
something that nobody asked for. So the processes compare what they are about to do: one hash each, and all values only
where the hashes differ.
"""

import json
import os
import socket
from collections.abc import Callable, Iterable, Mapping
from itertools import count
from typing import Any

import torch

from toolkit.config.schema import Config
from toolkit.config.suggestions import show
from toolkit.config.yaml import as_mapping, flatten
from toolkit.data.cache import digest_of
from toolkit.distributed.rendezvous import Rendezvous
from toolkit.distributed.shards import as_bytes
from toolkit.errors import SharedUserError
from toolkit.output.provenance import recipe_source, toolkit_source, versions
from toolkit.task import Task

Compared = dict[str, tuple[Any, str]]
"""What is compared: by its name its value, and what to do where it differs."""
Exchange = Callable[[Any], list[Any]]

# What depends on the machine and on nothing else.
OWN_SETTINGS = ("threads", "data.workers")
LAUNCH_SETTINGS = ("ACCELERATE_", "FSDP_", "PARALLELISM_CONFIG_")
OWN_LAUNCH_SETTINGS = ("ACCELERATE_CPU_AFFINITY", "ACCELERATE_TORCH_DEVICE")
MOST_SHOWN = 4
DIGITS = 12
SAMPLED = 1024
NOTHING = "nothing"

INSTALL = "install the same versions on all machines, or give them one environment on a shared file system"
COPY = "bring the same code to all machines"
KIND = "start it on machines of one kind, or on all of them with a file for CPU"
COMMAND = "start the same command on each machine"
DATA = "bring the same data to all machines"
MODEL = "bring the same model (model.name) to all machines"
VALUES = (
    f"{MODEL}; machines of different kinds can draw new weights that differ in the last digit: with "
    "fsdp_cpu_ram_efficient_loading in the launch file process 0 sends its own to all"
)


def compare_starts(rendezvous: Rendezvous | None, config: Config, on_cpu: bool) -> None:
    """Make sure that all processes have the same versions, code, settings and launch configuration.

    It needs no process group: those that differ may not even be able to build one.

    Raises:
        SharedUserError: they differ; it names what, in which process and on which machine, with all values.
    """
    if rendezvous is None:
        return
    rounds = count()

    def exchange(mine: Any) -> list[Any]:
        return [json.loads(text) for text in rendezvous.exchange(f"start {next(rounds)}", json.dumps(mine))]

    compare(exchange, values_at_start(config, on_cpu))


def values_at_start(config: Config, on_cpu: bool) -> Compared:
    """Return what has to be the same in all processes before anything is read."""
    compared: Compared = {f"the version of {name}": (found, INSTALL) for name, found in versions().items()}
    compared["the build of torch"] = (torch.__version__, INSTALL)
    compared["the device"] = ("CPU" if on_cpu else "an accelerator", KIND)
    compared |= {f"the file toolkit/{name}": (digest, COPY) for name, digest in toolkit_source().items()}
    compared |= {f"the recipe's file {name}": (digest, COPY) for name, digest in recipe_source(config).items()}
    for name, value in flatten(as_mapping(config)).items():
        if name not in OWN_SETTINGS:
            compared[name] = (value, COMMAND)
    for name in sorted(os.environ):
        if name.startswith(LAUNCH_SETTINGS) and name not in OWN_LAUNCH_SETTINGS:
            compared[f"the launch configuration's {name}"] = (os.environ[name], COMMAND)
    return compared


def digests_of_data(task: Task) -> dict[str, str | None]:
    return {"train": task.data.train.digest(), "evaluate": task.data.evaluate.digest() if task.data.evaluate else None}


def compare_data(exchange: Exchange, task: Task, digests: Mapping[str, str | None]) -> None:
    """Make sure that all processes have the same data; on each machine the one process that reads it gives digests.

    Raises:
        SharedUserError: they differ.
    """
    evaluated = len(task.data.evaluate) if task.data.evaluate is not None else 0
    sizes = {"training": len(task.data.train), "evaluation": evaluated}
    compare(exchange, {f"the number of {name} samples": (size, DATA) for name, size in sizes.items()})
    used = {"train": "training", "evaluate": "evaluation"}
    compare(exchange, {f"the content of the {used[name]} data": (digest, DATA) for name, digest in digests.items()})


def compare_models(exchange: Exchange, model: torch.nn.Module, values: bool = False) -> None:
    """Make sure that all processes have built a model of the same shape.

    Args:
        exchange: gives the values of all processes to each.
        model: whole in this process.
        values: also compare a sample of the values of each tensor, where no process is sent those of another.

    Raises:
        SharedUserError: they differ.
    """
    tensors = [*model.named_parameters(), *model.named_buffers()]
    compare(exchange, {f"the model's {name}": (described(tensor), MODEL) for name, tensor in tensors})
    if values:
        compare(exchange, {f"the values of the model's {name}": (sampled(tensor), VALUES) for name, tensor in tensors})


def sampled(tensor: torch.Tensor) -> str:
    """Return a hash of some values from all over a tensor; it takes microseconds, whatever its size."""
    flat = tensor.detach().reshape(-1)
    # Odd: of a matrix it would take one column alone.
    step = -(-flat.numel() // SAMPLED) | 1
    some = flat[::step].cpu().contiguous()
    return digest_of(as_bytes(some).numpy().tobytes())[:DIGITS]


def described(tensor: torch.Tensor) -> str:
    """Return shape and type of a tensor, and whether it is trained."""
    kind = str(tensor.dtype).removeprefix("torch.")
    return f"{kind} {'x'.join(map(str, tensor.shape)) or 'scalar'}" + (", trained" if tensor.requires_grad else "")


def compare(exchange: Exchange, compared: Compared) -> None:
    """Compare values with those of all other processes, which call it together; a process without any is left out.

    Raises:
        SharedUserError: they differ.
    """
    mine = {name: json.dumps(value, default=str) for name, (value, _) in compared.items()}
    digests = exchange(digest_of(mine) if compared else None)
    if len({digest for digest in digests if digest is not None}) <= 1:
        return
    answers = exchange((socket.gethostname(), mine or None, {name: advice for name, (_, advice) in compared.items()}))
    by_rank = {rank: (host, theirs) for rank, (host, theirs, _) in enumerate(answers) if theirs is not None}
    # All processes raise the same, also those that are not compared.
    advised = {name: advice for *_, theirs in answers for name, advice in theirs.items()}
    names = dict.fromkeys(name for _, theirs in by_rank.values() for name in theirs)
    problems: dict[str, list[str]] = {}
    for name in names:
        values: dict[str, dict[int, str]] = {}
        for rank, (host, theirs) in by_rank.items():
            values.setdefault(theirs.get(name, NOTHING), {})[rank] = host
        if len(values) > 1:
            each = ", ".join(f"{shown(value)} in {processes(who)}" for value, who in values.items())
            problems.setdefault(advised[name], []).append(f"{name} ({each})")
    raise SharedUserError(*(f"{what_differs(found)}; {advice}" for advice, found in problems.items()))


def what_differs(found: list[str]) -> str:
    """Return the message: what differs, the first of it with all values."""
    more = [entry.partition(" (")[0] for entry in found[MOST_SHOWN:]]
    rest = f", and {len(more)} more: {', '.join(more[:MOST_SHOWN])}" + (" ..." if len(more) > MOST_SHOWN else "")
    return f"the processes differ in {', '.join(found[:MOST_SHOWN])}" + (rest if more else "")


def shown(value: str) -> str:
    """Return a value, given as JSON, as a user would write it."""
    return NOTHING if value == NOTHING else show(json.loads(value))


def processes(hosts: Mapping[int, str]) -> str:
    """Return the numbers of processes, with the machine that each is on."""
    machines: dict[str, list[int]] = {}
    for rank, host in hosts.items():
        machines.setdefault(host, []).append(rank)
    return " and ".join(
        f"process{'es' if len(ranks) > 1 else ''} {ranges(ranks)} on {host}" for host, ranks in machines.items()
    )


def ranges(numbers: Iterable[int]) -> str:
    """Return whole numbers in order, runs of them shortened: 0-3, 6."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
