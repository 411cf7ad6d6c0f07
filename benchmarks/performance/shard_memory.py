"""What a process needs beyond its shard to write and read a checkpoint of a state that is spread over four processes.

    python benchmarks/performance/shard_memory.py
        400 MB of weights and averages over four processes: a minute and a half on two cores

Nothing is trained: 34 million weights and AdamW's averages are laid out as each strategy lays them, written, and read
again in every layout. Each process samples its own memory every 2 ms: the memory that it took (RssAnon and what it
shares with nobody else in RssShmem), and the pages of files that it looks at (RssFile), which the system takes back
when it needs them. Exits with 1 if a process takes 8 MB more than its part, and than the copy that is written of it.
"""

import argparse
import ctypes
import gc
import json
import os
import socket
import sys
import threading
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

import torch
import torch._dynamo  # loaded by sharding: before the fork it is loaded once
from machine import machine, table
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

from toolkit.checkpoint.exchange import Exchange
from toolkit.checkpoint.format import inspect, read_state
from toolkit.checkpoint.load import load_checkpoint
from toolkit.checkpoint.resume import Start
from toolkit.checkpoint.state_dict import content_of
from toolkit.checkpoint.writer import PartWriter, Saver, Writer
from toolkit.config.schema import Config
from toolkit.distributed.runtime import Runtime
from toolkit.distributed.shards import local_of
from toolkit.distributed.start_runtime import start_runtime
from toolkit.models.parameters import weights_of
from toolkit.output.ledger import Ledger
from toolkit.output.run_folder import RunFolder

PROCESSES = 4
LAYERS, WIDTH = 8, 2048
STEP = 1
WHILE_WRITING, WHILE_READING = 8e6, 8e6
"""Bytes beyond the part of a process, and beyond its copy while it writes."""


def full_shard(model: torch.nn.Sequential, mesh: DeviceMesh) -> None:
    """Shard over all four."""
    for layer in model:
        fully_shard(layer, mesh=mesh)


def hybrid(model: torch.nn.Sequential, mesh: DeviceMesh) -> None:
    """Shard over two, twice."""
    full_shard(model, mesh)


def tensor_and_shard(model: torch.nn.Sequential, mesh: DeviceMesh) -> None:
    """Split every layer over two, and shard the halves over two."""
    plan: dict[str, ParallelStyle] = {
        str(n): ColwiseParallel() if n % 2 == 0 else RowwiseParallel() for n in range(LAYERS)
    }
    parallelize_module(model, mesh["inner"], plan)
    full_shard(model, mesh["outer"])


LAYOUTS: dict[str, tuple[tuple[int, ...], Callable[[torch.nn.Sequential, DeviceMesh], None]]] = {
    "FSDP2 over 4": ((4,), full_shard),
    "hybrid 2 x 2": ((2, 2), hybrid),
    "tensor 2 x FSDP2 2": ((2, 2), tensor_and_shard),
}


class State:
    """A model and its optimizer, of which this process never holds more than its part."""

    def __init__(self, layout: str, averages: bool) -> None:
        with torch.device("meta"):
            self.model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
        sizes, spread = LAYOUTS[layout]
        spread(self.model, init_device_mesh("cpu", sizes, mesh_dim_names=("outer", "inner")[: len(sizes)]))
        self.model.to_empty(device="cpu")
        for tensor in weights_of(self.model).values():
            local_of(tensor).normal_()
        groups: dict[DeviceMesh, list[torch.Tensor]] = {}
        for parameter in self.model.parameters():
            assert isinstance(parameter, DTensor)
            groups.setdefault(parameter.device_mesh, []).append(parameter)
        self.optimizer = torch.optim.AdamW([{"params": members} for members in groups.values()], fused=True)
        for parameter in self.model.parameters() if averages else ():
            kept = {"exp_avg": torch.zeros_like(parameter), "exp_avg_sq": torch.ones_like(parameter)}
            self.optimizer.state[parameter] = {"step": torch.tensor(1.0), **kept}

    @property
    def bytes(self) -> int:
        """The size of what this process holds of weights and averages together."""
        return 3 * sum(local_of(t).nbytes for t in weights_of(self.model).values())


class Memory:
    """Samples the memory of this process as long as it is entered."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.most: dict[str, int] = {}
        self.before: dict[str, int] = {}

    def __enter__(self) -> "Memory":
        gc.collect()
        # What was let go of before would be used again and not be seen.
        ctypes.CDLL("libc.so.6").malloc_trim(0)
        self.before = memory()
        self.most = dict(self.before)
        self.thread = threading.Thread(target=self.sample)
        self.thread.start()
        return self

    def sample(self) -> None:
        """Look again and again."""
        while not self.over.wait(0.002):
            self.most = {name: max(value, self.most[name]) for name, value in memory().items()}

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.over.set()
        self.thread.join()

    @property
    def more(self) -> dict[str, int]:
        """The largest size of each kind less what it was before."""
        return {name: self.most[name] - self.before[name] for name in self.most}


def memory() -> dict[str, int]:
    """Return the bytes of memory of its own and of file pages that this process has in memory."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    found = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.startswith("Rss")}
    return {"own": found["RssAnon"] + found["RssShmem"], "files": found["RssFile"]}


def write(folder: Path, state: State, runtime: Runtime) -> tuple[Memory, int]:
    """Write a checkpoint; return what it took, and the size of the files that this process wrote."""
    exchange = Exchange(runtime.rank, runtime.watchdog.store) if runtime.watchdog.store is not None else None
    assert exchange is not None
    writer: Writer = PartWriter(RunFolder(folder), exchange)
    if runtime.is_main:
        folder.mkdir()
        writer = Saver(RunFolder(folder), Ledger(folder / "ledger.jsonl"), keep=1, exchange=exchange)
    runtime.together(lambda: None)
    with Memory() as taken:
        writer.save(
            STEP,
            lambda: content_of(state.model, state.optimizer, STEP, 0.0, {"frozen": None, "pending": None}, runtime),
        )
        writer.wait()
    assert writer.failure is None, writer.failure
    runtime.together(lambda: None)
    return taken, sum(staging_buffer.content.nbytes for staging_buffer in writer.staging_buffers.values())


def read(folder: Path, state: State, runtime: Runtime) -> Memory:
    """Read a checkpoint; return what it took."""
    checkpoint = folder / "checkpoints" / f"step-{STEP:06d}"
    if runtime.is_main:
        inspect(checkpoint)
    start = Start(step=STEP, checkpoint=checkpoint, state=read_state(checkpoint))
    runtime.together(lambda: None)
    with Memory() as taken:
        load_checkpoint(start, state.model, state.optimizer, runtime, None)
    return taken


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
    writing, reading = [], []
    for layout in LAYOUTS:
        state = State(layout, averages=True)
        taken, copied = write(folder / layout, state, runtime)
        writing.append((layout, runtime.gather_all((state.bytes, copied, taken.more["own"] - copied))))
        del state
    for source in LAYOUTS:
        for layout in LAYOUTS:
            state = State(layout, averages=False)
            taken = read(folder / source, state, runtime)
            # The weights were there before: what was read in addition are the averages.
            beyond = taken.more["own"] - state.bytes * 2 // 3
            reading.append((source, layout, runtime.gather_all((state.bytes, beyond, taken.more["files"]))))
            del state
    if runtime.is_main:
        (folder / "outcome.json").write_text(json.dumps({"writing": writing, "reading": reading}), encoding="utf-8")
    runtime.close()


def most(column: int, rows: list[list[int]]) -> int:
    """Return the largest value of a column."""
    return max(row[column] for row in rows)


def megabytes(size: float) -> str:
    """Return a size in MB."""
    return f"{size / 1e6:.1f}"


def main() -> None:
    """Measure and print."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
    with TemporaryDirectory() as name:
        context = get_context("fork")
        processes = [context.Process(target=work, args=(rank, port, Path(name))) for rank in range(PROCESSES)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        if any(process.exitcode for process in processes):
            sys.exit(1)
        outcome = json.loads((Path(name) / "outcome.json").read_text(encoding="utf-8"))
    whole = 3 * 4 * LAYERS * (WIDTH * WIDTH + WIDTH)
    print(f"# Memory beyond the shard, of a state of {megabytes(whole)} MB over {PROCESSES} processes\n\n{machine()}\n")
    print("MB, of the process that has the most of it. Writing: the copy is made while training stands still.\n")
    columns = ["written as", "part of a process", "copy that is written", "more than part and copy"]
    rows = [[layout, *(megabytes(most(n, found)) for n in range(3))] for layout, found in outcome["writing"]]
    print(table(columns, rows))
    columns = ["written as", "read as", "part of a process", "more than the part", "file pages looked at"]
    print("\nReading, into weights that are there already and averages that are not:\n")
    rows = [[a, b, *(megabytes(most(n, found)) for n in range(3))] for a, b, found in outcome["reading"]]
    print(table(columns, rows))
    if any(most(2, found) > WHILE_WRITING for _, found in outcome["writing"]):
        sys.exit(1)
    if any(most(1, found) > WHILE_READING for _, _, found in outcome["reading"]):
        sys.exit(1)


if __name__ == "__main__":
    main()
