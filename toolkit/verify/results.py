"""What the checks of a run came to, in words."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolkit.config.suggestions import show
from toolkit.verify.evidence import (
    is_count,
)

NAMED = 5


@dataclass(frozen=True)
class CheckResult:
    """What one check came to."""

    what: str
    """What was checked."""
    told: str = ""
    """What was found, if nothing is wrong."""
    problems: tuple[str, ...] = ()
    checked: bool = True
    """Whether there was anything to check it by; if not, `told` says why."""
    remarks: tuple[str, ...] = ()
    """What is no defect of the run folder, and has to be known to trust its numbers, a sentence each."""

    def texts(self) -> tuple[str, ...]:
        """Return the result in words, a line each."""
        noted = tuple(f"note: {remark}" for remark in self.remarks)
        if self.problems:
            return (*self.problems, *noted)
        return (f"ok: {self.told}" if self.checked else f"not checked: {self.told}", *noted)


@dataclass(frozen=True)
class Report:
    """What all checks of a run came to."""

    folder: Path
    results: tuple[CheckResult, ...]

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    @property
    def problems(self) -> tuple[str, ...]:
        """Everything that is wrong, a sentence each."""
        return tuple(f"{result.what}: {problem}" for result in self.results for problem in result.problems)

    def __str__(self) -> str:
        width = max((len(result.what) for result in self.results), default=0)
        lines = [str(self.folder)]
        for result in self.results:
            for number, text in enumerate(result.texts()):
                lines.append(f"  {result.what if number == 0 else '':<{width}}  {text}")
        count, noted = len(self.problems), sum(len(result.remarks) for result in self.results)
        verdict = f"{count} thing(s) are wrong" if count else "nothing is wrong"
        lines.append(f"{verdict}; {noted} thing(s) to know, see the notes" if noted else verdict)
        return "\n".join(lines)


def counted(value: Any) -> str:
    """Return a count for people, or what stands in its place."""
    return f"{value:,}" if is_count(value) else show(value)


def named(step: Any) -> str:
    """Return the name of a row."""
    return f"step {step:,}" if is_count(step) else f"a row that names the step {show(step)}"


def several(what: str, numbers: Sequence[Any]) -> str:
    """Return the first few numbers, and how many there are in all."""
    return f"{what} {', '.join(map(counted, numbers[:NAMED]))}{and_more(numbers)}"


def and_more(entries: Sequence[Any]) -> str:
    """Say how many are not named."""
    return f" and {len(entries) - NAMED:,} more" if len(entries) > NAMED else ""
