"""A small model and its optimizer, spread over four processes in several ways; each way writes, and reads what the
others wrote.

As a script it forks these processes and writes down in outcome.json what came of it. Their values are known beforehand,
so that whatever is read is held against what torch itself makes of them.
"""

import errno
import gc
import json
import os
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo  # loaded by sharding: before the fork it is loaded once
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from toolkit.checkpoint.exchange import Exchange
from toolkit.checkpoint.format import read_state
from toolkit.checkpoint.load import load_checkpoint
from toolkit.checkpoint.resume import Start
from toolkit.checkpoint.sharded import check_folder_is_shared, shard_map_of, whole_weights
from toolkit.checkpoint.state_dict import content_of
from toolkit.checkpoint.writer import PartWriter, Saver, Writer
from toolkit.config.optim import OptimConfig
from toolkit.config.schema import Config
from toolkit.distributed.mesh import Strategy
from toolkit.distributed.runtime import Runtime
from toolkit.distributed.shards import all_of, local_of, shard_of
from toolkit.distributed.start_runtime import start_runtime
from toolkit.errors import SharedUserError, UserError
from toolkit.evaluation import share_buffers
from toolkit.models.parameters import parameter_names, weights_of
from toolkit.optimizer import begin_averages, build_optimizer, take_into_average
from toolkit.output.ledger import Ledger
from toolkit.output.run_folder import RunFolder, sealed_folders

PROCESSES = 4
KEYS = ("exp_avg", "exp_avg_sq", "average")
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adamw": {"name": "adamw", "layer_decay": 0.5},
    "sgd": {"name": "sgd"},
    "adafactor": {"name": "adafactor", "layer_decay": 0.5},
    "muon": {"name": "muon"},
}
AVERAGE = 0.6


class Small(torch.nn.Module):
    """Sizes that no number of processes divides, a part for which there are fewer rows than processes, and a tied
    weight."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embedding = torch.nn.Embedding(13, 6)
        self.wide = torch.nn.Linear(6, 10)
        self.narrow = torch.nn.Linear(10, 6)
        self.norm = torch.nn.LayerNorm(6)
        self.few = torch.nn.Parameter(torch.randn(2, 3))
        # As large as what Adafactor keeps of its rows.
        self.column = torch.nn.Parameter(torch.randn(7, 1))
        self.layers = torch.nn.ModuleList(
            torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Linear(16, 15)) for _ in range(2)
        )
        self.frozen = torch.nn.Parameter(torch.randn(5), requires_grad=False)
        self.head = torch.nn.Linear(6, 13, bias=False)
        self.head.weight = self.embedding.weight
        self.coarse = torch.nn.Parameter(torch.randn(7).bfloat16())
        self.register_buffer("count", torch.tensor(seed))
        self.register_buffer("scratch", torch.zeros(3), persistent=False)
        for parameter in self.parameters():
            # Torch begins some of them with ones and zeros.
            parameter.data.normal_()


@cache
def mesh_of(*sizes: int) -> DeviceMesh:
    """Return a mesh, made once: each makes process groups."""
    return init_device_mesh("cpu", sizes, mesh_dim_names=("outer", "inner")[: len(sizes)])


def whole(model: Small) -> None:
    """Spread nothing."""


def full_shard(model: Small) -> None:
    """Shard over all four, one layer apart."""
    fully_shard(model.wide, mesh=mesh_of(4))
    fully_shard(model, mesh=mesh_of(4))


def hybrid(model: Small) -> None:
    """Shard over two, twice."""
    fully_shard(model, mesh=mesh_of(2, 2))


def tensor_and_shard(model: Small) -> None:
    """Split two layers over two and shard over two: the other weights know nothing of the split."""
    tensor(model)
    fully_shard(model, mesh=mesh_of(2, 2)["outer"])


PLAN = {"wide": ColwiseParallel(), "narrow": RowwiseParallel()}
PLAN |= {"layers.0.0": ColwiseParallel(), "layers.0.1": RowwiseParallel()}


def tensor(model: Small) -> None:
    """Split two layers over two, twice; all else is whole everywhere."""
    parallelize_module(model, mesh_of(2, 2)["inner"], PLAN)


WAYS: dict[str, Callable[[Small], None]] = {
    "full": full_shard,
    "hybrid": hybrid,
    "tensor and shard": tensor_and_shard,
    "tensor": tensor,
}


@dataclass
class State:
    """A model with its optimizer."""

    model: Small
    optimizer: torch.optim.Optimizer


def state(seed: int, way: Callable[[Small], None]) -> State:
    """Return a state whose values follow from a number, spread in some way."""
    model = Small(seed)
    way(model)
    groups: dict[tuple[object, ...], dict[str, Any]] = {}
    for parameter in (p for p in model.parameters() if p.requires_grad):
        # One kernel takes no list of tensors that are spread in several ways.
        mesh = parameter.device_mesh if isinstance(parameter, DTensor) else None
        decayed = parameter.ndim >= 2
        group = {"params": [], "weight_decay": 0.1 * decayed, "decayed": decayed}
        groups.setdefault((decayed, mesh), group)["params"].append(parameter)
    optimizer = torch.optim.AdamW(groups.values(), lr=0.1 * seed, fused=True)
    for parameter, name in parameter_names(model).items():
        if parameter.requires_grad:
            # What of the averages lies here is cut out as the weight is, which torch has cut.
            optimizer.state[parameter] = {"step": torch.tensor(float(seed))}
            if parameter.ndim > 1:
                generator = torch.Generator().manual_seed(seed + sum(map(ord, name)))
                rows = torch.randn([*parameter.shape[:-1], 1], generator=generator)
                optimizer.state[parameter]["row_var"] = rows.to(parameter.dtype)
            for key in KEYS:
                generator = torch.Generator().manual_seed(seed + sum(map(ord, name + key)))
                values = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)
                place = torch.zeros_like(parameter)
                shard = shard_of(parameter)
                assert shard is not None
                local_of(place).copy_(values[shard.within(all_of(parameter.shape))])
                optimizer.state[parameter][key] = place
    return State(model, optimizer)


def scramble(made: State) -> None:
    """Leave nothing of the values of a state."""
    for tensor in weights_of(made.model).values():
        local_of(tensor).fill_(-1)
    made.optimizer.state.clear()
    for group in made.optimizer.param_groups:
        group["lr"] = -1.0


def settings(made: State) -> list[tuple[str, float, float]]:
    """Return the settings of each parameter."""
    names = parameter_names(made.model)
    return sorted(
        (names[parameter], group["lr"], group["weight_decay"])
        for group in made.optimizer.param_groups
        for parameter in group["params"]
    )


def same(a: State, b: State) -> bool:
    """Return whether what this process holds of two states that are spread alike is equal bit for bit."""
    pairs = [(x, y) for x, y in zip(weights_of(a.model).values(), weights_of(b.model).values(), strict=True)]
    for x, y in zip(parameter_names(a.model), parameter_names(b.model), strict=True):
        if x.requires_grad:
            assert a.optimizer.state[x].keys() == b.optimizer.state[y].keys()
            pairs += [(value, b.optimizer.state[y][key]) for key, value in a.optimizer.state[x].items()]
    assert all(type(x) is type(y) for x, y in pairs)
    return settings(a) == settings(b) and all(torch.equal(local_of(x), local_of(y)) for x, y in pairs)


def writer(folder: Path, runtime: Runtime, shared: bool) -> Writer:
    """Return what writes checkpoints in this process."""
    exchange = Exchange(runtime.rank, runtime.watchdog.store) if shared and runtime.watchdog.store is not None else None
    if not runtime.is_main:
        assert exchange is not None
        return PartWriter(RunFolder(folder), exchange)
    return Saver(RunFolder(folder), Ledger(folder / "ledger.jsonl"), keep=2, exchange=exchange)


def save(folder: Path, made: State, runtime: Runtime, step: int = 1) -> Exception | None:
    """Write a checkpoint; return what went wrong, in the main process."""
    sharded = None if shard_map_of(weights_of(made.model), runtime).is_whole else runtime
    saver = writer(folder, runtime, sharded is not None)
    facts = {"frozen": "of frozen weights", "pending": None}
    saver.save(step, lambda: content_of(made.model, made.optimizer, step, 0.5, facts, sharded))
    saver.wait()
    runtime.together(lambda: None)
    return saver.failure


def read(folder: Path, made: State, runtime: Runtime) -> None:
    """Put the newest checkpoint of a folder into a state."""
    newest = sealed_folders(folder / "checkpoints")[0]
    start = Start(step=1, checkpoint=newest, state=read_state(newest))
    load_checkpoint(start, made.model, made.optimizer, runtime, "of frozen weights")


def refuse(*arguments: Any) -> Any:
    """Stand for whatever may not be called."""
    raise AssertionError("something was unpickled")


def all_ways(folder: Path, runtime: Runtime) -> dict[str, Any]:
    """Write and read in each way; return what came of it, in the main process."""
    outcome: dict[str, Any] = {}
    right = {name: state(1, way) for name, way in {**WAYS, "whole": whole}.items()}
    expected = Small(1).state_dict()
    for name in WAYS:
        problem = save(folder / name, right[name], runtime)
        assert problem is None, problem
        made = whole_weights(right[name].model, runtime)
        outcome[f"{name}, gathered"] = not runtime.is_main or (
            list(made) == list(expected)
            and all(torch.equal(made[key], expected[key]) for key in expected)
            and made["head.weight"] is made["embedding.weight"]
        )
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(torch, "load", refuse)
        for name, way in {**WAYS, "whole": whole}.items():
            fresh = state(2, way)
            for source in ("whole", *WAYS):
                scramble(fresh)
                read(folder / source, fresh, runtime)
                outcome[f"{source} to {name}"] = all(runtime.gather_all(same(fresh, right[name])))
    return outcome


def failing(folder: Path, runtime: Runtime) -> dict[str, Any]:
    """Have processes fail while they write; return what the main one says."""
    made, said = state(1, full_shard), {}
    sync = os.fsync

    def full_disk(handle: int) -> None:
        if "full-disk" in str(Path(f"/proc/self/fd/{handle}").readlink()):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(handle)

    def broken(handle: int) -> None:
        raise ZeroDivisionError

    for name, ranks, failure in (
        ("full-disk", (2,), full_disk),
        ("full-disk-of-main", (0,), full_disk),
        ("defect", (1, 3), broken),
    ):
        with pytest.MonkeyPatch.context() as monkeypatch:
            if runtime.rank in ranks:
                monkeypatch.setattr(os, "fsync", failure)
            problem = save(folder / name, made, runtime, step=7)
        left = [path.name for path in (folder / name / "checkpoints").iterdir()] if runtime.is_main else []
        said[name] = [type(problem).__name__, str(problem), left]
    return said


def seeing(folder: Path, runtime: Runtime) -> dict[str, Any]:
    """Look for the run folder from processes that see another one than the main process does."""
    said: dict[str, Any] = {}
    for name, way, blind in (("full", full_shard, (2, 3)), ("hybrid", hybrid, (2, 3)), ("seen", full_shard, ())):
        place = RunFolder(folder / "elsewhere" if runtime.rank in blind else folder / "seen")
        if runtime.is_main:
            place.claim()
        try:
            check_folder_is_shared(place, state(1, way).model, runtime, patience=0.0)
            said[name] = None
        except UserError as error:
            said[name] = str(error)
        runtime.together(lambda: None)
        place.release()
    return said


def failing_alone(runtime: Runtime) -> str:
    """Have a process fail where the others wait for it; return what it raises, in the main process."""
    store = runtime.watchdog.store
    assert store is not None

    def wait_for_one() -> None:
        if runtime.rank == 1:
            raise ZeroDivisionError("alone")
        store.wait(["released"])

    said = "nothing"
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr("toolkit.distributed.runtime.SECONDS_TO_FOLLOW", 0.2)
        try:
            runtime.together(wait_for_one, talking=True)
        except ZeroDivisionError as error:
            said = str(error)
            # In a run this process would end all others.
            store.set("released", "")
            runtime.together(lambda: None)
    return str(runtime.gather_all(said)[1])


def failing_alike(runtime: Runtime) -> list[str]:
    """Have all processes refuse the same while they communicate; return what each says."""

    def refuse_it() -> None:
        raise UserError("not like this")

    try:
        runtime.together(refuse_it, talking=True)
    except SharedUserError as error:
        return runtime.gather_all(str(error))
    return []


def trained(way: Callable[[Small], None], kind: str) -> tuple[Small, dict[str, torch.Tensor]]:
    """Return a model after two steps whose gradients are known beforehand, and two that a gradient kept it from, and
    the average of its weights."""
    model = Small(1)
    way(model)
    config = OptimConfig(lr=0.1, weight_decay=0.1, average=AVERAGE, **OPTIMIZERS[kind])
    optimizer = build_optimizer(config, model)
    begin_averages(optimizer)
    for step, is_finite in enumerate((False, True, False, True)):
        for group in optimizer.param_groups:
            group["lr"] = config.rate * group["rate_factor"]
        for number, parameter in enumerate(p for p in model.parameters() if p.requires_grad):
            generator = torch.Generator().manual_seed(100 * step + number)
            values = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)
            values[...] = values if is_finite else torch.nan
            shard = shard_of(parameter)
            assert shard is not None
            parameter.grad = torch.zeros_like(parameter)
            local_of(parameter.grad).copy_(values[shard.within(all_of(parameter.shape))])
        optimizer.found_inf = torch.tensor(0.0 if is_finite else 1.0)  # type: ignore[attr-defined]
        optimizer.step()
        take_into_average(optimizer, AVERAGE, torch.tensor(1.0 if is_finite else torch.nan))
    names = parameter_names(model)
    return model, {names[parameter]: entries["average"] for parameter, entries in optimizer.state.items()}


def training(runtime: Runtime) -> dict[str, bool]:
    """Return whether each optimizer does to the part of a weight here what it does to all of it in one process."""
    alike = {}
    for kind in OPTIMIZERS:
        model, expected = trained(whole, kind)
        averaged = set(expected)
        expected |= {f"{key} itself": parameter for key, parameter in model.named_parameters()}
        for name, way in WAYS.items():
            model, found = trained(way, kind)
            found |= {f"{key} itself": parameter for key, parameter in model.named_parameters()}
            shards = [
                (local_of(p), expected[key][shard.within(all_of(p.shape))])
                for key, p in found.items()
                if (shard := shard_of(p))
            ]
            here = len(shards) == len(expected) and all(torch.allclose(a, b, atol=1e-6) for a, b in shards)
            here = here and averaged == {key for key in found if "itself" not in key}
            alike[f"{kind}, {name}"] = all(runtime.gather_all(here))
    return alike


def averages(runtime: Runtime) -> list[float]:
    """Return the running averages of all processes where each has taken other samples into its own, before an
    evaluation."""
    model = torch.nn.BatchNorm1d(2)
    assert model.running_mean is not None
    model.running_mean.fill_(5.0 + runtime.rank)
    share_buffers(model, replace(runtime, strategy=Strategy(sharded=True, shard=PROCESSES)))
    return runtime.gather_all(float(model.running_mean[0]))


def work(rank: int, port: int, folder: Path) -> None:
    """Be one of the processes."""
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(PROCESSES),
        "LOCAL_WORLD_SIZE": str(PROCESSES),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "ACCELERATE_USE_CPU": "true",
    }
    runtime = start_runtime(Config(threads=1))
    outcome = {
        "ways": all_ways(folder, runtime),
        "failing": failing(folder, runtime),
        "seeing": seeing(folder, runtime),
        "failing alike": failing_alike(runtime),
        "training": training(runtime),
        "averages": averages(runtime),
        # The last: the processes do not come through it together.
        "failing alone": failing_alone(runtime),
    }
    if runtime.is_main:
        (folder / "outcome.json").write_text(json.dumps(outcome), encoding="utf-8")
    runtime.close()


def fork(target: Callable[..., None], *arguments: Any) -> list[int | None]:
    """Run a function in four processes and return their exit codes; the libraries are loaded once."""
    # What is loaded stays: no process looks through it again when it ends.
    gc.freeze()
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
    processes = [get_context("fork").Process(target=target, args=(rank, port, *arguments)) for rank in range(PROCESSES)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return [process.exitcode for process in processes]


if __name__ == "__main__":
    sys.exit(max(abs(code or 0) for code in fork(work, Path(sys.argv[1]))))
