"""A recipe of the user's own, run in processes of its own: to its end, or until it is killed in the midst."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from toolkit.errors import UserError
from toolkit.output.run_folder import RunFolder, sealed_folders, step_of
from toolkit.verify.evidence import is_count, last_row, record_of

SAVES = 6
"""Checkpoints that a run writes."""
LAUNCHER = (
    "RANK",
    "LOCAL_RANK",
    "GROUP_RANK",
    "ROLE_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
)
SECONDS_BETWEEN_LOOKS = 0.002
SECONDS_TO_DIE = 10.0
LINES_OF_AN_ERROR = 15


class Trial:
    """A recipe with its arguments, in a folder for its runs."""

    def __init__(self, recipe: Path, arguments: Sequence[str], steps: int, place: Path) -> None:
        self.recipe = recipe
        self.arguments = list(arguments)
        self.steps = steps
        self.place = place
        self.every = max(1, steps // SAVES)

    def to_the_end(self, name: str, processes: int) -> None:
        """Run it until it is finished.

        Raises:
            UserError: it failed.
        """
        with self.started(name, processes) as process:
            process.wait()
        self.check_finished(name, process.returncode)

    def until_killed(self, name: str, processes: int) -> int:
        """Run it until it has done more than it has written down, kill it there, and return the steps in its ledger.

        Raises:
            UserError: it failed, or was faster.
        """
        folder = RunFolder(self.place / name)
        with self.started(name, processes) as process:
            while process.poll() is None:
                if is_beyond_a_checkpoint(folder):
                    family = hold(process)
                    # It went on while this looked, and may have sealed another one.
                    if is_beyond_a_checkpoint(folder):
                        kill_all(process)
                        break
                    let_go(family)
                time.sleep(SECONDS_BETWEEN_LOOKS)
        if record_of(folder.path).get("status") == "finished":
            raise UserError(f"the run ended before it could be killed; give more than --steps {self.steps}")
        if process.returncode != -signal.SIGKILL or not is_beyond_a_checkpoint(folder):
            self.check_finished(name, process.returncode)
        return step_in(folder)

    @contextmanager
    def started(self, name: str, processes: int) -> Iterator["subprocess.Popen[bytes]"]:
        """Start the recipe; nothing of it is left when this ends."""
        saves = [] if name == "undisturbed" else ["--checkpoint.every", str(self.every)]
        own = ["--steps", str(self.steps), "--epochs", "null", "--resume", "auto", "--output", str(self.place / name)]
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)]
        command = [
            sys.executable,
            *(launcher if processes > 1 else []),
            str(self.recipe),
            *self.arguments,
            *own,
            *saves,
        ]
        environment = {
            key: value
            for key, value in os.environ.items()
            if key not in LAUNCHER and not key.startswith("TORCHELASTIC")
        }
        with self.log(name).open("wb") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
            try:
                yield process
            finally:
                # One that has ended has no number any more: that may be another process by now.
                if process.poll() is None:
                    kill_all(process)

    def log(self, name: str) -> Path:
        """Return the file of what the last run of a name printed."""
        return self.place / f"{name}.log"

    def check_finished(self, name: str, code: int) -> None:
        """Pass on why a run did not come to its end.

        Raises:
            UserError: it did not.
        """
        record = record_of(self.place / name)
        if code == 0 and record.get("status") == "finished" and record.get("step") == self.steps:
            return
        lines = self.log(name).read_text(encoding="utf-8", errors="replace").strip().splitlines()
        raise UserError(
            "\n    ".join(
                [
                    f"the recipe did not come to its end (exit code {code}); it said:",
                    *lines[-LINES_OF_AN_ERROR:],
                ]
            )
        )


def is_beyond_a_checkpoint(folder: RunFolder) -> bool:
    """Return whether a run has a sealed checkpoint, and steps in its ledger that came after it."""
    with suppress(OSError):
        newest = next(iter(sealed_folders(folder.checkpoints)), None)
        return newest is not None and step_in(folder) > step_of(newest)
    return False


def step_in(folder: RunFolder) -> int:
    """Return the last step in the ledger of a run."""
    step = last_row(folder.ledger_file).get("step")
    return step if is_count(step) else 0


def hold(process: "subprocess.Popen[bytes]") -> list[psutil.Process]:
    """Make a process and all that it started stand still, and return them."""
    family: list[psutil.Process] = []
    with suppress(psutil.Error):
        root = psutil.Process(process.pid)
        # What stands still starts no others.
        for _ in range(2):
            family = [root, *root.children(recursive=True)]
            for member in family:
                with suppress(psutil.Error):
                    member.suspend()
    return family


def let_go(family: list[psutil.Process]) -> None:
    """Let them go on."""
    for member in family:
        with suppress(psutil.Error):
            member.resume()


def kill_all(process: "subprocess.Popen[bytes]") -> None:
    """Kill a process that has not ended, and all that it started: its group, and a launcher's workers in groups of their own."""
    family = hold(process)
    for member in family:
        with suppress(psutil.Error):
            member.kill()
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    patience = time.monotonic() + SECONDS_TO_DIE
    while any(map(lives, family)) and time.monotonic() < patience:
        time.sleep(SECONDS_BETWEEN_LOOKS)


def lives(process: psutil.Process) -> bool:
    """Return whether a process is more than an entry that nobody has collected."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
