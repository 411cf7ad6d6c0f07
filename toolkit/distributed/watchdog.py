"""How the processes of a run notice that one of them died or hangs, and end together, with a word on which and where.

Each process has a thread that tells a small store in process 0, every second, what its main thread is doing. Process 0 looks
at all of them, the others at process 0. Nothing of it touches the groups that training communicates through.
"""

import json
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from time import monotonic, sleep
from typing import Any, TypedDict

import psutil
import torch.distributed
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from toolkit.config.schema import TimeoutConfig
from toolkit.distributed.phase import PhaseTracker
from toolkit.errors import DEFECT

INTERVAL = 1.0
# Who has missed so many beats is taken for dead once a collective has failed.
MISSED_BEATS = 3
# A process that was asked to stop may be killed soon: it does not wait longer than this for one that is silent.
SECONDS_WHEN_STOPPING = 10.0
SECONDS_TO_EXPLAIN = 15.0
SECONDS_FOR_LAST_WORDS = 5.0
# What gloo and NCCL say when another process is gone. (They raise RuntimeErrors of many kinds.)
LOST = re.compile(
    r"closed by peer|reset by peer|broken pipe|connection refused|timed out|gloo|nccl|socket", re.IGNORECASE
)


class Verdict(TypedDict, total=False):
    """Why the run ends; sent to all processes as JSON."""

    text: str
    code: int
    """The exit code."""
    told: bool
    """The user knows already."""
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
    """When it came, on the clock of the process that watches."""

    def describe(self) -> str:
        """Say what the process was doing."""
        step = f" of step {self.beat['step']:,}" if self.beat["step"] is not None else ""
        return f"{self.beat['what']}{step}"


class Watchdog:
    """One process's part in it. Without a store, as in a run of one process, it watches nobody."""

    def __init__(
        self,
        rank: int = 0,
        size: int = 1,
        phases: PhaseTracker | None = None,
        timeout: TimeoutConfig | None = None,
        store: TCPStore | None = None,
    ) -> None:
        self.rank = rank
        self.size = size
        self.phases = phases or PhaseTracker()
        self.timeout = timeout or TimeoutConfig()
        self.store = store
        self.interval = min(INTERVAL, self.timeout.silence / 4)
        self.stopping: Callable[[], bool] = lambda: False
        """Whether the run was asked to stop."""
        self.on_exit: Callable[[Verdict], int] = say_aloud
        """Tells the run folder why the run ends, and the user too unless somebody did; returns the exit code."""
        self.settled: int | None = None
        """The exit code, once the end of the run is written down."""
        self.signs: dict[int, Sign] = {}
        self.count = 0
        self.contact = monotonic()
        self.lost_contact = False
        self.suspicious = threading.Event()
        self.leaving = False
        self.closing = threading.Event()
        self.ending = threading.Lock()
        self.threads: list[threading.Thread] = []

    def start(self) -> None:
        """Begin to give signs of life and to look for those of others. The store has the first beat of all by now."""
        for work in (self.beat_on, self.guard):
            thread = threading.Thread(target=work, name=f"watch: {work.__name__}", daemon=True)
            thread.start()
            self.threads.append(thread)

    def own_beat(self) -> str:
        """Return what this process tells the others."""
        phase, process = self.phases.phase, psutil.Process()
        self.count += 1
        return json.dumps(
            {
                "count": self.count,
                "what": phase.what,
                "step": phase.step,
                "patient": phase.patient,
                "place": phase.place,
                "seconds": monotonic() - phase.since,
                "host": socket.gethostname(),
                "pid": process.pid,
                "born": process.create_time(),
            }
        )

    def beat_on(self) -> None:
        """Exchange beats, again and again. Any operation may stand still for ever where process 0 is frozen."""
        assert self.store is not None
        watched = range(1, self.size) if self.rank == 0 else range(1)
        keys = [f"beat/{rank}" for rank in watched]
        while not self.closing.wait(self.interval):
            try:
                self.store.set(f"beat/{self.rank}", self.own_beat())
                *beats, verdict = self.store.multi_get([*keys, "verdict"])
            except (RuntimeError, OSError):
                self.lost_contact = True
                return
            self.contact = monotonic()
            if verdict:
                self.end(json.loads(verdict), found_here=False)
            for rank, text in zip(watched, beats, strict=True):
                beat = json.loads(text)
                previous = self.signs.get(rank)
                if previous is None or previous.beat["count"] != beat["count"]:
                    self.signs[rank] = Sign(beat, monotonic())

    def guard(self) -> None:
        """Judge the others by what was heard of them."""
        while not self.closing.wait(self.interval / 2):
            verdict = self.judge()
            if verdict is not None:
                self.end(verdict, found_here=True)

    def judge(self) -> Verdict | None:
        """Return the verdict if a process is silent or stands still for too long."""
        now = monotonic()
        patience = self.timeout.silence
        if self.stopping():
            patience = min(patience, SECONDS_WHEN_STOPPING)
        if self.suspicious.is_set():
            patience = MISSED_BEATS * self.interval
        for rank, sign in list(self.signs.items()):
            silent = now - sign.heard
            if silent > patience or (self.lost_contact and not self.leaving and rank == 0):
                how = "died"
                if silent > self.timeout.silence:
                    limit = f"timeout.silence is {self.timeout.silence:g}"
                    how = f"has given no sign of life for {silent:.0f} s ({limit}): {suspicion(sign.beat['host'])}"
                text = f"process {rank} of {self.size} {how}; it was last seen {sign.describe()}"
                return {
                    "text": text,
                    "code": DEFECT,
                    "silent": {key: sign.beat[key] for key in ("host", "pid", "born")},
                }
        return self.judge_progress() if self.rank == 0 else None

    def judge_progress(self) -> Verdict | None:
        """Return the verdict if the process that has come least far, which all others wait for, stands still for too long."""
        now = monotonic()
        signs = {0: Sign(json.loads(self.own_beat()), now), **self.signs}
        standing = {rank: sign.beat["seconds"] + now - sign.heard for rank, sign in signs.items()}
        first = min(signs, key=lambda rank: (signs[rank].beat["place"], -standing[rank]))
        if signs[first].beat["patient"] or standing[first] <= self.timeout.progress:
            return None
        others = "; ".join(f"process {rank} is {sign.describe()}" for rank, sign in signs.items() if rank != first)
        return {
            "text": f"process {first} of {self.size} has made no progress for {standing[first]:.0f} s "
            f"(timeout.progress is {self.timeout.progress:g}): it is {signs[first].describe()}; {others}",
            "code": DEFECT,
        }

    def end(self, verdict: Verdict, found_here: bool) -> None:
        """End this process, and let the others know if it was found here. Does not return."""
        # Both threads may come here; the second one waits for the end.
        self.ending.acquire()
        code, main_is_silent = int(verdict["code"]), self.rank > 0 and "silent" in verdict
        if found_here and not main_is_silent:
            self.tell(verdict)
        if self.settled is not None:
            # What the run came to is written down already; it was only leaving.
            os._exit(self.settled)
        if self.rank == 0 or (
            found_here and main_is_silent and (self.rank == 1 or os.environ.get("LOCAL_RANK") == "0")
        ):
            code = self.say_last(verdict)
        if "silent" in verdict:
            kill_frozen(verdict["silent"])
        if self.rank == 0 and self.size > 1:
            # The store lives here: the others have to hear of it first.
            sleep(2 * self.interval)
        os._exit(code)

    def say_last(self, verdict: Verdict) -> int:
        """Say the last words, and return the exit code; a disk that does not answer delays the end by a few seconds at most."""
        found: list[int] = []
        speaker = threading.Thread(target=lambda: found.append(self.on_exit(verdict)), daemon=True)
        speaker.start()
        speaker.join(SECONDS_FOR_LAST_WORDS)
        return found[0] if found else int(verdict["code"])

    def tell(self, verdict: Verdict) -> bool:
        """Leave word for all processes that the run ends; return whether another one has left its word before."""
        if self.store is None:
            return False
        word = json.dumps(verdict)
        try:
            return bytes(self.store.compare_set("verdict", "", word)).decode() != word
        except (RuntimeError, OSError):
            return False

    def explain(self, error: BaseException) -> None:
        """End the run with a word on who died, if this error came because another process did; else return."""
        if self.store is None or not isinstance(error, RuntimeError | OSError) or not LOST.search(str(error)):
            return
        self.suspicious.set()
        # The guard ends this process from its thread; if it finds nothing, all are alive and the error is a defect.
        sleep(SECONDS_TO_EXPLAIN)

    def give_up(self, text: str, code: int) -> None:
        """Tell the others that this process ends by an error of its own, of which it tells the user itself.

        Where another one was first, as when memory runs out in all of them at once, that one speaks for all.
        """
        if self.store is None:
            return
        self.leaving = True
        if self.tell({"text": f"process {self.rank} of {self.size} failed: {text}", "code": code, "told": True}):
            # The thread that hears of it ends this process meanwhile.
            sleep(SECONDS_TO_EXPLAIN)
        sleep(2 * self.interval if self.rank == 0 else 0)

    def leave(self) -> None:
        """From here on another process may be gone first."""
        self.leaving = True

    def close(self) -> None:
        """Stop watching."""
        self.closing.set()
        for thread in self.threads:
            thread.join(timeout=2 * self.interval)


def say_aloud(verdict: Verdict) -> int:
    """Tell the user, unless somebody did already."""
    if not verdict.get("told"):
        print(verdict["text"], file=sys.stderr, flush=True)
    return int(verdict["code"])


def suspicion(host: str) -> str:
    """Say what may be wrong with a silent process on that machine. From another machine a cut network looks the same."""
    here = socket.gethostname()
    if host == here:
        return "it died or froze"
    return f"it or its machine ({host}) died or froze, or the network between {host} and {here} is cut"


def kill_frozen(silent: Mapping[str, Any]) -> None:
    """Kill a process of this run that gives no sign of life, if it is on this machine: it may hold the run folder's lock."""
    if silent["host"] != socket.gethostname():
        return
    try:
        process = psutil.Process(silent["pid"])
        # Process numbers are used again; the time of birth tells.
        if abs(process.create_time() - silent["born"]) < 1:
            process.send_signal(signal.SIGKILL)
    except psutil.Error:
        return


def start_watchdog(
    rank: int, size: int, control: torch.distributed.ProcessGroup, phases: PhaseTracker, timeout: TimeoutConfig
) -> Watchdog:
    """Return the watch of this process; all processes call it together."""
    host, patience = os.environ.get("MASTER_ADDR", "localhost"), timedelta(seconds=max(60.0, timeout.silence))
    store: Any = None
    port = [0]
    if rank == 0:
        store = TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=patience)
        store.set("verdict", "")
        port = [store.port]
    torch.distributed.broadcast_object_list(port, src=0, group=control)
    if rank > 0:
        store = TCPStore(host, port[0], is_master=False, wait_for_workers=False, timeout=patience)
    watchdog = Watchdog(rank, size, phases, timeout, store)
    store.set(f"beat/{rank}", watchdog.own_beat())
    torch.distributed.barrier(group=control)
    watchdog.start()
    return watchdog
