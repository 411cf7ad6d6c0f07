"""Run a recipe in processes of its own, to its end or until it is killed between two checkpoints."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from toolkit.errors import UserError
from toolkit.output.run_folder import RunFolder, sealed_folders, step_of
from toolkit.verify.evidence import is_count, last_row, record_of

CHECKPOINTS = 6
"""Checkpoints that a run writes."""
SECONDS_BETWEEN_LOOKS = 0.002
SECONDS_TO_DIE = 10.0
LINES_OF_AN_ERROR = 15


class RecipeRuns:
    """The runs of one recipe with its arguments, each in a folder of its own below `place`."""

    def __init__(self, recipe: Path, arguments: Sequence[str], steps: int, place: Path) -> None:
        self.recipe = recipe
        self.arguments = list(arguments)
        self.steps = steps
        self.place = place
        self.checkpoint_every = max(1, steps // CHECKPOINTS)

    def run_to_end(self, name: str, processes: int) -> None:
        """Run the recipe until it is finished.

        Raises:
            UserError: it failed.
        """
        with self.started(name, processes) as process:
            process.wait()
        self.check_finished(name, process.returncode)

    def run_until_killed(self, name: str, processes: int) -> int:
        """Run the recipe until its ledger has a step after its newest checkpoint, and kill it there.

        Returns:
            The last step in its ledger.

        Raises:
            UserError: it failed, or finished before it could be killed.
        """
        folder = RunFolder(self.place / name)
        with self.started(name, processes) as process:
            while process.poll() is None:
                if is_beyond_a_checkpoint(folder):
                    family = suspend(process)
                    # It went on during the look, and may have sealed another checkpoint.
                    if is_beyond_a_checkpoint(folder):
                        kill_all(process)
                        break
                    resume(family)
                time.sleep(SECONDS_BETWEEN_LOOKS)
        if record_of(folder.path).get("status") == "finished":
            raise UserError(f"the run ended before it could be killed; give more than --steps {self.steps}")
        if process.returncode != -signal.SIGKILL or not is_beyond_a_checkpoint(folder):
            self.check_finished(name, process.returncode)
        return last_step(folder)

    @contextmanager
    def started(self, name: str, processes: int) -> Iterator["subprocess.Popen[bytes]"]:
        """Start the recipe; when this ends, none of its processes is left."""
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)]
        command = [sys.executable, *(launcher if processes > 1 else []), str(self.recipe), *self.arguments]
        command += ["--steps", str(self.steps), "--epochs", "null", "--resume", "auto"]
        command += ["--output", str(self.place / name)]
        if name != "undisturbed":
            command += ["--checkpoint.every", str(self.checkpoint_every)]
        with self.log(name).open("wb") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=without_launcher(os.environ),
                start_new_session=True,
            )
            try:
                yield process
            finally:
                # The number of a process that has ended may be that of another one by now.
                if process.poll() is None:
                    kill_all(process)

    def log(self, name: str) -> Path:
        """Return the file with the output of the last run of this name."""
        return self.place / f"{name}.log"

    def check_finished(self, name: str, code: int) -> None:
        """Raise what the recipe printed last if it did not finish.

        Raises:
            UserError: it did not.
        """
        record = record_of(self.place / name)
        if code == 0 and record.get("status") == "finished" and record.get("step") == self.steps:
            return
        lines = self.log(name).read_text(encoding="utf-8", errors="replace").strip().splitlines()
        message = f"the recipe did not come to its end (exit code {code}); it said:"
        raise UserError("\n    ".join([message, *lines[-LINES_OF_AN_ERROR:]]))


def without_launcher(environment: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables without those by which a launcher tells a process its rank."""
    ranks = {"RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK"}
    sizes_and_address = {"WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
    return {
        key: value
        for key, value in environment.items()
        if key not in ranks | sizes_and_address and not key.startswith("TORCHELASTIC")
    }


def is_beyond_a_checkpoint(folder: RunFolder) -> bool:
    """Return whether a run has a sealed checkpoint, and later steps in its ledger."""
    with suppress(OSError):
        newest = next(iter(sealed_folders(folder.checkpoints)), None)
        return newest is not None and last_step(folder) > step_of(newest)
    return False


def last_step(folder: RunFolder) -> int:
    """Return the last step in the ledger of a run."""
    step = last_row(folder.ledger_file).get("step")
    return step if is_count(step) else 0


def suspend(process: "subprocess.Popen[bytes]") -> list[psutil.Process]:
    """Suspend a process and all its descendants, and return them."""
    family: list[psutil.Process] = []
    with suppress(psutil.Error):
        root = psutil.Process(process.pid)
        # Twice, for those that were started meanwhile; a suspended process starts no others.
        for _ in range(2):
            family = [root, *root.children(recursive=True)]
            for member in family:
                with suppress(psutil.Error):
                    member.suspend()
    return family


def resume(family: list[psutil.Process]) -> None:
    for member in family:
        with suppress(psutil.Error):
            member.resume()


def kill_all(process: "subprocess.Popen[bytes]") -> None:
    """Kill a process that has not ended, its group, and all its descendants, which may have groups of their own."""
    family = suspend(process)
    for member in family:
        with suppress(psutil.Error):
            member.kill()
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    deadline = time.monotonic() + SECONDS_TO_DIE
    while any(map(is_alive, family)) and time.monotonic() < deadline:
        time.sleep(SECONDS_BETWEEN_LOOKS)


def is_alive(process: psutil.Process) -> bool:
    """Return whether a process still runs; one that has ended but was not waited for does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
