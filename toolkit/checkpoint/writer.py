"""Checkpoints in the background: training stands still for a copy in memory, and a thread writes it while training goes on.

Where the main process holds the whole state it alone writes. Where the state is spread each process writes what it owns, and
the main one seals when all have. The threads touch neither a device nor a process group.
"""

import shutil
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from toolkit.checkpoint.exchange import Exchange
from toolkit.checkpoint.format import (
    SealedFile,
    partial_folder,
    remove_leftovers,
    retire,
    write_checkpoint,
    write_flushed,
)
from toolkit.checkpoint.reader import OPTIMIZER as OPTIMIZER
from toolkit.checkpoint.reader import SHARDS, index_as_json
from toolkit.checkpoint.reader import WEIGHTS as WEIGHTS
from toolkit.checkpoint.staging import StagingBuffer, in_bytes
from toolkit.errors import UserError
from toolkit.output import pipes
from toolkit.output.ledger import Ledger, LedgerEnd
from toolkit.output.run_folder import RunFolder, sealed_folders, step_of

Write = Callable[[Path], tuple[int, str]]
Others = Callable[[Path], Mapping[str, SealedFile]]


@dataclass(frozen=True)
class Content:
    """What a checkpoint holds, as it is now: the tensors still belong to the training."""

    epoch: float
    """Passes over the training data done."""
    tensors: Mapping[str, Mapping[str, torch.Tensor]]
    """For each file that this process writes the tensors in it, by name."""
    state: Mapping[str, Any]
    """Everything that is no tensor, as JSON."""
    shards: Mapping[str, Mapping[str, Any]] | None = None
    """Where each piece of each tensor lies, if they are spread over processes."""
    owners: tuple[int, ...] = ()
    """The ranks that write pieces of tensors, if they are spread."""


class Writer(ABC):
    """Writes checkpoints, or this process's part of them, one at a time."""

    def __init__(self, folder: RunFolder, pinned: bool = False) -> None:
        self.folder = folder
        self.pinned = pinned
        self.staging_buffers: dict[str, StagingBuffer] = {}
        self.told_of_pageable = False
        self.thread: threading.Thread | None = None
        self.begun: int | None = None
        """The step of the checkpoint that was begun last."""
        self.newest: int | None = None
        """The step of the newest sealed checkpoint, in the main process."""
        self.best: int | None = None
        """The step of the best evaluation, whose checkpoint is never deleted."""
        self.failure: Exception | None = None
        self.stood_still = 0.0
        """Seconds for which training stood still since this was last asked."""

    @property
    @abstractmethod
    def is_shared(self) -> bool:
        """Whether each process writes a part, so that all of them save together."""

    def save(self, step: int, collect: Callable[[], Content]) -> None:
        """Copy what `collect` returns and have it written; waits for the checkpoint before, if that is still being written.

        A failure is kept in `failure`: the processes have to agree to stop for it.
        """
        self.wait()
        started = perf_counter()
        if self.failure is None:
            self.begun = step
            try:
                content = collect()
                self.staging_buffers = {
                    name: self.staging_buffers.get(name) or StagingBuffer(self.pinned) for name in content.tensors
                }
                for name, tensors in content.tensors.items():
                    self.staging_buffers[name].take(tensors)
                if self.pinned:
                    torch.accelerator.synchronize()
                    self.tell_if_not_pinned()
                self.begin(step, content)
            except UserError as error:
                self.failure = error
        self.stood_still += perf_counter() - started

    def tell_if_not_pinned(self) -> None:
        """Say, once, if memory for the copies could not be pinned."""
        pageable = [
            staging_buffer.content.nbytes
            for staging_buffer in self.staging_buffers.values()
            if not staging_buffer.pinned
        ]
        if pageable and not self.told_of_pageable:
            self.told_of_pageable = True
            pipes.print_line(
                f"the system refused to pin {in_bytes(sum(pageable))} of host memory for the copy of a checkpoint; "
                "ordinary memory is used, and training stands still for longer at each checkpoint",
                sys.stderr,
            )

    @abstractmethod
    def begin(self, step: int, content: Content) -> None:
        """Start the thread that writes what was copied."""

    def start(self, work: Callable[..., None], *arguments: Any) -> None:
        """Do some work in a thread."""
        # Not a daemon: where the run ends by an error meanwhile, Python waits until the checkpoint is sealed.
        self.thread = threading.Thread(target=work, args=arguments)
        self.thread.start()

    def wait(self) -> None:
        """Wait until nothing is being written."""
        if self.thread is not None:
            started = perf_counter()
            self.thread.join()
            self.thread = None
            self.stood_still += perf_counter() - started

    def take_time(self) -> float:
        """Return the seconds for which training stood still since the last call."""
        seconds, self.stood_still = self.stood_still, 0.0
        return seconds


class PartWriter(Writer):
    """Writes the part of a process that is not the main one. What fails is told to the main process, whose failure it is."""

    def __init__(self, folder: RunFolder, exchange: Exchange, pinned: bool = False) -> None:
        super().__init__(folder, pinned)
        self.exchange = exchange

    @property
    def is_shared(self) -> bool:
        """It is."""
        return True

    def begin(self, step: int, content: Content) -> None:
        """Start the thread, if this process owns anything."""
        if self.exchange.rank in content.owners:
            self.start(self.write, step)

    def write(self, step: int) -> None:
        """Write the staging buffers beside those of the others, and tell the main process."""
        # Where that one is gone nobody is left to be told.
        with suppress(RuntimeError):
            try:
                beside = partial_folder(self.folder.checkpoints, step)
                beside.mkdir(parents=True, exist_ok=True)
                files = {name: SealedFile(*taken.write(beside / name)) for name, taken in self.staging_buffers.items()}
            except Exception as error:
                self.exchange.tell_failure(step, error)
            else:
                self.exchange.tell(step, files)


class Saver(Writer):
    """Writes the checkpoints of a run in the main process, and seals them."""

    def __init__(
        self, folder: RunFolder, ledger: Ledger, keep: int, pinned: bool = False, exchange: Exchange | None = None
    ) -> None:
        """With an `exchange` the others write their parts."""
        super().__init__(folder, pinned)
        self.ledger = ledger
        self.keep = keep
        self.exchange = exchange
        self.previous: str | None = None
        """The seal of the newest checkpoint, of this run or the one that it goes on from."""

    @property
    def is_shared(self) -> bool:
        """Whether the others write parts."""
        return self.exchange is not None

    def begin(self, step: int, content: Content) -> None:
        """Start the thread."""
        # The tensors go on being trained: the thread has no business with them.
        self.start(self.write, step, replace(content, tensors={}), self.ledger.end, self.best)

    def write(self, step: int, content: Content, ledger: LedgerEnd, best: int | None) -> None:
        """Write a checkpoint from the staging buffers, and then let go of an old one; not of the best that this one knows of."""
        doing = f"the checkpoint of step {step:,} can't be written to {self.folder.checkpoints}"
        others: list[Others] = []
        if self.exchange is not None:
            ranks = [rank for rank in content.owners if rank != self.exchange.rank]
            others = [partial(self.exchange.gather, step, ranks)]
        try:
            try:
                self.folder.check_is_there()
                self.ledger.sync()
            except (OSError, UserError):
                self.discard(step, others)
                raise
            files: dict[str, Write] = {
                name: staging_buffer.write for name, staging_buffer in self.staging_buffers.items()
            }
            if content.shards is not None:
                files[SHARDS] = partial(write_index, content.shards)
            manifest = write_checkpoint(
                self.folder.checkpoints, step, files, content.state, ledger, self.previous, *others
            )
            self.previous, self.newest = manifest.seal, step
            doing = f"{self.folder.path} can't be kept up to date"
            self.folder.update(step=step, epoch=content.epoch)
            self.retire(best)
        except OSError as error:
            self.failure = UserError(self.told(doing, error) if self.folder.is_there() else self.folder.gone)
        except Exception as error:
            self.failure = error

    def discard(self, step: int, others: list[Others]) -> None:
        """Delete what the others write of a checkpoint that will not be."""
        beside = partial_folder(self.folder.checkpoints, step)
        for wait in others:
            with suppress(OSError, RuntimeError):
                wait(beside)
        shutil.rmtree(beside, ignore_errors=True)

    def retire(self, best: int | None) -> None:
        """Delete what is neither among the newest nor the best. The newest stays until the run is finished."""
        retire(self.folder.checkpoints, max(1, self.keep), [best] if best is not None else [])

    def told(self, doing: str, error: OSError) -> str:
        """Say what failed and why, and what is left."""
        left = (
            f"the checkpoint of step {self.newest:,} is sealed"
            if self.newest is not None
            else "there is no sealed checkpoint"
        )
        return f"{doing} ({error.strerror or error}); {left}. Make room or repair the folder, then start the same command again"

    def tidy(self) -> None:
        """Delete what a process left that died while it wrote."""
        remove_leftovers(self.folder.checkpoints)


def write_index(shards: Mapping[str, Mapping[str, Any]], path: Path) -> tuple[int, str]:
    """Write where each piece of each tensor lies, and return size and SHA-256 of the file."""
    sealed = write_flushed(path, index_as_json(shards))
    return sealed.bytes, sealed.sha256


def newest_name(folder: Path) -> str | None:
    """Return the name of the newest checkpoint in a run folder, by its name alone."""
    found = sealed_folders(folder / "checkpoints")
    return found[0].name if found and step_of(found[0]) >= 0 else None
