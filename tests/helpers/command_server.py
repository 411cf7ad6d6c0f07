"""Commands started as a user starts them, without the seconds in which each would load torch and Transformers.

A server has loaded them (`forked_command.py`). For each command it forks a copy of itself, which gets the words, the
folder and the environment of the command, its own stdin, stdout and stderr, and is a process like any other from then
on: it can be waited for, and signals can be sent to it. What a launcher starts is a copy too (`spares.py`).

What a library reads from the environment when it is loaded is the server's: `alike` tells whether a command would find
the same there. If not, it has to be started as a process of its own.
"""

import json
import os
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

SECONDS = 180.0
"""A command that takes longer hangs; the slowest takes some on a quiet machine."""
SERVER = Path(__file__).with_name("forked_command.py")
PROGRAMS = Path(sys.executable).parent
"""Where python, accelerate, torchrun and toolkit are."""
# The server's command line, which makes room for those of commands.
ROOM = "room " * 1200
READ_WHEN_LOADED = (
    "CUDA", "DATASETS_", "GOMP_", "HF_", "HOME", "HUGGINGFACE", "LD_", "MKL_", "MLFLOW_", "NUMEXPR", "OMP_",
    "OPENBLAS", "PYTHON", "PYTORCH_", "SAFETENSORS_", "TORCH_", "TRACKIO_", "TRANSFORMERS_", "XDG_",
)  # fmt: skip
"""Beginnings of the names of variables that libraries may read when they are loaded."""
READ_LATER = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "PYTHONIOENCODING", "PYTHONPATH", "PYTORCH_NVML_")
"""What is read when it is used, or what the server gives to a command as it starts."""


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    output: str
    errors: str
    seconds: float


@dataclass(frozen=True)
class Typed:
    """A command as it is typed into a shell."""

    words: list[str]
    variables: dict[str, str] = field(default_factory=dict)
    unset: list[str] = field(default_factory=list)
    largest_file: int | None = None
    """Bytes, by `ulimit -f`."""
    redirected: dict[str, str] = field(default_factory=dict)
    """Files in the place of stdin, stdout and stderr, by `<`, `>` and `2>`; `&-` closes it, `&1` is stdout."""


def typed(line: str) -> Typed:
    """Read a command line: `ulimit -f N;`, `env -u NAME`, `NAME=value`, the words, and where its streams go."""
    before, _, rest = line.rpartition(";") if line.startswith("ulimit") else ("", "", line)
    blocks = int(before.split()[-1]) if before else None
    words = shlex.split(rest)
    variables, unset, redirected = {}, [], {}
    while words and (words[0] == "env" or words[0].partition("=")[0].isidentifier()):
        word = words.pop(0)
        if word == "env":
            while words[:1] == ["-u"]:
                unset.append(words[1])
                del words[:2]
            continue
        if "=" not in word:
            words.insert(0, word)
            break
        name, _, value = word.partition("=")
        variables[name] = value
    for sign in ("<", ">", "2>"):
        for word in [word for word in words if word.startswith(sign)]:
            place = words.index(word)
            redirected[sign] = word.removeprefix(sign) or words.pop(place + 1)
            del words[place]
    return Typed(words, variables, unset, None if blocks is None else blocks * 1024, redirected)


class CommandServer:
    """The server as those who use it see it."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = dict(environment)
        self.process = subprocess.Popen(
            [sys.executable, str(SERVER), ROOM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # Threads would not outlive a fork.
            env={"OPENBLAS_NUM_THREADS": "1", **self.environment},
        )
        self.read = b""
        self.begun: dict[int, int] = {}
        """Process ids, by the number of the command."""
        self.ended: dict[int, Ended] = {}
        self.count = 0

    def close(self) -> None:
        """End the server, and what it still runs."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(SECONDS)

    def alike(self, environment: Mapping[str, str]) -> bool:
        """Return whether libraries that are loaded in this environment find there what the server's found."""

        def read(of: Mapping[str, str]) -> dict[str, str]:
            return {n: v for n, v in of.items() if n.startswith(READ_WHEN_LOADED) and not n.startswith(READ_LATER)}

        return read(environment) == read(self.environment)

    def run(self, line: str, folder: Path, environment: Mapping[str, str]) -> Ended:
        """Run a command in a folder, as if it had been typed there, with this environment."""
        return self.begin(line, folder, environment).end()

    def begin(self, line: str, folder: Path, environment: Mapping[str, str]) -> "Command":
        """Start a command as `run` does."""
        command = typed(line)
        environment = {name: value for name, value in environment.items() if name not in command.unset}
        return self.start(
            command.words,
            folder,
            {**environment, **command.variables},
            redirected=command.redirected,
            largest_file=command.largest_file,
            seconds=SECONDS,
            as_user=True,
        )

    def start(
        self,
        words: Sequence[str],
        folder: Path,
        environment: Mapping[str, str],
        redirected: Mapping[str, str] | None = None,
        largest_file: int | None = None,
        seconds: float | None = None,
        as_user: bool = False,
    ) -> "Command":
        """Start a command; after so many seconds it is killed. `as_user`: permissions of files hold for root too."""
        self.count += 1
        request = {
            "number": self.count,
            "words": list(words),
            "folder": str(folder),
            "environment": dict(environment),
            "redirected": dict(redirected or {}),
            "largest_file": largest_file,
            "cores": sorted(os.sched_getaffinity(0)),
            "seconds": seconds,
            "as_user": as_user,
        }
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        self.process.stdin.flush()
        while self.count not in self.begun:
            self.listen(None)
        return Command(self, self.count, self.begun.pop(self.count))

    def listen(self, seconds: float | None) -> None:
        """Take in what the server says, for which so many seconds are waited."""
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], seconds)[0]:
            return
        read = os.read(self.process.stdout.fileno(), 1 << 20)
        assert read, "the server of commands has died"
        *lines, self.read = (self.read + read).split(b"\n")
        for answer in map(json.loads, lines):
            number = answer.pop("number")
            if "process" in answer:
                self.begun[number] = answer["process"]
            else:
                self.ended[number] = Ended(**answer)


class Command:
    """A command that the server has started; it can be used like a `subprocess.Popen`."""

    def __init__(self, server: CommandServer, number: int, process: int) -> None:
        self.server = server
        self.number = number
        self.pid = process
        self.found: Ended | None = None

    @property
    def returncode(self) -> int | None:
        """The exit code, or minus the signal that ended it; None before its end was seen."""
        return None if self.found is None else self.found.code

    def poll(self) -> int | None:
        """Return the exit code, or None while it runs."""
        if self.found is None:
            self.server.listen(0)
            self.found = self.server.ended.pop(self.number, None)
        return self.returncode

    def end(self, seconds: float | None = None) -> Ended:
        """Wait for the end.

        Raises:
            subprocess.TimeoutExpired: it does not come within so many seconds.
        """
        limit = None if seconds is None else time.monotonic() + seconds
        while self.poll() is None:
            left = None if limit is None else limit - time.monotonic()
            if left is not None and left <= 0:
                raise subprocess.TimeoutExpired(str(self.pid), seconds or 0)
            self.server.listen(left)
        assert self.found is not None
        return self.found

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait for the end and return what it printed."""
        ended = self.end(timeout)
        return ended.output, ended.errors

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit code."""
        return self.end(timeout).code

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL, unless it has ended."""
        self.send_signal(signal.SIGKILL)
