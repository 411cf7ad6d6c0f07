"""The training that `kill_matrix.py` kills: small, with dropout, evaluation and many checkpoints; and the killing.

    KILL_AT="in the forward pass:17" KILL_RANK=1 python benchmarks/fault_tolerance/kill_recipe.py --output runs/killed

It kills itself where KILL_AT says: a phase of the training or of a checkpoint by its name, and at which time of coming
there. Nothing in the toolkit knows of this: what it does is listened to from outside. KILL_GROUP=1 kills all processes
of the run together (those that have the same parent), otherwise this one alone dies.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.nn.functional as F
from tiny import Points, collate

from toolkit import BatchConfig, CheckpointConfig, Config, EvaluateConfig, OptimConfig, Task, TaskData, fine_tune

# A phase of the training is what the run says that it does; a phase of a checkpoint is a function that writes one.
PHASES = {
    "reading data": "before the first step: reading data",
    "preparing the model": "before the first step: preparing",
    "begin": "before the first step: between run.json and config.yaml",
    "agreeing with the others": "agreeing with the others",
    "waiting for data": "waiting for data",
    "epoch edge": "at the epoch edge: waiting for the first batch of the next one",
    "last step": "at the last step: in its forward pass",
    "in the forward pass": "in the forward pass",
    "in the backward pass": "in the backward pass",
    "between micro-batches": "between micro-batches",
    "in the optimizer step": "in the optimizer step",
    "preparing an evaluation": "at the start of an evaluation",
    "evaluating batch 2": "in an evaluation",
    "computing metrics": "computing metrics",
    "copying the state for a checkpoint": "save: copying the state",
    "checkpoint: begin": "save: before anything is written",
    "checkpoint: weights.safetensors": "save: before the weights",
    "checkpoint: optimizer.safetensors": "save: before the optimizer's state",
    "checkpoint: middle of a file": "save: in the middle of a file",
    "checkpoint: state.json": "save: before state.json",
    "checkpoint: manifest.json": "save: before the manifest",
    "checkpoint: middle of the manifest": "save: in the middle of the manifest",
    "checkpoint: rename": "save: before the renaming",
    "checkpoint: renamed": "save: after the renaming",
    "checkpoint: retire": "save: while an old one is deleted",
    "ledger row": "in the middle of a ledger row",
    "writing the model": "after the last step: writing the model",
}


# 211 samples in batches of 16, three epochs.
STEPS, EDGES = 42, (15, 29)


@dataclass(frozen=True)
class Killed(Config):
    batch: BatchConfig = BatchConfig(size=16, micro=4, balance=False, eval=16)
    """How many samples a step takes and how they are cut."""
    optim: OptimConfig = OptimConfig(lr=0.03)
    """How the weights are changed."""
    evaluate: EvaluateConfig = EvaluateConfig(every=6)
    """When the model is evaluated."""
    checkpoint: CheckpointConfig = CheckpointConfig(every=5)
    """When the run is written down."""
    dropout: float = 0.2
    """Probability of dropout."""


class Counter:
    """Counts how often each phase is come to, and kills where it was told to."""

    def __init__(self, at: str) -> None:
        self.phase, _, time = at.rpartition(":")
        self.left = int(time)
        self.lock = threading.Lock()

    def reached(self, phase: str) -> None:
        """Take note of a phase."""
        if phase != self.phase:
            return
        with self.lock:
            self.left -= 1
            if self.left == 0:
                kill()


def kill() -> None:
    """End this process, or all of the run, with a signal that nothing can catch."""
    me = psutil.Process()
    if os.environ.get("KILL_GROUP") and "TORCHELASTIC_RUN_ID" in os.environ:
        for other in me.parent().children():
            if other.pid != me.pid:
                other.send_signal(signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def listen(counter: Counter) -> None:
    """Have the counter told of every phase."""
    import toolkit.checkpoint.format as checkpoint
    from toolkit.checkpoint.staging import StagingBuffer
    from toolkit.distributed.phase import PhaseTracker
    from toolkit.output.ledger import Ledger

    tell = PhaseTracker.__call__
    previous = ""

    def told(self: PhaseTracker, what: str, step: int | None = None, *rest: Any, **more: Any) -> None:
        nonlocal previous
        tell(self, what, step, *rest, **more)
        if what == "waiting for data" and step in EDGES:
            counter.reached("epoch edge")
        if what == "in the forward pass" and step == STEPS:
            counter.reached("last step")
        if previous == "in the backward pass" and what == "in the forward pass":
            counter.reached("between micro-batches")
        previous = what
        counter.reached(what)

    def before(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def changed(*arguments: Any) -> Any:
            counter.reached(name)
            return function(*arguments)

        return changed

    write, flushed, row, rename = StagingBuffer.write, checkpoint.write_flushed, Ledger.write, Path.rename

    def write_snapshot(self: StagingBuffer, path: Path) -> tuple[int, str]:
        counter.reached(f"checkpoint: {path.name}")
        result = write(self, path)
        if counter.phase == "checkpoint: middle of a file":
            os.truncate(path, path.stat().st_size // 2)
            counter.reached("checkpoint: middle of a file")
            write(self, path)
        return result

    def write_flushed(path: Path, content: bytes) -> Any:
        counter.reached(f"checkpoint: {path.name}")
        if counter.phase == "checkpoint: middle of the manifest" and path.name == "manifest.json":
            flushed(path, content[: len(content) // 2])
            counter.reached("checkpoint: middle of the manifest")
        return flushed(path, content)

    def rename_folder(self: Path, target: Path) -> Path:
        if self.name.endswith(".partial") and self.name.startswith("step-"):
            counter.reached("checkpoint: rename")
            renamed = rename(self, target)
            counter.reached("checkpoint: renamed")
            return renamed
        return rename(self, target)

    def remove(path: Path, **more: Any) -> None:
        if str(path).endswith(".retired"):
            next(Path(path).iterdir()).unlink()
            counter.reached("checkpoint: retire")
        import shutil

        shutil.rmtree(path, **more)

    def write_row(self: Ledger, values: Any) -> None:
        if counter.phase == "ledger row":
            place = self.file.tell()
            self.file.write(b'{"step": 1')
            self.file.flush()
            counter.reached("ledger row")
            self.file.seek(place)
            self.file.truncate()
        row(self, values)

    class Removing:
        rmtree = staticmethod(remove)

    PhaseTracker.__call__ = told  # type: ignore[method-assign]
    StagingBuffer.write = write_snapshot  # type: ignore[method-assign]
    Ledger.write = write_row  # type: ignore[method-assign]
    Path.rename = rename_folder  # type: ignore[method-assign]
    checkpoint.write_flushed = write_flushed
    checkpoint.shutil = Removing  # type: ignore[assignment]
    # Bound by name where it is used.
    import toolkit.checkpoint.writer
    import toolkit.run_record

    toolkit.run_record.write_whole = before("begin", toolkit.run_record.write_whole)
    toolkit.checkpoint.writer.write_checkpoint = before("checkpoint: begin", checkpoint.write_checkpoint)


class Network(torch.nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.inner, self.outer = torch.nn.Linear(4, 32), torch.nn.Linear(32, 1)
        self.dropout = torch.nn.Dropout(dropout)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.outer(self.dropout(torch.tanh(self.inner(inputs)))).squeeze(-1)


def task(config: Killed) -> Task:
    def export(module: torch.nn.Module, folder: Path, results: Any) -> None:
        from safetensors.torch import save_file

        folder.mkdir()
        save_file(module.state_dict(), folder / "model.safetensors")

    return Task(
        model=lambda runtime: Network(config.dropout),
        data=TaskData(train=Points(211, 1), evaluate=Points(53, 2)),
        collate=collate,
        units=lambda batch: len(batch["labels"]),
        loss=lambda model, batch: F.mse_loss(model(batch["inputs"]), batch["labels"], reduction="sum"),
        export=export,
    )


if __name__ == "__main__":
    # Beside this file, not installed.
    sys.path.insert(0, str(Path(__file__).parent))
    if "KILL_AT" in os.environ and os.environ.get("RANK", "0") == os.environ.get("KILL_RANK", "0"):
        listen(Counter(os.environ["KILL_AT"]))
    fine_tune(Killed, task)
