"""Which rows a recipe trains and evaluates on: what the `data` sections of all recipes share."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from toolkit.config.schema import at_least, execution, locates
from toolkit.data.held_out import held_out_rows
from toolkit.errors import UserError

if TYPE_CHECKING:
    from toolkit.data.files import FileOptions
    from toolkit.data.sources import Splits


@dataclass(frozen=True)
class DataConfig:
    name: str | None = locates(None)
    """A file, a folder, a saved data set or a hub id; null is the embedded corpus, unless data.train is given."""
    config: str | None = locates(None)
    """The configuration of a hub data set that has several."""
    train: str | None = locates(None)
    """Training data: a file, or the name of a split or of a file in data.name."""
    eval: str | None = locates(None)
    """Evaluation data, given like data.train; null holds out training rows if data.name brings none."""
    header: bool | list[str] | None = locates(None)
    """Whether the first line of csv and tsv files names the columns: false if it is data, or a list of their names;
    true takes it for names in any case, and null refuses it where it looks like data."""
    held_out: float = 0.1
    """The share of the training rows that is held out where there is no evaluation data."""
    max_rows: int | None = None
    """Train and evaluate on so many rows of each file or split at most, evenly spread over it: to try things; null
    takes all."""
    workers: int = execution(0)
    """Processes that fetch and pad ahead of the training; 0 does it in the training process."""

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
            yield f"data.held_out is {self.held_out}; it must be between 0 and 1, both exclusive"
        if self.config is not None and self.name is None:
            yield f"data.config is {self.config!r}, but data.name does not say of which data set"
        if self.header is not None and self.embedded:
            yield "data.header is given, but no file is; give data.train or data.name too"
        if isinstance(self.header, list):
            if not self.header or not all(name.strip() for name in self.header):
                yield "data.header is a list with an empty name, or without any; name each column"
            if twice := sorted({name for name in self.header if self.header.count(name) > 1}):
                yield f"data.header names {', '.join(twice)} more than once; give each column its own name"
        if self.eval is not None and self.embedded:
            yield f"data.eval is {self.eval!r}, but there is nothing to train on; give data.train or data.name too"

    def tables(self, corpus: Callable[[], "Splits"]) -> "Splits":
        """Return the rows: those that were named, or else what `corpus` returns.

        Raises:
            UserError: they are missing, malformed or out of reach.
        """
        # The readers of tables import `datasets`, which costs more than a second.
        from toolkit.data.sources import read_splits

        if self.embedded:
            return self.limited(corpus())
        return self.limited(
            read_splits(
                name=self.name, config=self.config, train=self.train, evaluate=self.eval, options=self.file_options
            )
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
