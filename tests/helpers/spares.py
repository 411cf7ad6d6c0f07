"""Processes that were forked from one with all libraries, and become what a launcher starts.

A launcher has threads by the time at which it starts its processes, so that no copy of it would work. These are forked
before that, wait for their words and environment, and are its children as any others are.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

COUNT = 6
"""Enough for two processes that are started again twice; a launcher starts any others as it does elsewhere."""
TakeOver = Callable[[dict[str, Any]], None]


def is_launcher(words: Sequence[str]) -> bool:
    """Return whether a command starts processes of Python."""
    names = [Path(word).name for word in words[:4]]
    return (
        names[:2] == ["accelerate", "launch"]
        or names[:1] == ["torchrun"]
        or bool({"accelerate.commands.launch", "torch.distributed.run"} & {*names})
    )


def provide(take_over: TakeOver) -> None:
    """Fork the spare processes, and have this launcher use them."""
    import accelerate.commands.launch
    from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler

    waiting: list[tuple[int, int]] = []
    for _ in range(COUNT):
        reading, writing = os.pipe()
        process = os.fork()
        if process == 0:
            for other in (writing, *(handle for _, handle in waiting)):
                os.close(other)
            wait_for_words(reading, take_over)
        os.close(reading)
        waiting.append((process, writing))
    start = subprocess.Popen

    def begin(args: Sequence[str], **settings: Any) -> "subprocess.Popen[bytes] | Worker":
        known = {*settings} <= {"env", "stdout", "stderr", "start_new_session"}
        if args[0] == sys.executable and waiting and known and not (settings.get("stdout") or settings.get("stderr")):
            return Worker(args, settings, *waiting.pop(0))
        return start(args, **settings)

    subprocess_handler.Popen = begin  # type: ignore[assignment, misc]
    accelerate.commands.launch.subprocess = Replaced(begin)  # type: ignore[assignment]


class Replaced:
    """The module subprocess with another Popen."""

    CalledProcessError = subprocess.CalledProcessError

    def __init__(self, begin: Callable[..., Any]) -> None:
        self.Popen = begin


def wait_for_words(reading: int, take_over: TakeOver) -> None:
    """Wait until this process gets something to do, and end with it; or for the launcher's end."""
    # Ctrl-C in the launcher's terminal ends it without a word.
    interrupted = signal.signal(signal.SIGINT, signal.SIG_DFL)
    with os.fdopen(reading, encoding="utf-8") as pipe:
        words = pipe.read()
    if words:
        signal.signal(signal.SIGINT, interrupted)
        take_over(json.loads(words))
    os._exit(0)


class Worker:
    """A spare process that has got something to do; what launchers need of a `subprocess.Popen`."""

    def __init__(self, words: Sequence[str], settings: Mapping[str, Any], process: int, writing: int) -> None:
        self.args = words
        self.pid = process
        self.returncode: int | None = None
        environment = settings.get("env")
        request = {
            "words": list(words),
            "environment": dict(os.environ if environment is None else environment),
            "folder": str(Path.cwd()),
            "new_session": settings.get("start_new_session", False),
        }
        with os.fdopen(writing, "w", encoding="utf-8") as pipe:
            json.dump(request, pipe)

    def poll(self) -> int | None:
        """Return the exit code, or minus the signal that ended it, or None while it runs."""
        if self.returncode is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            if ended:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end.

        Raises:
            subprocess.TimeoutExpired: it does not come within so many seconds.
        """
        limit = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            if limit is not None and time.monotonic() > limit:
                raise subprocess.TimeoutExpired(list(self.args), timeout or 0)
            time.sleep(0.005)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill it."""
        self.send_signal(signal.SIGKILL)


def show(words: Sequence[str]) -> None:
    """Have the system show these words as the command line of this process, which its children may read.

    They take the place of the words that it was started with; the first one, a path, begins with as many slashes as are
    left over.
    """
    try:
        fields = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return
    # The 48th and the 49th field of the line, of which two are cut off.
    begin, end = int(fields[45]), int(fields[46])
    new = b"\0".join(word.encode() for word in words) + b"\0"
    left = end - begin - len(new)
    if left >= 0:
        ctypes.memmove(begin, b"/" * left + new, end - begin)
