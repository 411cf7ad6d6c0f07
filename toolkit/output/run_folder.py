"""The run folder: all files of a run, written so that a reader never sees half a file."""

import errno
import fcntl
import json
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from safetensors import SafetensorError

from toolkit.errors import UserError
from toolkit.output.ledger import finite_or_none
from toolkit.output.provenance import versions

# When a process closes any handle of a file, POSIX releases all its locks on it: a lock of this process is not probed.
HELD: set[Path] = set()

# The errors of a lock that another process holds; any other error means that the file system has no locks.
TAKEN = {errno.EACCES, errno.EAGAIN}

# The errors of a disk that is full, over a quota, read-only or broken, and of a missing permission.
REFUSED = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EFBIG, errno.EACCES, errno.EPERM}

NAME = re.compile(r"step-(\d{6,})")
"""The name of a checkpoint's folder."""


def folder_name(step: int) -> str:
    """Return the name of a checkpoint's folder; names sort like steps."""
    return f"step-{step:06d}"


def step_of(folder: Path) -> int:
    """Return the step in the name of a checkpoint's folder, or -1 if it is no such name."""
    match = NAME.fullmatch(folder.name)
    return int(match[1]) if match else -1


def sealed_folders(parent: Path) -> list[Path]:
    """Return the folders with the name of a checkpoint, the newest first; they need not be valid (see `inspect`)."""
    if not parent.is_dir():
        return []
    return sorted((path for path in parent.iterdir() if step_of(path) >= 0), key=step_of, reverse=True)


class RunFolder:
    """The folder of one run. Only the main process locks it and writes run.json."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_file = path / "config.yaml"
        """The resolved settings."""
        self.model_folder = path / "model"
        """The trained model, ready for `from_pretrained`."""
        self.ledger_file = path / "ledger.jsonl"
        """One row per step."""
        self.checkpoints = path / "checkpoints"
        self.lock_file = path / "run.lock"
        """Locked by the process that works here."""
        self.stop_file = path / "STOP"
        """A file that asks the run to stop, whoever makes it."""
        self.lock: IO[str] | None = None
        self.locks_nothing: str | None = None
        """The error of a file system without locks, where two starts at once would not be noticed."""
        self.writing = threading.Lock()

    def record(self) -> dict[str, Any]:
        """Return run.json, or an empty mapping if there is none."""
        return read_record(self.path)

    def is_new(self) -> bool:
        """Return whether the folder has nothing but the record of a start that did not train."""
        # If it is a file, `claim` raises the error.
        if not self.path.is_dir():
            return True
        entries = {entry.name for entry in self.path.iterdir()} - {"run.lock", "STOP"}
        # A process that died while it wrote its first files, or tried to save the model, leaves these.
        entries -= {"run.json.partial", "config.yaml.partial", "model.partial"}
        return not entries or (
            entries == {"run.json"} and self.record().get("status") in ("refused", "failed", "running")
        )

    def claim(self) -> None:
        """Create the folder if it does not exist, and lock it; the kernel releases the lock when this process dies.

        Raises:
            UserError: the folder can't be written, or another process works in it.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self.lock = self.lock_file.open("a", encoding="utf-8")
        except OSError as error:
            reason = "it is a file" if self.path.is_file() else error.strerror
            raise UserError(
                f"the run folder {self.path} can't be written ({reason}); give another one with --output"
            ) from None
        try:
            fcntl.lockf(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in TAKEN:
                raise UserError(
                    f"another process is running in {self.path}; wait for it, or give another folder with --output"
                ) from None
            self.locks_nothing = error.strerror or str(error)
        HELD.add(self.path.resolve())

    def is_there(self) -> bool:
        """Return whether this is still the folder that was claimed: neither deleted nor replaced."""
        try:
            return self.lock is None or os.path.samestat(os.fstat(self.lock.fileno()), self.lock_file.stat())
        except OSError:
            return False

    def check_is_there(self) -> None:
        """Check that this is still the folder that was claimed.

        Raises:
            UserError: it was deleted or replaced during the run.
        """
        if not self.is_there():
            raise UserError(self.gone)

    @property
    def gone(self) -> str:
        """The message for a folder that was deleted or replaced."""
        try:
            there = sealed_folders(self.checkpoints)
        except OSError:
            there = []
        again = (
            f"goes on from {there[0].name}, the newest checkpoint that is there now"
            if there
            else "begins from scratch, since no checkpoint is there now"
        )
        return (
            f"the run folder {self.path} was deleted or replaced while the run was under way, so that nothing can be "
            f"written there; the same command {again}"
        )

    def release(self) -> None:
        """Release the lock."""
        if self.lock is not None:
            HELD.discard(self.path.resolve())
            self.lock.close()
            self.lock = None

    def replace_record(self, **entries: Any) -> None:
        """Replace run.json."""
        write_whole(self.path / "run.json", json.dumps(finite_or_none(entries), indent=2) + "\n")

    def update(self, **changes: Any) -> None:
        """Change some entries of run.json; also called by the thread that writes checkpoints."""
        with self.writing:
            self.replace_record(**{**self.record(), **changes})

    def write_model(self, export: Callable[[Path], None]) -> None:
        """Let `export` write the model into a temporary folder, and rename that when it is complete."""
        partial, previous = self.path / "model.partial", self.path / "model.former"
        for leftover in (partial, previous):
            shutil.rmtree(leftover, ignore_errors=True)
        try:
            export(partial)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        if self.model_folder.exists():
            self.model_folder.rename(previous)
        partial.rename(self.model_folder)
        shutil.rmtree(previous, ignore_errors=True)


def bytes_in(folder: Path) -> int:
    """Return what the files in a folder take together."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def begun_in(record: Mapping[str, Any]) -> str | None:
    """Return the folder in which the newest start of a run was made, if run.json names it."""
    starts = record.get("topology") or [{}]
    folder = starts[-1].get("folder")
    return folder if isinstance(folder, str) else None


def read_record(folder: Path) -> dict[str, Any]:
    """Return the run.json of a folder, or an empty mapping if there is none that can be read."""
    try:
        record = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def is_locked(folder: Path) -> bool:
    """Return whether a process works in a run folder; on a file system without locks it is assumed."""
    if folder.resolve() in HELD:
        return True
    try:
        lock = (folder / "run.lock").open("r+", encoding="utf-8")
    except OSError:
        return False
    with lock:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


@contextmanager
def explain_disk_errors(folder: Path, what: str = "the run folder") -> Iterator[None]:
    """Turn errors of writing to the disk in this block into a message for the user.

    Raises:
        UserError: the disk is full, over a quota, read-only or broken, or a permission is missing.
    """
    try:
        yield
    except (OSError, SafetensorError) as error:
        # safetensors has the number of the error in its text only.
        found = re.search(r"\(os error (\d+)\)", str(error))
        number = error.errno if isinstance(error, OSError) else int(found[1]) if found else None
        if number not in REFUSED:
            raise
        raise UserError(
            f"{what} {folder} can't be written ({os.strerror(number)}); make room or repair it, then start the "
            "same command again"
        ) from error


def write_whole(path: Path, text: str) -> None:
    """Write a file under another name and rename it, so that a reader sees the old one or the new one."""
    partial = path.with_name(f"{path.name}.partial")
    try:
        with partial.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


def now() -> str:
    """Return the time, in UTC, to the second."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def record_refusal(path: Path, problems: tuple[str, ...]) -> None:
    """Record a refused start in run.json, if the folder is new.

    A launcher turns every exit code into 1, so scripts have to look here.
    """
    folder = RunFolder(path)
    try:
        if folder.is_new():
            folder.claim()
            folder.replace_record(status="refused", problems=list(problems), versions=versions(), ended=now())
    except (OSError, UserError):
        # The folder itself may be the reason for the refusal, and the user gets the message in any case.
        return
    finally:
        folder.release()
