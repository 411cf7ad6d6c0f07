"""A mistake that people make: the command as they type it, what they are told, and the command that they type then."""

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from command_server import Ended

SHORT = "--threads 1 --epochs null --steps 1 --batch.size 8"
"""What makes a run short, where the command itself says nothing of its length."""
PRINTED = "--print_config"
"""What shows that settings are mended, without a run."""
MESSAGE = re.compile(r"\n?(toolkit( \w+)?|\w+) can't go on:\n((  - .+\n)+)\n?")
REFUSED = {"run.json", "run.lock"}
"""What a start that was refused leaves in a new run folder: word of it."""


@dataclass(frozen=True)
class Mistake:
    """A row of the table."""

    command: str
    """As it is typed in the folder of `users_folder.py`."""
    says: tuple[str, ...]
    """What the message has to have in it."""
    mend: Mapping[str, str] = field(default_factory=dict)
    """What is replaced in the command, by what the message offers for it; "" is the end of the command."""
    then: str | None = None
    """The whole command that is typed then, where the message tells it in other words."""
    before: str = ""
    """What was done in the folder before, in a shell."""
    proof: str = SHORT
    """What is added to the command that is typed then: it has to end well, and soon."""
    outcome: int = 0
    """The exit code of the command that is typed then."""
    launched: bool = False
    """A launcher starts it: it is a process of its own, whose launcher prints a trace and ends with 1."""

    @property
    def mended(self) -> str | None:
        """The command that is typed then; None where only the user knows."""
        if self.then is None and not self.mend:
            return None
        command = self.then if self.then is not None else self.command
        for old, new in self.mend.items():
            assert old in command, (old, command)
            command = command.replace(old, new) if old else f"{command} {new}"
        return f"{command} {self.proof}".strip() if "recipes/" in command else command

    def prepare(self, folder: Path) -> None:
        """Do in the user's folder what comes before the command."""
        if self.before:
            subprocess.run(["bash", "-euc", self.before], cwd=folder, check=True)

    def check_message(self, ended: Ended) -> None:
        """Check exit code and message, and that there is nothing else on stderr."""
        assert "Traceback" not in ended.output, ended.output
        if self.launched:
            assert ended.code == 1, ended
            said = re.search(MESSAGE.pattern + r"\Z", ended.errors)
        else:
            assert ended.code == 2, ended
            said = MESSAGE.fullmatch(ended.errors)
        assert said, ended.errors
        for part in (*self.says, *(new.strip() for new in self.mend.values())):
            assert part in said[3], said[3]


def state_of(folder: Path) -> dict[str, tuple[str, int]]:
    """Return hash and time of every file below a folder, also of those that may not be read."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            content = sha256(path.read_bytes()).hexdigest() if os.access(path, os.R_OK) else ""
            found[str(path.relative_to(folder))] = (content, path.stat().st_mtime_ns)
    return found


def check_untouched(before: Mapping[str, tuple[str, int]], folder: Path) -> None:
    """Check that nothing in a folder has changed, and nothing is new but word of the refusal in a run folder."""
    after = state_of(folder)
    changed = sorted(name for name, state in before.items() if after.get(name) != state)
    assert not changed
    new = {Path(name) for name in after.keys() - before.keys()}
    assert {path.name for path in new} <= REFUSED, new
    for path in new:
        assert {other.name for other in (folder / path).parent.iterdir()} <= REFUSED
