"""Runs in processes of their own that are stopped, killed or frozen at a known place, and started again.

A `Job` is a run folder with the command that works on it. Each `Start` of it can get into a trouble (`slow_recipe.py`),
at which its processes wait until they are let go: what is done to them meanwhile is done at that place, on a busy
machine too.
"""

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any, Literal

import psutil
from launching import CPU, Process, begin, clean_environment

from toolkit.cli import main

SLOW = Path(__file__).with_name("slow_recipe.py")
HERE = Path(sys.executable).parent
SECONDS = 120.0
"""What takes longer does not come."""


@dataclass(frozen=True)
class Launcher:
    """How the processes of a run are started."""

    name: str
    processes: int = 1
    restarts: int = 0

    def commands(self) -> list[tuple[list[str], dict[str, str]]]:
        """Return words that go before the recipe's, and what is in the environment, for each process to start."""
        if self.name == "python":
            return [([sys.executable], {})]
        if self.name == "accelerate launch" and self.processes == 1:
            # Without an agent: the launcher waits for its one process, and forwards nothing.
            return [([str(HERE / "accelerate"), "launch", "--cpu", "--num_processes", "1"], {})]
        if self.name == "accelerate launch":
            file = ["--config_file", str(CPU), "--num_processes", str(self.processes), "--main_process_port", "0"]
            return [([str(HERE / "accelerate"), "launch", *file], {})]
        if self.name == "torchrun":
            counts = ["--nproc_per_node", str(self.processes), "--max_restarts", str(self.restarts)]
            return [([str(HERE / "torchrun"), "--standalone", *counts], {"ACCELERATE_USE_CPU": "true"})]
        assert self.name == "by hand"
        common = {"WORLD_SIZE": str(self.processes), "MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port())}
        return [
            ([sys.executable], {**common, "RANK": str(rank), "LOCAL_RANK": str(rank), "ACCELERATE_USE_CPU": "true"})
            for rank in range(self.processes)
        ]

    def __str__(self) -> str:
        several = f" x {self.processes}" if self.processes > 1 else ""
        return self.name + several + (f", {self.restarts} restarts" if self.restarts else "")


PYTHON = Launcher("python")
ACCELERATE, ACCELERATE_TWO = Launcher("accelerate launch"), Launcher("accelerate launch", 2)
TORCHRUN, TORCHRUN_AGAIN = Launcher("torchrun", 2), Launcher("torchrun", 2, restarts=3)
BY_HAND = Launcher("by hand", 2)


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as place:
        place.bind(("localhost", 0))
        return int(place.getsockname()[1])


@dataclass(frozen=True)
class Trouble:
    """What a start gets into; see `slow_recipe.Trouble`."""

    place: str = "loss"
    at: int = 42
    rank: int | None = None
    what: Literal["none", "hold", "defect", "user_error"] = "hold"


NO_TROUBLE = Trouble(what="none")


@dataclass(frozen=True)
class Ending:
    """How a start ended."""

    codes: list[int]
    """The exit code of the launcher, or of each process that was started by hand."""
    seconds: float
    """From the last signal, or else from the call of `end`, to the end of the last process."""
    lingered: float
    """Of these, the seconds after the launcher had ended."""
    left: int
    """Processes that were still there after that."""
    said: str
    """What they all printed."""

    @property
    def code(self) -> int:
        """The exit code of the launcher."""
        return self.codes[0]


class Job:
    """A run folder, and the command that works on it."""

    def __init__(self, parent: Path, launcher: Launcher = PYTHON, *settings: str, recipe: Path = SLOW) -> None:
        self.parent = parent
        self.folder = parent / "run"
        self.launcher = launcher
        self.settings = settings
        self.recipe = recipe
        self.starts = 0
        parent.mkdir(parents=True, exist_ok=True)

    @contextmanager
    def start(
        self, trouble: Trouble = NO_TROUBLE, *settings: str, launcher: Launcher | None = None
    ) -> Iterator["Start"]:
        """Start the run, and leave nothing of it behind at the end of the block."""
        self.starts += 1
        signs = self.parent / f"signs-{self.starts}"
        signs.mkdir()
        words = [str(self.recipe), "--threads", "1", "--output", str(self.folder), *self.settings, *settings]
        words += ["--trouble.signs", str(signs)]
        words += ["--trouble.what", trouble.what, "--trouble.place", trouble.place, "--trouble.at", str(trouble.at)]
        words += [] if trouble.rank is None else ["--trouble.rank", str(trouble.rank)]
        log, processes = signs / "log.txt", []
        log.touch()
        if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
            # What a shell does to a command in the background, and with it to all that this starts.
            signal.signal(signal.SIGINT, signal.default_int_handler)
        for before, environment in (launcher or self.launcher).commands():
            # In a session of its own, so that a signal to the whole group does not reach who sends it.
            processes.append(begin([*before, *words], clean_environment(**environment), self.parent, log))
        start = Start(self, trouble, signs, log, processes)
        try:
            yield start
        finally:
            for process in start.alive():
                with suppress(psutil.Error):
                    process.kill()
            for process in processes:
                process.kill()
                process.wait()

    def carry_through(self, *settings: str, launcher: Launcher | None = None) -> "Ending":
        """Start the run without any trouble and wait for its end."""
        with self.start(NO_TROUBLE, *settings, launcher=launcher) as start:
            return start.end()

    @property
    def record(self) -> dict[str, Any]:
        """The run.json."""
        record: dict[str, Any] = json.loads((self.folder / "run.json").read_text(encoding="utf-8"))
        return record

    def status(self) -> int:
        """Return the exit code of `toolkit status`."""
        with redirect_stdout(StringIO()):
            return main(["status", str(self.folder)])

    def rows(self) -> list[int]:
        """Return the steps in the ledger."""
        path = self.folder / "ledger.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.is_file() else []
        return [json.loads(line)["step"] for line in lines if line.endswith("\n")]

    def sealed(self) -> list[int]:
        """Return the steps that have a checkpoint."""
        return sorted(int(path.parent.name[5:]) for path in self.folder.glob("checkpoints/step-??????/manifest.json"))

    def state(self, step: int) -> dict[str, Any]:
        """Return what a checkpoint says of the run."""
        path = self.folder / "checkpoints" / f"step-{step:06d}" / "state.json"
        state: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return state

    def weights(self) -> bytes:
        """Return the final weights, as they stand in their file."""
        return (self.folder / "model" / "model.safetensors").read_bytes()


class Start:
    """The processes of one start, as those see it who wait for them."""

    def __init__(self, job: Job, trouble: Trouble, signs: Path, log: Path, processes: list[Process]) -> None:
        self.job = job
        self.trouble = trouble
        self.signs = signs
        self.log = log
        self.processes = processes
        self.signalled: float | None = None

    def until(self, condition: Callable[[], bool], what: str, within: float = SECONDS) -> None:
        """Wait until something is so.

        Raises:
            AssertionError: it does not come, or all processes ended without it.
        """
        end = time.monotonic() + within
        while not condition():
            # A launcher that a signal ends can be survived by what it started.
            ended = all(process.poll() is not None for process in self.processes) and not self.alive()
            if (ended and not condition()) or time.monotonic() > end:
                raise AssertionError(f"waited for {what}; {'it ended: ' if ended else ''}{self.said()}")
            time.sleep(0.01)

    def said(self) -> str:
        """Return what was printed so far."""
        return self.log.read_text(encoding="utf-8")

    def told(self, name: str, rank: int) -> str:
        """Return the text of a sign of a process, or nothing."""
        try:
            return (self.signs / f"{name}-{rank}").read_text(encoding="utf-8")
        except OSError:
            return ""

    def reached(self, *ranks: int) -> None:
        """Wait until these processes have come to the place of the trouble."""
        for rank in ranks:
            self.until(
                lambda rank=rank: self.told("reached", rank) != "", f"process {rank} at the place of the trouble"
            )  # type: ignore[misc]

    def seen(self, rank: int, by: int, doing: str) -> None:
        """Wait until one process has heard what another one does, so that it can tell in case that one dies."""
        self.until(lambda: doing in self.told(f"sees-{rank}-by", by), f"process {by} to see process {rank} {doing}")

    def heard(self, *ranks: int) -> None:
        """Wait until these processes know that they were asked to stop."""
        for rank in ranks:
            what = f"process {rank} to hear"
            self.until(lambda rank=rank: self.told("heard", rank) != "", what)  # type: ignore[misc]

    def go(self) -> None:
        """Let those go that wait at the place of the trouble."""
        (self.signs / "go").touch()

    def process(self, rank: int) -> psutil.Process:
        """Return a process that trains."""
        self.until(lambda: self.told("process", rank) != "", f"process {rank}")
        return psutil.Process(int(self.told("process", rank)))

    def workers(self, rank: int = 0) -> list[psutil.Process]:
        """Return the loader processes of a process."""
        return self.process(rank).children()

    def send(self, number: signal.Signals, *processes: "psutil.Process | Process") -> None:
        """Send a signal to processes, the launcher by default."""
        for process in processes or self.processes[:1]:
            process.send_signal(number)
        self.signalled = time.monotonic()

    def send_to_group(self, number: signal.Signals) -> None:
        """Send a signal to the launcher and all that it started in its own process group, as a terminal does."""
        os.killpg(self.processes[0].pid, number)
        self.signalled = time.monotonic()

    def alive(self) -> list[psutil.Process]:
        """Return all processes of this run: launchers, those that train, loader processes."""
        found = []
        for process in psutil.process_iter(["cmdline", "status"]):
            named = any(str(self.job.folder) in word for word in process.info["cmdline"] or ())
            if named and process.info["status"] != psutil.STATUS_ZOMBIE:
                found.append(process)
        return found

    def end(self, lingering: float = 15.0, within: float = SECONDS) -> Ending:
        """Wait for the launcher, and so many seconds more for what it may have left behind.

        Raises:
            AssertionError: the launcher does not end.
        """
        since = self.signalled or time.monotonic()
        limit = time.monotonic() + within
        while any(process.poll() is None for process in self.processes):
            if time.monotonic() > limit:
                raise AssertionError(f"it does not end: {self.said()}")
            time.sleep(0.01)
        launcher_ended = time.monotonic()
        left: Sequence[psutil.Process] = self.alive()
        while left and time.monotonic() < launcher_ended + lingering:
            time.sleep(0.02)
            left = self.alive()
        ended = time.monotonic()
        codes = [process.wait() for process in self.processes]
        return Ending(codes, ended - since, ended - launcher_ended, len(left), self.said())
