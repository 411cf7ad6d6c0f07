"""The process that sends what a run writes into its folder to trackers, beside the process that trains.

It is one of its own, so that no tracker slows or ends the training: the libraries take seconds to import, print, hold
locks while data workers are forked, and wait for networks. It knows nothing but the run folder.
"""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from threading import Event, Thread
from typing import Any

from toolkit.config.schema import Config
from toolkit.errors import DEFECT, DONE, USER_CAN_FIX, UserError
from toolkit.output.console import Console
from toolkit.output.private_words import without_secrets
from toolkit.output.run_folder import read_record
from toolkit.tracking.position import read_position

SECONDS_AFTER_THE_END, SECONDS_AFTER_A_STOP = 60.0, 3.0
"""How long a run waits at its end until all is sent; one that was stopped may be killed while it waits."""
SECONDS_WITHOUT_A_WORD = 5.0
PAUSES = (5.0, 30.0, 120.0, 600.0)
"""Seconds before the process that sends is started again, each time that it ended too early."""
LINES_OF_ERRORS = 3
OF_A_LAUNCHER = (
    *("RANK", "LOCAL_", "WORLD_SIZE", "GROUP_", "ROLE_", "MASTER_", "TORCHELASTIC_", "ACCELERATE_", "FSDP_"),
    *("PARALLELISM_CONFIG_", "PMI_", "OMPI_", "MV2_"),
)
"""What variables begin with that make a process a part of a training."""


class Follower:
    """Sends the run to the trackers that its settings name; without any it does nothing."""

    def __init__(self, config: Config, recipe: str, console: Console) -> None:
        self.run = Path(str(config.output))
        self.wish = config.track
        self.recipe, self.console = recipe, console
        self.process: subprocess.Popen[str] | None = None
        self.reader: Thread | None = None
        self.ending, self.starting = Event(), threading.Lock()
        self.why, self.has_given_up = "", False

    def begin(self) -> None:
        """Start sending what is written from now on, and what an earlier start has not sent."""
        if not self.console.is_main or not self.wish.names:
            return
        try:
            self.process = self.start()
        except OSError as error:
            self.say(f"warning: nothing is sent to {', '.join(self.wish.names)}: {error}; {self.later}")
            return
        self.reader = Thread(target=self.watch, daemon=True)
        self.reader.start()

    def start(self) -> "subprocess.Popen[str]":
        """Start the process that sends."""
        names = {"project": self.wish.project, "run_name": self.wish.run_name}
        words = [f"--{key}={value}" for key, value in names.items() if value is not None]
        command = [sys.executable, "-m", "toolkit", "track", str(self.run), "--to", ",".join(self.wish.names), *words]
        # A pipe that nobody reads any more would end a library that writes to it.
        self.errors = TemporaryFile()  # noqa: SIM115 (closed when the process has ended)
        return subprocess.Popen(
            [*command, "--parent", str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            env=environment(),
            # Ctrl-C is meant for the training; what follows it ends by itself.
            start_new_session=True,
        )

    def catch_up(self) -> None:
        """Send what is missing of a run that is finished."""
        if not self.console.is_main:
            return
        done = read_record(self.run).get("step")
        for name in self.wish.names:
            try:
                position: Any = read_position(self.run, name)
            except UserError:
                position = None
            if position is None or position.finished != done:
                self.begin()
                return

    def watch(self) -> None:
        """Print what the other process says, and start it again where it ends before the training does."""
        for pause in (*PAUSES, None):
            process = self.process
            assert process is not None
            assert process.stdout is not None
            with process.stdout:
                for line in process.stdout:
                    self.say(line.rstrip("\n"))
            code = process.wait()
            why = self.why = self.reason(code)
            if self.ending.is_set() or read_record(self.run).get("status") != "running":
                return
            names = ", ".join(self.wish.names)
            if pause is None or code == USER_CAN_FIX:
                self.has_given_up = True
                self.say(f"warning: nothing more is sent to {names}: what sends {why}; {self.later}")
                return
            self.say(f"warning: what sends to {names} {why}; it is started again in {pause:.0f} seconds")
            self.ending.wait(pause)
            with self.starting:
                if self.ending.is_set():
                    return
                try:
                    self.process = self.start()
                except OSError as error:
                    self.has_given_up = True
                    self.say(f"warning: nothing more is sent to {names}: {error}; {self.later}")
                    return

    def reason(self, code: int) -> str:
        """Return how the other process ended, with the end of what it said last."""
        with self.errors as file:
            file.seek(0)
            said = without_secrets(file.read().decode("utf-8", errors="replace")).splitlines()
        lines = [line.strip() for line in said if line.strip()][-LINES_OF_ERRORS:]
        return f"ended with code {code}" + (f" ({' '.join(lines)})" if lines else "")

    def end(self, seconds: float) -> None:
        """Wait so many seconds until all is sent; after that, or after Ctrl-C, it goes on by itself."""
        if self.process is None or self.reader is None:
            return
        self.ending.set()
        names = ", ".join(self.wish.names)
        with self.starting:
            process = self.process
        try:
            with term_as_interrupt():
                code = self.wait(process, names, seconds)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            self.say(
                f"sending to {names} goes on by itself in process {process.pid}; if that is ended too, {self.later}"
            )
            return
        self.reader.join(1.0)
        if code not in (DONE, DEFECT) and not self.has_given_up:
            self.say(f"warning: what sends to {names} {self.why or f'ended with code {code}'}; {self.later}")

    def wait(self, process: "subprocess.Popen[str]", names: str, seconds: float) -> int:
        """Wait for the other process, and say so if that takes long."""
        try:
            return process.wait(min(seconds, SECONDS_WITHOUT_A_WORD))
        except subprocess.TimeoutExpired:
            if seconds > SECONDS_WITHOUT_A_WORD:
                self.say(f"waiting up to {seconds:.0f} seconds until all is sent to {names} (Ctrl-C: do not wait)")
            return process.wait(max(0.0, seconds - SECONDS_WITHOUT_A_WORD))

    @property
    def later(self) -> str:
        """How the user sends what is missing."""
        return f"`toolkit track {self.run} --to {','.join(self.wish.names)}` sends what is missing"

    def say(self, text: str) -> None:
        """Print a line."""
        self.console.print(f"{self.recipe}: {text}")


@contextmanager
def term_as_interrupt() -> Iterator[None]:
    """Have SIGTERM end the wait in this block as Ctrl-C does: the run itself has ended well by then."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


@contextmanager
def following(config: Config, recipe: str, console: Console) -> Iterator[Follower]:
    """Have a follower in this block, and give it some time at its end."""
    follower = Follower(config, recipe, console)
    try:
        yield follower
    except BaseException:
        follower.end(SECONDS_AFTER_A_STOP)
        raise
    follower.end(SECONDS_AFTER_THE_END)


def environment() -> dict[str, str]:
    """Return the environment for the process that sends: no part of the training, on the CPU, with this toolkit."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(OF_A_LAUNCHER)}
    own = str(Path(__file__).parents[2])
    places = [own, *(place for place in [os.environ.get("PYTHONPATH")] if place)]
    return {**kept, "PYTHONPATH": os.pathsep.join(places), "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
