"""Requests to stop: signals and the file STOP. They are noted at once, and all processes stop together between steps.

A handler in Python runs only between two instructions of the main thread, which may wait in a collective for minutes.
So a thread of its own listens at the descriptor to which Python writes the number of each signal.

The module stands at the root because `toolkit/data/loader.py`, below `distributed/`, protects its workers from signals.
"""

import ctypes
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from types import FrameType

REQUESTS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
# What the kernel sends when the launcher dies: none of the signals that a person or a launcher sends, so that the end
# of the launcher half a second after a Ctrl-C is not taken for the second Ctrl-C. (macOS has no such signals, and sends
# none.)
LAUNCHER_DIED = getattr(signal, "SIGRTMIN", signal.SIGUSR2)
PR_SET_PDEATHSIG = 1
SECONDS_TO_A_SECOND_REQUEST = 1.0


class StopRequests:
    """Whether this process was asked to stop, and by what."""

    def __init__(self, grace: float | None = None) -> None:
        self.grace = grace
        self.reason: str | None = None
        self.file: Path | None = None
        self.asked_at: float | None = None
        self.interrupted_at: float | None = None

    @property
    def requested(self) -> bool:
        """Whether somebody asked, by a signal or by the file."""
        # A third of the time of `Path.exists`, in every step.
        if self.reason is None and self.file is not None and os.path.exists(self.file):  # noqa: PTH110
            self.note(f"the file {self.file.name}")
        return self.reason is not None

    def note(self, reason: str) -> None:
        """Take note of a request; the first one counts."""
        if self.reason is None:
            self.asked_at = monotonic()
            self.reason = reason

    @contextmanager
    def listening(self, end_at_once: Callable[[str, bool], None], launched: bool) -> Iterator[None]:
        """Take signals for requests in this block; nothing outside of the main thread, where Python allows no handler.

        Args:
            end_at_once: ends the run, given the reason and whether the grace period is over; called from a thread.
            launched: whether a launcher started this process, whose death is a request too.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        receiving, sending = socket.socketpair()
        sending.setblocking(False)
        previous = {number: signal.signal(number, ignore_here) for number in (*REQUESTS, LAUNCHER_DIED)}
        previous_descriptor = signal.set_wakeup_fd(sending.fileno(), warn_on_full_buffer=False)
        listener = threading.Thread(
            target=self.listen, args=(receiving, end_at_once), name="stop requests", daemon=True
        )
        listener.start()
        if launched:
            tell_when_launcher_dies()
        try:
            yield
        finally:
            signal.set_wakeup_fd(previous_descriptor)
            for number, handler in previous.items():
                # Who was asked to stop is about to end: a second SIGTERM of an agent must not change the exit code. A
                # notebook stays, and Ctrl-C has to work there.
                ends = self.reason is not None and not hasattr(sys, "ps1")
                signal.signal(number, signal.SIG_IGN if ends else handler)
            # A loader's worker has a copy of this end, which closing ours would leave open, and the listener waiting.
            sending.shutdown(socket.SHUT_RDWR)
            sending.close()
            listener.join()
            receiving.close()

    def listen(self, receiving: socket.socket, end_at_once: Callable[[str, bool], None]) -> None:
        """Wait for the numbers of signals, and for the end of the grace period once one has come."""
        while True:
            left = None
            if self.grace is not None and self.asked_at is not None:
                left = self.asked_at + self.grace - monotonic()
                if left <= 0:
                    end_at_once(f"no checkpoint within the {self.grace:g} s of checkpoint.grace", True)
            receiving.settimeout(min(left, 1.0) if left is not None else (1.0 if self.grace is not None else None))
            try:
                numbers = receiving.recv(64)
            except TimeoutError:
                continue
            except OSError:
                return
            if not numbers:
                return
            for number in numbers:
                self.hear(number, end_at_once)

    def hear(self, number: int, end_at_once: Callable[[str, bool], None]) -> None:
        if number == LAUNCHER_DIED:
            self.note("the launcher ended")
            return
        if number not in REQUESTS:
            return
        name = signal.Signals(number).name
        if self.interrupted_at is not None and (
            number == signal.SIGINT or monotonic() - self.interrupted_at >= SECONDS_TO_A_SECOND_REQUEST
        ):
            end_at_once(f"{name} after SIGINT", False)
        if number == signal.SIGINT and self.interrupted_at is None:
            self.interrupted_at = monotonic()
        self.note(name)


def ignore_here(number: int, frame: FrameType | None) -> None:
    """Do nothing, as the handler: the system has woken the thread that listens."""


def end_undisturbed() -> None:
    """Ignore requests from here on: this process ends by itself, and has to print why before an agent ends it."""
    if threading.current_thread() is threading.main_thread():
        for number in (*REQUESTS, LAUNCHER_DIED):
            signal.signal(number, signal.SIG_IGN)


def tell_when_launcher_dies() -> None:
    """Have the kernel send a signal when the parent process dies; `accelerate launch` of one process forwards none."""
    parent = os.getppid()
    on_death_of_parent(LAUNCHER_DIED)
    if os.getppid() != parent:
        os.kill(os.getpid(), LAUNCHER_DIED)


def leave_signals_to_the_run(worker: int = 0) -> None:
    """Let a worker of a loader ignore signals that are meant for the run, and die at once with its parent process.

    Called by torch when a worker has started. It was forked with these signals held back (see `held_back`), so that
    none can come before.
    """
    signal.set_wakeup_fd(-1)
    for number in REQUESTS:
        signal.signal(number, signal.SIG_IGN)
    on_death_of_parent(signal.SIGKILL)


@contextmanager
def held_back() -> Iterator[None]:
    """Keep the signals that ask to stop from this thread, and from processes that are forked meanwhile."""
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, REQUESTS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)


def on_death_of_parent(number: int) -> None:
    """Ask the kernel for a signal when the parent process dies (Linux; elsewhere nothing is asked)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, int(number), 0, 0, 0)
