"""The results of the checks of a run, in words."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolkit.config.suggestions import show
from toolkit.verify.evidence import is_count

NAMED_AT_MOST = 5
"""Steps or lines that a message names; of the others it gives the number."""


@dataclass(frozen=True)
class CheckResult:
    """The result of one check."""

    name: str
    """What was checked."""
    message: str = ""
    """What was found if nothing is wrong, or why nothing could be checked."""
    problems: tuple[str, ...] = ()
    checked: bool = True
    """Whether there was anything to check against."""
    notes: tuple[str, ...] = ()
    """No defects of the run folder, but needed to judge its numbers; a sentence each."""

    def lines(self) -> tuple[str, ...]:
        """Return the result in words, a line each."""
        notes = tuple(f"note: {note}" for note in self.notes)
        if self.problems:
            return (*self.problems, *notes)
        return (f"ok: {self.message}" if self.checked else f"not checked: {self.message}", *notes)


@dataclass(frozen=True)
class Report:
    """The results of all checks of a run."""

    folder: Path
    results: tuple[CheckResult, ...]

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    @property
    def problems(self) -> tuple[str, ...]:
        """Everything that is wrong, a sentence each."""
        return tuple(f"{result.name}: {problem}" for result in self.results for problem in result.problems)

    def __str__(self) -> str:
        width = max((len(result.name) for result in self.results), default=0)
        lines = [str(self.folder)]
        for result in self.results:
            for number, text in enumerate(result.lines()):
                lines.append(f"  {result.name if number == 0 else '':<{width}}  {text}")
        problems, notes = len(self.problems), sum(len(result.notes) for result in self.results)
        verdict = f"{problems} thing(s) are wrong" if problems else "nothing is wrong"
        lines.append(f"{verdict}; {notes} thing(s) to know, see the notes" if notes else verdict)
        return "\n".join(lines)


def count_text(value: Any) -> str:
    """Return a count with separators of thousands; of a value that is no count, the value itself."""
    return f"{value:,}" if is_count(value) else show(value)


def row_name(step: Any) -> str:
    return f"step {step:,}" if is_count(step) else f"a row that names the step {show(step)}"


def first_few(label: str, numbers: Sequence[Any]) -> str:
    """Return the first few numbers, and how many others there are."""
    return f"{label} {', '.join(map(count_text, numbers[:NAMED_AT_MOST]))}{and_more(numbers)}"


def and_more(entries: Sequence[Any]) -> str:
    return f" and {len(entries) - NAMED_AT_MOST:,} more" if len(entries) > NAMED_AT_MOST else ""
