"""What tests of stopping and going on share: a tiny run in this process that something happens to, and what it came
to."""

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tiny_recipe import Tiny, task
from trial import Outcome, run_here, state_of

from toolkit.checkpoint.format import DamagedError, inspect
from toolkit.output.ledger import chained
from toolkit.output.run_folder import sealed_folders, step_of
from toolkit.task import Batch, Task

# A second one waits for the first longer than these sizes take.
ONE_THREAD = ("--threads", "1")
# A step is one micro-batch then, unless batch.micro is given.
UNBALANCED = ("--batch.balance", "false")
# What happens in a batch is counted: those of a trial would count too.
UNREHEARSED = ("--rehearse", "false")
# (Operations are counted anew in each start, and known from its later steps on.)
CLOCKS = ("seconds", "waiting", "saving", "host_memory", "device_memory", "flops")

Build = Callable[[Tiny], Task]
Act = Callable[[], object]


@dataclass(frozen=True)
class Numbers:
    """All numbers that a run came to; equal means bit for bit."""

    weights: dict[str, bytes]
    rows: list[dict[str, Any]]


def run(folder: Path, *arguments: str | Path, build: Build = task) -> Outcome:
    """Run the tiny recipe in this process, 12 steps in 2 epochs unless the arguments say otherwise."""
    words = [str(argument) for argument in arguments]
    usual = [*([] if "--batch.balance" in words else UNBALANCED), *([] if "--rehearse" in words else UNREHEARSED)]
    return run_here(Tiny, build, [*usual, *ONE_THREAD, *words], folder)


def numbers(folder: Path) -> Numbers:
    """Return the weights of a finished run as bytes, and its ledger without the clocks."""
    weights = load_file(folder / "model" / "model.safetensors")
    content = {name: tensor.numpy().tobytes() for name, tensor in weights.items()}
    return Numbers(content, rows_of(folder / "ledger.jsonl"))


def rows_of(ledger: Path, before: str = "") -> list[dict[str, Any]]:
    """Return the rows of a ledger but for clocks and memory; its chain, begun after the link `before`, has to hold."""
    rows = []
    for line in ledger.read_bytes().splitlines():
        row = json.loads(line)
        link = row.pop("chain")
        assert link == chained(before, row)
        before = link
        rows.append({key: value for key, value in row.items() if key not in CLOCKS})
    return rows


@cache
def undisturbed(*arguments: str) -> Numbers:
    """Return what a run comes to that nothing happens to; each step is in its ledger once."""
    with TemporaryDirectory() as folder:
        found = numbers(run(Path(folder) / "run", *arguments).done().folder)
    assert [row["step"] for row in found.rows] == list(range(1, len(found.rows) + 1))
    return found


def acting(act: Act, training: int | None = None, evaluating: int | None = None, build: Build = task) -> Build:
    """Return a task that does something in its so-and-so-many-th batch, counted in each start of the run.

    The first batch of training is the one that is tried before any step, so that number n is the step n - 1 of a start.
    """

    def built(config: Tiny) -> Task:
        made, batches = build(config), {True: 0, False: 0}

        def loss(model: Any, batch: Batch) -> torch.Tensor:
            trains = torch.is_grad_enabled()
            batches[trains] += 1
            if batches[trains] == (training if trains else evaluating):
                act()
            return made.loss(model, batch)

        return replace(made, loss=loss)

    return built


def stopping(folder: Path, training: int | None = None, evaluating: int | None = None, build: Build = task) -> Build:
    """Return a task that asks its run to stop, in its so-and-so-many-th batch."""
    return acting((folder / "STOP").touch, training, evaluating, build)


def stopped(folder: Path, after: int, *arguments: str | Path) -> Path:
    """Return the folder of a new run that was asked to stop after so many steps."""
    outcome = run(folder, *arguments, build=stopping(folder, training=after + 1))
    assert (outcome.code, outcome.record["step"]) == (75, after), outcome.errors
    return folder


def copy_of(folder: Path, place: Path) -> Path:
    """Return a copy of a run folder."""
    shutil.copytree(folder, place)
    return place


def contents(folder: Path) -> dict[str, tuple[str, int]]:
    """Return hash and time of the files below a run folder but run.json, which says how the last start ended."""
    return {name: file for name, file in state_of(folder).items() if name not in ("run.json", "run.lock")}


@contextmanager
def refusing(part: str, code: int = errno.ENOSPC) -> Iterator[None]:
    """Have the system refuse to bring files and folders to the disk whose path has this part."""
    fsync = os.fsync

    def refuse(handle: int) -> None:
        if part in str(Path(f"/proc/self/fd/{handle}").readlink()):
            raise OSError(code, os.strerror(code))
        fsync(handle)

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(os, "fsync", refuse)
        yield


def steps_sealed(folder: Path) -> list[int]:
    """Return the steps of the checkpoints in a run folder, the newest first, each of which has to be valid."""
    found = sealed_folders(folder / "checkpoints")
    for checkpoint in found:
        inspect(checkpoint)
    return [step_of(checkpoint) for checkpoint in found]


def is_valid(checkpoint: Path) -> bool:
    """Return whether a folder is a valid checkpoint."""
    try:
        inspect(checkpoint)
    except DamagedError:
        return False
    return True


def left_half_done(folder: Path) -> list[str]:
    """Return what lies in a run folder that was begun and not completed."""
    return [str(path.relative_to(folder)) for path in folder.rglob("*") if path.suffix in (".partial", ".retired")]
