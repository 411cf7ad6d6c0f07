"""What a page is made of, and how a part of it is made of files that may be damaged."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from toolkit.output.run_folder import now
from toolkit.report.charts import Chart

Made = TypeVar("Made")
DAMAGE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What values of another kind than a run writes may raise."""


@dataclass(frozen=True)
class Table:
    """A table with a title."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    folded: bool = False


@dataclass(frozen=True)
class Samples:
    """Evaluated samples, each by name and value."""

    title: str
    rows: Sequence[Mapping[str, str]]
    folded: bool = False


Item = Table | Chart | Samples


@dataclass(frozen=True)
class Section:
    """A part of the page, with what is in it in this order."""

    title: str
    items: list[Item]


@dataclass(frozen=True)
class Page:
    """Everything that the template is given."""

    title: str
    status: str
    lead: str
    """A sentence below the title."""
    tiles: Sequence[tuple[str, str, str]]
    """Name, figure, and what to hold it against."""
    alerts: Sequence[str]
    sections: Sequence[Section]
    made: str = field(default_factory=now)


def made(what: str, make: Callable[[], Made], otherwise: Made, damage: list[str]) -> Made:
    """Return a part of the page, or something else where the files of the run hold what no run writes."""
    try:
        return make()
    except DAMAGE as error:
        damage.append(
            f"{what} can't be shown: run.json, evaluation.json or the ledger is damaged, or of another version "
            f"({type(error).__name__}); `toolkit verify` says more"
        )
        return otherwise


def as_list(part: Callable[..., Iterable[Item]], *of: Any) -> list[Item]:
    """Return all of a part of the page."""
    return list(part(*of))


def sections_of(parts: Mapping[str, Callable[..., Iterable[Item]]], damage: list[str], *of: Any) -> list[Section]:
    """Return the sections that have anything in them."""
    found = {
        title: made(f"the part {title!r}", partial(as_list, part, *of), list[Item](), damage)
        for title, part in parts.items()
    }
    return [Section(title, items) for title, items in found.items() if items]
