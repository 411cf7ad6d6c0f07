"""Why a run ends: the verdict that all its processes receive, and the signs of life from which it is drawn."""

import signal
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

import psutil


class Verdict(TypedDict, total=False):
    """Why the run ends; sent to all processes as JSON."""

    text: str
    code: int
    """The exit code."""
    printed: bool
    """Whether the user has read why already."""
    silent: dict[str, Any]
    """Machine, number and time of birth of a process that gave no sign of life."""
    at_once: bool
    """Somebody asked for it."""
    expired: bool
    """Somebody asked for a checkpoint first, which took longer than the grace period."""


@dataclass
class Sign:
    """The last sign of life of a process."""

    beat: Mapping[str, Any]
    heard: float
    """When it came, on the clock of the process that received it."""

    def describe(self) -> str:
        """Return what the process was doing, in words."""
        step = f" of step {self.beat['step']:,}" if self.beat["step"] is not None else ""
        return f"{self.beat['what']}{step}"


def print_verdict(verdict: Verdict) -> int:
    """Print why the run ends, unless the user has read it already, and return the exit code."""
    if not verdict.get("printed"):
        print(verdict["text"], file=sys.stderr, flush=True)
    return int(verdict["code"])


def suspicion(host: str) -> str:
    """Return what may be wrong with a silent process; from another machine a cut network looks the same."""
    here = socket.gethostname()
    if host == here:
        return "it died or froze"
    return f"it or its machine ({host}) died or froze, or the network between {host} and {here} is cut"


def kill_frozen(silent: Mapping[str, Any]) -> None:
    """Kill a silent process of this run, if it is on this machine: it may hold the lock of the run folder."""
    if silent["host"] != socket.gethostname():
        return
    try:
        process = psutil.Process(silent["pid"])
        # Process numbers are used again; the time of birth shows which process it is.
        if abs(process.create_time() - silent["born"]) < 1:
            process.send_signal(signal.SIGKILL)
    except psutil.Error:
        return
