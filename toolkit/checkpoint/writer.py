"""Checkpoints in the background: training waits for a copy in memory, and a thread writes it while training goes on.

Where the main process holds the whole state, it alone writes. Where the state is sharded, each process writes what it
owns, and the main one seals when all have. The threads touch neither a device nor a process group.
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
from toolkit.checkpoint.reader import SHARDS, index_as_json
from toolkit.checkpoint.staging import StagingBuffer, in_bytes
from toolkit.errors import UserError
from toolkit.output import pipes
from toolkit.output.ledger import Ledger, LedgerEnd
from toolkit.output.run_folder import RunFolder, sealed_folders, step_of

Write = Callable[[Path], tuple[int, str]]


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
    """Where each shard of each tensor lies, if they are sharded."""
    owners: tuple[int, ...] = ()
    """The ranks that write shards of tensors, if they are sharded."""


class Writer(ABC):
    """Writes checkpoints, or this process's part of them, one at a time."""

    def __init__(self, folder: RunFolder, pinned: bool = False, exchange: Exchange | None = None) -> None:
        self.folder = folder
        self.pinned = pinned
        self.exchange = exchange
        """Connects the processes, if each writes a part."""
        self.staging_buffers: dict[str, StagingBuffer] = {}
        self.has_warned = False
        self.thread: threading.Thread | None = None
        self.begun: int | None = None
        """The step of the checkpoint that was begun last."""
        self.newest: int | None = None
        """The step of the newest sealed checkpoint, in the main process."""
        self.failure: Exception | None = None
        self.stood_still = 0.0
        """Seconds for which training stood still since the last `take_time`."""

    @property
    def is_shared(self) -> bool:
        """Whether each process writes a part, so that all of them save together."""
        return self.exchange is not None

    def save(self, step: int, collect: Callable[[], Content], best: int | None = None) -> None:
        """Copy what `collect` returns and start to write it, once the previous checkpoint is written.

        `best` is the step whose checkpoint is never deleted. A failure is kept in `failure`: the processes have to
        agree to stop for it.
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
                    self.warn_if_not_pinned()
                self.begin(step, content, best)
            except UserError as error:
                self.failure = error
        self.stood_still += perf_counter() - started

    def warn_if_not_pinned(self) -> None:
        """Print a warning, once, if memory for the copies could not be pinned."""
        pageable = [buffer.content.nbytes for buffer in self.staging_buffers.values() if not buffer.pinned]
        if pageable and not self.has_warned:
            self.has_warned = True
            pipes.print_line(
                f"the system refused to pin {in_bytes(sum(pageable))} of host memory for the copy of a checkpoint; "
                "ordinary memory is used, and training stands still for longer at each checkpoint",
                sys.stderr,
            )

    @abstractmethod
    def begin(self, step: int, content: Content, best: int | None) -> None:
        """Start the thread that writes what was copied."""

    def start(self, work: Callable[..., None], *arguments: Any) -> None:
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
    """Writes the part of a process that is not the main one, and reports to the main one what failed."""

    exchange: Exchange

    def __init__(self, folder: RunFolder, exchange: Exchange, pinned: bool = False) -> None:
        super().__init__(folder, pinned, exchange)

    def begin(self, step: int, content: Content, best: int | None) -> None:
        if self.exchange.rank in content.owners:
            self.start(self.write, step)

    def write(self, step: int) -> None:
        """Write the staging buffers into the folder of all, and report to the main process."""
        # If the main process is gone, nobody is left to report to.
        with suppress(RuntimeError):
            try:
                folder = partial_folder(self.folder.checkpoints, step)
                folder.mkdir(parents=True, exist_ok=True)
                files = {
                    name: SealedFile(*buffer.write(folder / name)) for name, buffer in self.staging_buffers.items()
                }
            except Exception as error:
                self.exchange.report_failure(step, error)
            else:
                self.exchange.report(step, files)


class Saver(Writer):
    """Writes the checkpoints of a run in the main process, and seals them."""

    def __init__(
        self,
        folder: RunFolder,
        ledger: Ledger,
        keep: int,
        pinned: bool = False,
        exchange: Exchange | None = None,
        previous: str | None = None,
        newest: int | None = None,
    ) -> None:
        """Begin where a run goes on.

        Args:
            folder: of the run.
            ledger: its rows are on the disk before a checkpoint says so.
            keep: how many checkpoints stay.
            pinned: whether the copies lie in pinned memory.
            exchange: with one, the other processes write their parts.
            previous: the seal of the checkpoint that the run goes on from.
            newest: the step of that checkpoint, if it lies in the folder.
        """
        super().__init__(folder, pinned, exchange)
        self.ledger = ledger
        self.keep = keep
        self.previous = previous
        """The seal of the newest checkpoint, of this run or the one that it goes on from."""
        self.begun = self.newest = newest

    def begin(self, step: int, content: Content, best: int | None) -> None:
        # Training changes the tensors meanwhile: the thread gets none of them.
        self.start(self.write, step, replace(content, tensors={}), self.ledger.end, best)

    def write(self, step: int, content: Content, ledger: LedgerEnd, best: int | None) -> None:
        """Write a checkpoint from the staging buffers, then delete old ones, but not that of step `best`."""
        failed = f"the checkpoint of step {step:,} can't be written to {self.folder.checkpoints}"
        others = None
        if self.exchange is not None:
            ranks = [rank for rank in content.owners if rank != self.exchange.rank]
            others = partial(self.exchange.gather, step, ranks)
        try:
            try:
                self.folder.check_is_there()
                self.ledger.sync()
            except (OSError, UserError):
                if others is not None:
                    self.discard(step, others)
                raise
            files: dict[str, Write] = {name: buffer.write for name, buffer in self.staging_buffers.items()}
            if content.shards is not None:
                files[SHARDS] = partial(write_index, content.shards)
            manifest = write_checkpoint(
                self.folder.checkpoints, step, files, content.state, ledger, self.previous, others
            )
            self.previous, self.newest = manifest.seal, step
            failed = f"{self.folder.path} can't be kept up to date"
            self.folder.update(step=step, epoch=content.epoch)
            self.retire(best)
        except OSError as error:
            self.failure = UserError(self.problem(failed, error) if self.folder.is_there() else self.folder.gone)
        except Exception as error:
            self.failure = error

    def discard(self, step: int, others: Callable[[Path], Mapping[str, SealedFile]]) -> None:
        """Wait for the parts of a checkpoint that will not be sealed, and delete them."""
        folder = partial_folder(self.folder.checkpoints, step)
        with suppress(OSError, RuntimeError):
            others(folder)
        shutil.rmtree(folder, ignore_errors=True)

    def retire(self, best: int | None) -> None:
        """Delete checkpoints that are neither among the newest nor the best; at least one stays."""
        retire(self.folder.checkpoints, max(1, self.keep), [best] if best is not None else [])

    def problem(self, failed: str, error: OSError) -> str:
        """Return the message: what failed and why, and which checkpoint is left."""
        left = (
            f"the checkpoint of step {self.newest:,} is sealed"
            if self.newest is not None
            else "there is no sealed checkpoint"
        )
        reason = error.strerror or error
        return f"{failed} ({reason}); {left}. Make room or repair the folder, then start the same command again"

    def tidy(self) -> None:
        """Delete what a process that died left half written."""
        remove_leftovers(self.folder.checkpoints)


def write_index(shards: Mapping[str, Mapping[str, Any]], path: Path) -> tuple[int, str]:
    """Write where each shard of each tensor lies, and return size and SHA-256 of the file."""
    sealed = write_flushed(path, index_as_json(shards))
    return sealed.bytes, sealed.sha256


def newest_name(folder: Path) -> str | None:
    """Return the name of the newest checkpoint in a run folder, by its name alone."""
    found = sealed_folders(folder / "checkpoints")
    return found[0].name if found and step_of(found[0]) >= 0 else None
