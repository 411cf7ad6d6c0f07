"""How far a tracker is: a small file for each in the run folder, and its lock, so that one process at a time sends."""

import fcntl
import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import IO, Any
from uuid import uuid4

from toolkit.errors import UserError
from toolkit.output.run_folder import TAKEN, write_whole

FOLDER = "tracking"
"""In the run folder: a file for each tracker that the run was ever sent to."""


class MovedError(Exception):
    """The run that was sent was moved aside, and another one has begun in its folder."""


@dataclass
class Position:
    """What is known of a run in one tracker."""

    project: str = ""
    name: str = ""
    token: str = field(default_factory=lambda: uuid4().hex)
    """Drawn before the tracker is first asked for a run, by which that run is found again."""
    run: str | None = None
    """The tracker's own id of the run."""
    place: str | None = None
    """Where the tracker keeps it, if that is on this machine."""
    sent: int = 0
    """The step of the last row that was sent."""
    settings: bool = False
    """Whether the settings were sent."""
    finished: int | None = None
    """The step after which the run was finished, once its last row and its final metrics were sent."""

    @property
    def mark(self) -> str:
        """What makes a name one of a kind, at its end."""
        return f"-{self.token[:6]}"


def position_file(run: Path, tracker: str) -> Path:
    """Return the file that says how far a tracker is."""
    return run / FOLDER / f"{tracker}.json"


def read_position(run: Path, tracker: str) -> Position | None:
    """Return how far a tracker is, None if the run was never sent to it.

    Raises:
        UserError: the file can't be read.
    """
    path = position_file(run, tracker)
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        known = {entry.name: entry.type for entry in fields(Position)}
        for key, value in values.items():
            if key in known and not is_a(value, known[key]):
                raise ValueError(f"{key} is {value!r}")
        return Position(**{key: value for key, value in values.items() if key in known})
    except FileNotFoundError:
        return None
    except (OSError, ValueError, AttributeError) as error:
        raise UserError(
            f"{path} can't be read ({error}); delete it to send the whole run to {tracker} again, as a new run there"
        ) from None


def is_a(value: Any, kind: Any) -> bool:
    """Return whether a value is of a type; true and false are no numbers."""
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def write_position(run: Path, tracker: str, position: Position) -> None:
    """Write down how far a tracker is."""
    write_whole(position_file(run, tracker), json.dumps(asdict(position), indent=2) + "\n")


class Lock:
    """Makes this the only process that sends a run to a tracker."""

    def __init__(self, run: Path, tracker: str) -> None:
        self.path = position_file(run, tracker).with_suffix(".lock")
        self.tracker = tracker
        self.file: IO[str] | None = None

    def take(self, patient: Callable[[], bool]) -> None:
        """Take the lock; while another process has it, wait as long as `patient` says.

        Raises:
            UserError: another process has it, and it was not waited for.
        """
        self.path.parent.mkdir(exist_ok=True)
        self.file = self.path.open("a", encoding="utf-8")
        while True:
            try:
                fcntl.lockf(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except OSError as error:
                if error.errno not in TAKEN:
                    # The file system has no locks.
                    return
            if not patient():
                self.release()
                raise UserError(
                    f"another process is sending this run to {self.tracker} already (a run that is under way does it "
                    "itself); let it end first"
                )
            time.sleep(0.2)

    def check(self) -> None:
        """Check that the run that is sent still lies there: `--resume never` moves it aside.

        Raises:
            MovedError: it does not.
        """
        try:
            if self.file is not None and os.path.samestat(os.fstat(self.file.fileno()), self.path.stat()):
                return
        except OSError:
            pass
        raise MovedError

    def release(self) -> None:
        """Let other processes send."""
        if self.file is not None:
            self.file.close()
            self.file = None
