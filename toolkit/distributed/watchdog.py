"""How the processes of a run notice that one of them died or hangs, and end together with a message that names it.

Each process has a thread that writes every second into a small store in process 0 what its main thread is doing.
Process 0 looks at all of them, the others at process 0. The process groups, through which training communicates, are
not used.
"""

import json
import os
import re
import socket
import threading
from collections.abc import Callable
from datetime import timedelta
from time import monotonic, sleep
from typing import Any

import psutil
import torch.distributed
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from toolkit.config.schema import TimeoutConfig
from toolkit.distributed.phase import PhaseTracker
from toolkit.distributed.watchdog_verdict import Sign, Verdict, kill_frozen, print_verdict, suspicion
from toolkit.errors import DEFECT

INTERVAL = 1.0
# Once a collective has failed, a process that has missed so many beats is taken for dead.
MISSED_BEATS = 3
# A process that was asked to stop may be killed soon: it does not wait longer than this for one that is silent.
SECONDS_WHEN_STOPPING = 10.0
SECONDS_TO_EXPLAIN = 15.0
SECONDS_FOR_ON_EXIT = 5.0
# What gloo and NCCL say when another process is gone. (They raise RuntimeErrors of many kinds.)
LOST = re.compile(
    r"closed by peer|reset by peer|broken pipe|connection refused|timed out|gloo|nccl|socket", re.IGNORECASE
)


class Watchdog:
    """The watchdog of one process. Without a store, as in a run of one process, it watches nobody."""

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
        self.on_exit: Callable[[Verdict], int] = print_verdict
        """Records why the run ends, prints it unless another process did, and returns the exit code."""
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
        """Start both threads. The store has the first beat of every process by now."""
        for work in (self.beat_on, self.guard):
            thread = threading.Thread(target=work, name=f"watchdog: {work.__name__}", daemon=True)
            thread.start()
            self.threads.append(thread)

    def own_beat(self) -> str:
        """Return the next sign of life of this process, as JSON."""
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
        """Judge the others by their signs of life, again and again."""
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
        """Return the verdict if the process for which all others wait, the one least far, stands still too long."""
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
            self.send(verdict)
        if self.settled is not None:
            # The result of the run is written down already; this process was only leaving.
            os._exit(self.settled)
        if self.rank == 0 or (
            found_here and main_is_silent and (self.rank == 1 or os.environ.get("LOCAL_RANK") == "0")
        ):
            code = self.run_on_exit(verdict)
        if "silent" in verdict:
            kill_frozen(verdict["silent"])
        if self.rank == 0 and self.size > 1:
            # The store lives here: the others have to read the verdict first.
            sleep(2 * self.interval)
        os._exit(code)

    def run_on_exit(self, verdict: Verdict) -> int:
        """Run `on_exit` and return the exit code, after some seconds in any case: a disk may not answer."""
        codes: list[int] = []
        thread = threading.Thread(target=lambda: codes.append(self.on_exit(verdict)), daemon=True)
        thread.start()
        thread.join(SECONDS_FOR_ON_EXIT)
        return codes[0] if codes else int(verdict["code"])

    def send(self, verdict: Verdict) -> bool:
        """Send a verdict to all processes; return whether another process has sent one before."""
        if self.store is None:
            return False
        text = json.dumps(verdict)
        try:
            return bytes(self.store.compare_set("verdict", "", text)).decode() != text
        except (RuntimeError, OSError):
            return False

    def explain(self, error: BaseException) -> None:
        """End the run with a message on who died, if this error came because another process did; else return."""
        if self.store is None or not isinstance(error, RuntimeError | OSError) or not LOST.search(str(error)):
            return
        self.suspicious.set()
        # The guard ends this process from its thread; if it finds nothing, all are alive and the error is a defect.
        sleep(SECONDS_TO_EXPLAIN)

    def give_up(self, text: str, code: int) -> None:
        """End the other processes, because this one fails with an error that it prints itself.

        If another process was first, as when memory runs out in all of them at once, only that one prints its error.
        """
        if self.store is None:
            return
        self.leaving = True
        if self.send({"text": f"process {self.rank} of {self.size} failed: {text}", "code": code, "printed": True}):
            # The thread that receives the verdict ends this process meanwhile.
            sleep(SECONDS_TO_EXPLAIN)
        sleep(2 * self.interval if self.rank == 0 else 0)

    def leave(self) -> None:
        """Note that from here on another process may be gone first."""
        self.leaving = True

    def close(self) -> None:
        self.closing.set()
        for thread in self.threads:
            thread.join(timeout=2 * self.interval)


def start_watchdog(
    rank: int, size: int, control: torch.distributed.ProcessGroup, phases: PhaseTracker, timeout: TimeoutConfig
) -> Watchdog:
    """Return the watchdog of this process; all processes call it together."""
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
