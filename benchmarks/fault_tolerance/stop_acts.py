"""What a case of `stop_matrix.py` is, and what is done to a run: signals, and waiting for the right moment."""

import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "helpers"))

from stopped_runs import ACCELERATE, Job, Launcher, Start, Trouble

TERM, INT, USR1, KILL, FREEZE = signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGKILL, signal.SIGSTOP
PROGRESS = 3
"""Seconds of timeout.progress where it matters."""
STEPS = 120
TRAINING, EVALUATION = Trouble(), Trouble("evaluation", at=6)
SILENCE = 5
"""Seconds of timeout.silence."""


@dataclass(frozen=True)
class Case:
    """One way to interfere, and what is promised to come of it."""

    what: str
    launcher: Launcher
    act: Callable[[Start], None]
    trouble: Trouble = TRAINING
    settings: tuple[str, ...] = ()
    codes: tuple[int, ...] = (75,)
    """Of the launcher (which knows but 0 and 1), or of each process started by hand."""
    status: int = 75
    """What `toolkit status` returns."""
    recorded: str = "preempted"
    """The status in run.json."""
    at: int = 42
    """The step that was interfered with."""
    sealed: int | None = 42
    """The newest checkpoint afterwards."""
    within: float = 15.0
    """Seconds to the end of the last process."""
    once: tuple[str, ...] = ()
    """What has to be said exactly once."""
    never: tuple[str, ...] = ()
    """What may not be said."""
    again: tuple[str, ...] = ()
    """Settings of the start that goes on."""
    beforehand: Callable[[Job], None] | None = None
    """What is done before the run is started."""
    nan: bool = False
    """Whether the numbers are those of a run with a step that is left out."""


def held(*numbers: signal.Signals, rank: int | None = None, release: bool = True) -> Callable[[Start], None]:
    """Return what sends signals to the launcher, or to one process, while those in trouble hold.

    Args:
        numbers: the signals, at once one after another.
        rank: the process; the launcher if there is none.
        release: whether the processes are let go when the signal was heard.
    """

    def act(start: Start) -> None:
        troubled = ready(start)
        target = start.processes[0] if rank is None else start.process(rank)
        for number in numbers:
            start.send(number, target)
        if release:
            start.heard(*(troubled if rank is None else [rank]))
            start.go()

    return act


def ready(start: Start) -> list[int]:
    """Wait until the processes in trouble hold, and each knows what the other one does; return who is in trouble."""
    trouble, processes = start.trouble, start.job.launcher.processes
    troubled = list(range(processes)) if trouble.rank is None else [trouble.rank]
    start.reached(*troubled)
    if processes > 1 and trouble.place in ("loss", "evaluation"):
        for rank in troubled:
            start.seen(rank, 1 - rank, PLACES[trouble.place])
    return troubled


PLACES = {"loss": "in the forward pass of step 42", "evaluation": "evaluating batch"}


def stop_file(start: Start) -> None:
    """Ask by the file STOP."""
    ready(start)
    (start.job.folder / "STOP").touch()
    start.signalled = time.monotonic()
    start.go()


def term_after_interrupt(start: Start) -> None:
    """Send SIGINT, and SIGTERM a second and a half later; nobody is let go."""
    ready(start)
    start.send(INT)
    start.heard(0)
    time.sleep(1.5)
    start.send(TERM)


def interrupt_twice(start: Start) -> None:
    """Send SIGINT, and again when it was heard; nobody is let go."""
    ready(start)
    start.send(INT)
    start.heard(0)
    start.send(INT)


def control_c(start: Start) -> None:
    """Do what a terminal does; go on when the launcher has died of it, or when all have heard."""
    troubled = ready(start)
    start.send_to_group(INT)
    start.heard(*troubled)
    if start.job.launcher == ACCELERATE:
        start.processes[0].wait(60)
        time.sleep(1.5)
    start.go()


def from_both_sides(start: Start) -> None:
    """Send SIGTERM to the agent, which sends it on, and to the processes as well, as `srun` does."""
    troubled = ready(start)
    start.send(TERM, start.processes[0], *(start.process(rank) for rank in troubled))
    start.heard(*troubled)
    start.go()


def launcher_before_it_began(start: Start) -> None:
    """Send SIGTERM to the launcher while the recipe is still importing."""
    launcher = start.processes[0]
    start.until(lambda: len(start.alive()) > 1, "a process of the launcher")
    start.send(TERM, launcher)
    start.go()


def to_a_worker(number: signal.Signals) -> Callable[[Start], None]:
    """Return what sends a signal to each loader process alone."""

    def act(start: Start) -> None:
        ready(start)
        workers = start.workers()
        assert len(workers) == 2
        start.send(number, *workers)
        start.go()

    return act


def when_it_waits(start: Start) -> None:
    """Send SIGTERM when the process has done what was read before, and waits for the rest."""
    ready(start)
    time.sleep(2)
    start.send(TERM)


def after_time_out(start: Start) -> None:
    """Let the processes go when they have stood there for longer than the time-outs."""
    start.reached(0)
    start.signalled = time.monotonic()
    time.sleep(2 * PROGRESS)
    start.go()


def nothing(start: Start) -> None:
    """Do nothing: the trouble is enough."""
    start.signalled = time.monotonic()


def in_trouble(start: Start) -> None:
    """Wait for the trouble, and measure from there."""
    assert start.trouble.rank is not None
    start.reached(start.trouble.rank)
    start.signalled = time.monotonic()
