"""A recipe's run as the person who started it sees it: the exit code, what was said, and what was left behind."""

import gc
import json
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from hashlib import sha256
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from command_server import PROGRAMS
from launching import finished

from toolkit.cli import main
from toolkit.recipe_command import fine_tune
from toolkit.signals import LAUNCHER_DIED, REQUESTS

SECONDS = 120
"""A launch that takes longer hangs."""


@dataclass(frozen=True)
class Outcome:
    """What a run came to."""

    code: int
    output: str
    errors: str
    folder: Path

    @property
    def record(self) -> dict[str, Any]:
        """The run.json, which exists."""
        record: dict[str, Any] = json.loads((self.folder / "run.json").read_text(encoding="utf-8"))
        return record

    @property
    def files(self) -> set[str]:
        """What lies in the run folder."""
        return {path.name for path in self.folder.iterdir()} if self.folder.is_dir() else set()

    def says(self, *parts: str) -> "Outcome":
        """Check that these stand in what was printed, wherever."""
        for part in parts:
            assert part in self.output + self.errors
        return self

    def done(self) -> "Outcome":
        """Check that the run ended well."""
        assert self.code == 0, self.errors + self.output
        return self

    def told(self, *parts: str) -> "Outcome":
        """Check the exit code 2, and that stderr ends with one message, which has these parts, and no traceback."""
        assert self.code == 2, self.errors
        assert "Traceback" not in self.output + self.errors
        _, opening, message = self.errors.partition(" can't go on:\n")
        assert opening
        assert all(line.startswith("  - ") for line in message.splitlines())
        for part in parts:
            assert part in message
        return self

    def refused(self, *parts: str) -> "Outcome":
        """Check the message as `told` does, and that nothing is in the run folder but word of it."""
        self.told(*parts)
        assert self.files <= {"run.json", "run.lock"}
        if "run.json" in self.files:
            assert self.record["status"] == "refused"
            assert all(f"  - {problem}\n" in self.errors for problem in self.record["problems"])
        return self


def run_here(
    config_class: type, task: Callable[..., Any], arguments: Sequence[str], folder: Path, named: bool = True
) -> Outcome:
    """Run a recipe in this process, as the only one; its folder is `named` by --output unless the arguments do that."""
    if named and "--output" not in arguments:
        arguments = ["--output", str(folder), *arguments]
    with alone() as (output, errors), pytest.raises(SystemExit) as end:
        fine_tune(config_class, task, arguments)
    assert isinstance(end.value.code, int)
    return Outcome(end.value.code, output.getvalue(), errors.getvalue(), folder)


def command_here(*words: str | Path) -> Outcome:
    """Run the command `toolkit` in this process; its second word is a folder."""
    with alone() as (output, errors):
        code = main([str(word) for word in words])
    return Outcome(code, output.getvalue(), errors.getvalue(), Path(words[1]))


@contextmanager
def alone() -> Iterator[tuple[StringIO, StringIO]]:
    """Have this block find the process as a new one would; give what it prints and what it complains of."""
    from accelerate.state import AcceleratorState, GradientState

    # A run collects garbage when it ends: half a second where every library is loaded, unless what is there now is left
    # out.
    gc.freeze()
    # They outlive a run: without this the second one would keep the precision of the first.
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    output, errors = StringIO(), StringIO()
    # Who was asked to stop ignores signals until its process ends, which here goes on.
    handlers = {number: signal.getsignal(number) for number in (*REQUESTS, LAUNCHER_DIED)}
    try:
        with redirect_stdout(output), redirect_stderr(errors):
            yield output, errors
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def run_outside(words: Sequence[str | Path], folder: Path, **environment: str) -> Outcome:
    """Run a command in a process of its own, in the folder that holds the run folder.

    Its first word is python, accelerate or torchrun; those of this environment are taken.
    """
    command = [PROGRAMS / str(words[0]), *words[1:], "--output", folder]
    folder.parent.mkdir(parents=True, exist_ok=True)
    done = finished(command, SECONDS, environment, folder.parent)
    return Outcome(done.returncode, done.stdout, done.stderr, folder)


def state_of(folder: Path) -> dict[str, tuple[str, int]]:
    """Return hash and time of every file below a folder: equal before and after means untouched."""
    return {
        str(path.relative_to(folder)): (sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
