"""Checkpoints in the background: training stands still for a copy in memory, and a thread writes it while training goes on.

Only the main process writes. Its thread touches neither a device nor a process group.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from toolkit.checkpoint import remove_leftovers, retire, sealed_folders, step_of, write_checkpoint
from toolkit.errors import UserError
from toolkit.ledger import Ledger, LedgerEnd
from toolkit.run_folder import RunFolder
from toolkit.snapshot import Snapshot

WEIGHTS, OPTIMIZER = "weights.safetensors", "optimizer.safetensors"


@dataclass(frozen=True)
class Content:
    """What a checkpoint holds, as it is now: the tensors still belong to the training."""

    epoch: float
    """Passes over the training data done."""
    tensors: Mapping[str, Mapping[str, torch.Tensor]]
    """For each file the tensors in it, by name."""
    state: Mapping[str, Any]
    """Everything that is no tensor, as JSON."""


class Saver:
    """Writes the checkpoints of a run, one at a time."""

    def __init__(self, folder: RunFolder, ledger: Ledger, keep: int, pinned: bool = False) -> None:
        self.folder = folder
        self.ledger = ledger
        self.keep = keep
        self.pinned = pinned
        self.snapshots: dict[str, Snapshot] = {}
        self.thread: threading.Thread | None = None
        self.previous: str | None = None
        """The seal of the newest checkpoint, of this run or the one that it goes on from."""
        self.newest: int | None = None
        """The step of the newest sealed checkpoint."""
        self.begun: int | None = None
        """The step of the checkpoint that was begun last."""
        self.best: int | None = None
        """The step of the best evaluation, whose checkpoint is never deleted."""
        self.failure: Exception | None = None
        self.stood_still = 0.0
        """Seconds for which training stood still since this was last asked."""

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
                for name, tensors in content.tensors.items():
                    self.snapshots.setdefault(name, Snapshot(self.pinned)).take(tensors)
                if self.pinned:
                    torch.cuda.synchronize()
                # Not a daemon: where the run ends by an error meanwhile, Python waits until the checkpoint is sealed.
                self.thread = threading.Thread(
                    target=self.write, args=(step, content.epoch, content.state, self.ledger.end, self.best)
                )
                self.thread.start()
            except UserError as error:
                self.failure = error
        self.stood_still += perf_counter() - started

    def write(self, step: int, epoch: float, state: Mapping[str, Any], ledger: LedgerEnd, best: int | None) -> None:
        """Write a checkpoint from the snapshots, and then let go of an old one; not of the best that this one knows of."""
        doing = f"the checkpoint of step {step:,} can't be written to {self.folder.checkpoints}"
        try:
            self.ledger.bring_to_disk()
            files = {name: snapshot.write for name, snapshot in self.snapshots.items()}
            manifest = write_checkpoint(self.folder.checkpoints, step, files, state, ledger, self.previous)
            self.previous, self.newest = manifest.seal, step
            doing = f"{self.folder.path} can't be kept up to date"
            self.folder.update(step=step, epoch=epoch)
            self.retire(best)
        except OSError as error:
            self.failure = UserError(self.told(doing, error))
        except Exception as error:
            self.failure = error

    def retire(self, best: int | None) -> None:
        """Delete what is neither among the newest nor the best."""
        retire(self.folder.checkpoints, self.keep, [best] if best is not None else [])

    def told(self, doing: str, error: OSError) -> str:
        """Say what failed and why, and what is left."""
        left = (
            f"the checkpoint of step {self.newest:,} is sealed"
            if self.newest is not None
            else "there is no sealed checkpoint"
        )
        return f"{doing} ({error.strerror or error}); {left}. Make room or repair the folder, then start the same command again"

    def wait(self) -> None:
        """Wait until no checkpoint is being written."""
        if self.thread is not None:
            started = perf_counter()
            self.thread.join()
            self.thread = None
            self.stood_still += perf_counter() - started

    def take_time(self) -> float:
        """Return the seconds for which training stood still since the last call."""
        seconds, self.stood_still = self.stood_still, 0.0
        return seconds

    def tidy(self) -> None:
        """Delete what a process left that died while it wrote."""
        remove_leftovers(self.folder.checkpoints)


def newest_name(folder: Path) -> str | None:
    """Return the name of the newest checkpoint in a run folder, by its name alone."""
    found = sealed_folders(folder / "checkpoints")
    return found[0].name if found and step_of(found[0]) >= 0 else None
