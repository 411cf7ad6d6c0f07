"""What all readers of rows share: check the tables, refuse or drop wrong rows, hold rows out, describe the data."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar

import numpy as np

from toolkit.data.labels import Array
from toolkit.data.tokenized import ROWS_AT_ONCE, text_digest
from toolkit.errors import UserError

if TYPE_CHECKING:
    from toolkit.task import Source, TaskData

SHOWN = 10
"""Row numbers and names that a message lists before it only counts."""
REMEDY = "correct them, or leave them out with --data.drop_invalid true"


class Rows(Protocol):
    """Rows for training or for evaluation."""

    @property
    def name(self) -> str:
        """What they are, for messages: "training data"."""

    def __len__(self) -> int:
        """Return how many there are."""

    def take(self, rows: Array, name: str | None = None) -> Self:
        """Return these rows, in this order, under another name if one is given."""


@dataclass(frozen=True)
class TableRows:
    """Rows of a table, for training or for evaluation."""

    name: str
    """What they are, for messages: "training data"."""
    table: Any
    """A `datasets.Dataset` of the columns that are used."""
    rows: Array
    """The number that each row had in the data, counted from 0."""

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, rows: Array, name: str | None = None) -> Self:
        """Return these rows, in this order, under another name if one is given."""
        return replace(self, name=name or self.name, table=self.table.select(rows), rows=self.rows[rows])

    def select(self, *columns: str) -> "TableRows":
        """Return the same rows with these columns alone."""
        if list(columns) == self.table.column_names:
            return self
        if columns not in self._selected:
            self._selected[columns] = TableRows(self.name, self.table.select_columns(list(columns)), self.rows)
        return self._selected[columns]

    @cached_property
    def _selected(self) -> dict[tuple[str, ...], "TableRows"]:
        # Kept, so that the texts of a column are hashed once: about a second for a million rows.
        return {}

    def texts(self) -> Iterator[str]:
        """Yield the texts of all columns, to train a tokenizer on; few are in memory at once."""
        for batch in self.table.with_format("arrow").iter(ROWS_AT_ONCE):
            for column in batch.columns:
                yield from column.to_pylist()

    @cached_property
    def digest(self) -> str:
        """A hash of the texts of all columns: what is made of them is kept under it."""
        return text_digest(self.table)


AnyRows = TypeVar("AnyRows", bound=Rows)


@dataclass(frozen=True)
class Checked(Generic[AnyRows]):
    """The rows of one table that can be used, and what is wrong with the others."""

    rows: AnyRows
    problems: Sequence[str]
    """A sentence for each kind of problem, with the numbers of its rows; `usable_rows` adds what to do."""
    dropped: int
    """How many rows can't be used."""


def checked_rows(whole: AnyRows, wrong: Mapping[str, Array]) -> Checked[AnyRows]:
    """Return all rows of a table as checked.

    Args:
        whole: the rows.
        wrong: for each way in which a row can be wrong, in the words of a message, which rows are (bool).
    """
    invalid = np.any([*wrong.values()], axis=0)
    problems = [
        f"{whole.name}: {what} in {row_numbers(np.flatnonzero(rows))}" for what, rows in wrong.items() if rows.any()
    ]
    valid = whole.take(np.flatnonzero(~invalid)) if invalid.any() else whole
    return Checked(valid, problems, int(invalid.sum()))


@dataclass(frozen=True, kw_only=True)
class DataRead:
    """What every reader returns next to the rows; each has a class of its own that adds them."""

    summary: dict[str, str]
    """What the plan shows of the data, a name and a text each; `tokenize` adds lines on lengths."""
    files: tuple[Path, ...] = ()
    """The local files that were read."""
    workers: int = 0
    """Processes that fetch and collate ahead of the training."""
    inputs: Mapping[str, str] = field(default_factory=dict)
    """See `TaskData.inputs`."""
    groups: Mapping[str, Array] = field(default_factory=dict)
    """See `TaskData.groups`."""

    def task_data(self, train: "Source", evaluate: "Source") -> "TaskData":
        """Return `Task.data`: samples that were made of the rows, and all that is known of them."""
        from toolkit.task import TaskData

        return TaskData(train, evaluate, self.files, self.workers, self.summary, self.inputs, self.groups)


def usable_rows(
    parts: Sequence[Checked[AnyRows]], *, drop_invalid: bool, a_row: str, invalid: str, remedy: str | None = REMEDY
) -> tuple[list[AnyRows], dict[str, str]]:
    """Return the rows of all tables that can be used, and a line for the plan where others were dropped.

    Args:
        parts: the training data and, if there is some, the evaluation data.
        drop_invalid: whether the other rows are left out; else they are refused.
        a_row: what each table must hold at least one of: "row with a text and a label".
        invalid: what the other rows are, for the plan: "rows without a valid text or label".
        remedy: what to do about them; None where the problems already say it.

    Raises:
        UserError: with everything that is wrong with the rows, or because none can be used.
    """
    problems = [problem for part in parts for problem in part.problems]
    nothing = [f"{part.rows.name}: there is no {a_row}" for part in parts if not len(part.rows)]
    if nothing or (problems and not drop_invalid):
        # Nothing would be left if all of them were dropped.
        remedy = remedy if not nothing else "correct them, or name other columns or settings"
        end = "" if drop_invalid or remedy is None else f"; {remedy}"
        raise UserError(*nothing, *(problem + end for problem in problems))
    dropped = " and ".join(f"{part.dropped:,} of the {part.rows.name}" for part in parts)
    return [part.rows for part in parts], {"dropped": f"{invalid}: {dropped}"} if problems else {}


def hold_out(whole: AnyRows, held: Array, what: str = "rows") -> list[AnyRows]:
    """Return the rows that stay in training, and those with the numbers `held`; `what` they are: rows, images, ..."""
    stay = np.setdiff1d(np.arange(len(whole)), held, assume_unique=True)
    return [whole.take(stay), whole.take(held, f"held-out {what} of the training data")]


def counts_line(train: Rows, evaluate: Rows) -> str:
    """Return a line for the plan on how many rows there are."""
    return f"{len(train):,} to train on, {len(evaluate):,} to evaluate on"


def missing_columns(tables: Mapping[str, Any], columns: Iterable[str]) -> list[str]:
    """Return a sentence for each table in which columns are missing that were found in the training data."""
    wanted = list(columns)
    missing = {name: [column for column in wanted if column not in tables[name].column_names] for name in tables}
    return [
        f"{name}: no column {listed(found)}, which the training data has; the columns here are "
        f"{listed(tables[name].column_names)}: name them alike in both"
        for name, found in missing.items()
        if found
    ]


def row_numbers(rows: Array) -> str:
    """Return how many rows these are, and the numbers of the first ones, counted from 1."""
    many = len(rows) > 1
    numbers = ", ".join(str(row + 1) for row in rows[:SHOWN].tolist()) + (", ..." if len(rows) > SHOWN else "")
    return f"{len(rows):,} row{'s' * many} (number{'s' * many} {numbers}, counted from 1 after any head line)"


def listed(names: Sequence[str]) -> str:
    """Return the first of these names, and their number if there are more."""
    shown = ", ".join(map(repr, names[:SHOWN]))
    return shown if len(names) <= SHOWN else f"{shown}, ... ({len(names)} in all)"
