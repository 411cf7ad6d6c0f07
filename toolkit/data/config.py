"""Which rows a recipe trains and evaluates on: what the `data` sections of all recipes share."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from toolkit.config.fields import at_least, execution, locates
from toolkit.data.held_out import held_out_rows
from toolkit.errors import UserError

if TYPE_CHECKING:
    from toolkit.data.files import FileOptions
    from toolkit.data.sources import Splits


SET = "evaluation set"
"""The column that tells which set of `data.eval_sets` a row is of."""
MOST_GROUPS = 100


@dataclass(frozen=True)
class DataConfig:
    name: str | None = locates(None)
    """A file, a folder, a saved data set or a hub id; null is the embedded corpus, unless data.train is given."""
    config: str | None = locates(None)
    """The configuration of a hub data set that has several."""
    train: str | None = locates(None)
    """Training data: a file, a folder, or the name of a split or of a file in data.name. A table inside of a file has
    its name behind it: rows.zip/train.csv, book.xlsx/Sheet1, rows.json/items."""
    eval: str | None = locates(None)
    """Evaluation data, given like data.train; null holds out training rows if data.name brings none."""
    eval_sets: dict[str, str] | None = locates(None)
    """Several sets of evaluation data by name, each given like data.eval: {dev: dev.csv, hard: hard.csv}. They are
    evaluated together, and each has metrics of its own, such as hard/accuracy."""
    group: str | None = None
    """The column whose values divide the evaluation rows into groups with metrics of their own; null has none."""
    header: bool | list[str] | None = locates(None)
    """Whether the first line of csv, tsv and Excel files names the columns: false if it is data, or a list of their
    names; true takes it for names in any case, and null refuses it where it looks like data."""
    held_out: float = 0.1
    """The share of the training rows that is held out where there is no evaluation data."""
    max_rows: int | None = None
    """Train and evaluate on so many rows of each file or split at most, evenly spread over it: to try things; null
    takes all."""
    workers: int = execution(0)
    """Processes that fetch and pad ahead of the training; 0 does it in the training process."""

    has_groups: ClassVar[bool] = True
    """Whether evaluation samples are rows, so that these can be grouped."""
    text_is_document: ClassVar[bool] = False
    """Whether a text file is a document; otherwise it is read as a table that tabs separate."""

    @property
    def file_options(self) -> "FileOptions":
        """How the files are to be read."""
        from toolkit.data.files import FileOptions

        return FileOptions(self.header, self.text_is_document)

    @property
    def embedded(self) -> bool:
        """Whether the embedded corpus is meant."""
        return self.name is None and self.train is None

    def problems(self) -> Iterator[str]:
        """Yield what is wrong with the values, a sentence each."""
        yield from at_least(0, "data.workers", self.workers)
        if self.max_rows is not None:
            yield from at_least(2, "data.max_rows", self.max_rows)
        if not 0 < self.held_out < 1:
            part = f"; write {self.held_out / 100:g} for {self.held_out:g}%" if 1 < self.held_out < 100 else ""
            yield f"data.held_out is {self.held_out}; it must be between 0 and 1, both exclusive{part}"
        if self.config is not None and self.name is None:
            yield f"data.config is {self.config!r}, but data.name does not say of which data set"
        if self.header is not None and self.embedded:
            yield "data.header is given, but no file is; give data.train or data.name too"
        if isinstance(self.header, list):
            if not self.header or not all(name.strip() for name in self.header):
                yield "data.header is a list with an empty name, or without any; name each column"
            if twice := sorted({name for name in self.header if self.header.count(name) > 1}):
                yield f"data.header names {', '.join(twice)} more than once; give each column its own name"
        yield from self.group_problems()
        if self.eval is not None and self.embedded:
            yield f"data.eval is {self.eval!r}, but there is nothing to train on; give data.train or data.name too"

    def group_problems(self) -> Iterator[str]:
        """Yield what is wrong with sets and groups of evaluation data."""
        sets = self.eval_sets
        asked = [name for name, value in (("data.eval_sets", sets), ("data.group", self.group)) if value is not None]
        if asked and not self.has_groups:
            yield f"{' and '.join(asked)} can't be had here: evaluation samples are no single rows; leave it out"
        if len(asked) > 1:
            yield "data.eval_sets and data.group are both given; one of them divides the evaluation data: give one"
        if sets is None:
            return
        if self.eval is not None:
            yield f"data.eval is {self.eval!r} and data.eval_sets names others; put it among these, with a name"
        if self.embedded:
            yield "data.eval_sets is given, but there is nothing to train on; give data.train or data.name too"
        if not sets or any(not name.strip() or "/" in name for name in sets):
            yield "data.eval_sets has no set, or one whose name is empty or has a slash; give {name: file, ...}"

    def each_set(self, read: "Callable[[Self], Splits]") -> "Splits":
        """Return what `read` reads, or, of several evaluation sets, all of them, with a column that names the set.

        Raises:
            UserError: the sets have different columns.
        """
        if self.eval_sets is None:
            return self.limited(read(self))
        import datasets

        parts = {}
        for name, place in self.eval_sets.items():
            try:
                parts[name] = self.limited(read(replace(self, eval=place, eval_sets=None)))
            except UserError as error:
                said = (problem.replace("data.eval is ", f"data.eval_sets {name} is ") for problem in error.problems)
                raise UserError(*said) from None
        tables = []
        for name, part in parts.items():
            assert part.evaluate is not None
            tables.append(part.evaluate.add_column(SET, [name] * len(part.evaluate)))
        try:
            evaluate = datasets.concatenate_datasets(tables)
        except (ValueError, TypeError) as error:
            raise UserError(
                f"the sets of data.eval_sets do not go together ({error}); give them the same columns"
            ) from None
        first = next(iter(parts.values()))
        told = "; ".join(f"{name}: {place}" for name, place in self.eval_sets.items())
        files = tuple(dict.fromkeys(file for part in parts.values() for file in part.files))
        return replace(first, evaluate=evaluate, origin=f"{first.origin}; evaluation sets {told}", files=files)

    def groups_of(self, read: "Splits", rows: np.ndarray[Any, Any]) -> "dict[str, np.ndarray[Any, Any]]":
        """Return the groups of the evaluation rows, by name: the places in `rows` of those in each.

        `rows` are their numbers in the evaluation data, or in the training data where they were held out of it.

        Raises:
            UserError: there is no such column, or it has too many values.
        """
        column = SET if self.eval_sets is not None else self.group
        if column is None:
            return {}
        table = read.train if read.evaluate is None else read.evaluate
        if column not in table.column_names:
            raise UserError(
                f"data.group is {column!r}, and the evaluation data has the columns "
                f"{', '.join(map(repr, table.column_names))}; name one of these"
            )
        values = table.select_columns([column]).with_format("arrow")[:].column(0).to_pylist()
        names = [str(values[row]) if values[row] is not None else "(none)" for row in rows.tolist()]
        found: dict[str, list[int]] = {}
        for place, name in enumerate(names):
            found.setdefault(name, []).append(place)
        if len(found) > MOST_GROUPS:
            raise UserError(
                f"data.group is {column!r}, which has {len(found):,} values in the evaluation data; give a column of "
                f"at most {MOST_GROUPS}"
            )
        order = self.eval_sets if self.eval_sets is not None else sorted(found)
        return {name: np.array(found[name], dtype=np.int64) for name in order if name in found}

    def tables(self, corpus: Callable[[], "Splits"]) -> "Splits":
        """Return the rows: those that were named, or else what `corpus` returns.

        Raises:
            UserError: they are missing, malformed or out of reach.
        """
        return self.each_set(lambda own: own.named_tables(corpus))

    def named_tables(self, corpus: Callable[[], "Splits"]) -> "Splits":
        """Return the rows of one evaluation set."""
        # The readers of tables import `datasets`, which costs more than a second.
        from toolkit.data.sources import read_splits

        if self.embedded:
            return corpus()
        return read_splits(
            name=self.name, config=self.config, train=self.train, evaluate=self.eval, options=self.file_options
        )

    def limited(self, read: "Splits") -> "Splits":
        """Return the rows that data.max_rows leaves; in messages these are numbered, and not all that there are."""
        longest = max(map(len, read.tables.values()))
        if self.max_rows is None or longest <= self.max_rows:
            return read
        train, evaluate = (
            None if table is None else spread(table, self.max_rows) for table in (read.train, read.evaluate)
        )
        assert train is not None
        kept = " and ".join(f"{min(self.max_rows, len(table)):,} of {len(table):,}" for table in read.tables.values())
        return replace(read, train=train, evaluate=evaluate, origin=f"{read.origin}; {kept} rows (data.max_rows)")


def spread(table: Any, most: int) -> Any:
    """Return so many rows of a `datasets.Dataset` at most, evenly spread over it."""
    if len(table) <= most:
        return table
    return table.select(np.linspace(0, len(table) - 1, most).astype(np.int64)).flatten_indices(keep_in_memory=True)


def embedded_splits(origin: str, rows: list[dict[str, Any]], held_out: list[dict[str, Any]] | None = None) -> "Splits":
    """Return rows that were made here as if they had been read; `origin` says what they are."""
    import datasets

    from toolkit.data.sources import Splits

    evaluate = None if held_out is None else datasets.Dataset.from_list(held_out)
    return Splits(datasets.Dataset.from_list(rows), evaluate, origin)


def split_rows(count: int, share: float) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the numbers of the rows (or articles, or documents) that stay in training, and of those that are held out.

    They are a function of the count and the share alone, whatever the seed: runs of different seeds are compared on the
    same rows.

    Raises:
        UserError: there are fewer than two.
    """
    held = held_out_rows(np.zeros(count + 1, dtype=np.int64), np.zeros(0, dtype=np.int64), share)
    if not len(held):
        raise UserError(
            "there is no evaluation data, and of a single training row none can be held out; "
            "give data.eval, or more rows"
        )
    return np.setdiff1d(np.arange(count), held, assume_unique=True), held
