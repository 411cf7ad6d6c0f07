"""Documents for language modelling: where they come from, what is wrong with them, and which are held out."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from toolkit.config.fields import at_least, locates
from toolkit.data.columns import TEXT_NAMES, find_column, look_like_data
from toolkit.data.config import DataConfig, embedded_splits, split_rows
from toolkit.data.endings import format_of
from toolkit.data.label_reading import is_text
from toolkit.data.reading import (
    SHOWN,
    Checked,
    DataRead,
    TableRows,
    checked_rows,
    hold_out,
    listed,
    missing_columns,
    usable_rows,
)
from toolkit.data.tokenized import ROWS_AT_ONCE
from toolkit.errors import UserError
from toolkit.sample_data.docstrings import docstrings_by_file
from toolkit.task import TaskData
from toolkit.tasks.language_modeling.blocks import Blocks, make_blocks
from toolkit.tasks.language_modeling.models import Objective
from toolkit.tasks.language_modeling.stream import tokenize_documents


@dataclass(frozen=True)
class Documents(DataConfig):
    """The `data` section of a recipe that learns from running text."""

    text: str | None = locates(None)
    """The column with the text, where the data has columns; null finds it by its name. A text file (.txt) is a
    document."""
    block: int = 128
    """Tokens that the model reads at once: documents are cut into blocks of at most this length."""
    documents: Literal["apart", "joined"] = "apart"
    """Keep documents apart, so that no token sees another document, or join them before they are cut."""
    mask: float = 0.15
    """The part of the tokens that is hidden and has to be found again; it counts for the masked objective alone."""
    drop_invalid: bool = False
    """Leave out empty documents instead of refusing them; the plan counts them."""

    text_is_document: ClassVar[bool] = True

    has_groups: ClassVar[bool] = False

    def problems(self) -> Iterator[str]:
        """Yield what is wrong with the values, a sentence each."""
        yield from super().problems()
        yield from at_least(2, "data.block", self.block)
        if not 0 < self.mask < 1:
            yield f"data.mask is {self.mask}; it must be between 0 and 1, both exclusive (0.15 is usual)"

    def read(self) -> "ReadDocuments":
        """Read the documents, check them, and hold some out where there are none for evaluation.

        Raises:
            UserError: with everything that is wrong.
        """
        read = self.tables(
            lambda: embedded_splits("docstrings of this Python's standard library, by file", docstrings_by_file())
        )
        column = self._column(read.tables)
        files = file_names(read.files, sum(map(len, read.tables.values())))
        next_files = iter(files)
        rows, dropped = usable_rows(
            [
                check_documents(
                    DocumentRows.of(name, table.select_columns([column])), [*islice(next_files, len(table))]
                )
                for name, table in read.tables.items()
            ],
            drop_invalid=self.drop_invalid,
            a_row="document with a text in it",
            invalid="empty documents",
            remedy="remove these documents, or leave them out with --data.drop_invalid true",
        )
        summary = {"data": read.origin}
        if not files and not self.embedded:
            summary["columns"] = f"text {column!r}"
        summary |= dropped
        if len(rows) == 1:
            rows, summary["held out"] = hold_out_documents(rows[0], self.held_out)
        train, evaluate = rows
        apart = self.documents == "apart"
        return ReadDocuments(
            train, evaluate, self.block, apart, summary=summary, files=read.files, workers=self.workers
        )

    def _column(self, tables: dict[str, Any]) -> str:
        """Return the column with the text, which all tables have."""
        existing = tables["training data"].column_names
        only = existing[0] if len(existing) == 1 and not look_like_data(existing) else None
        column = find_column(existing, "text", only if self.text is None else self.text, TEXT_NAMES, "the text")
        problems = missing_columns(tables, [column])
        problems += [
            f"{name}: the column {column!r} holds {type_}, not text; give another one with --data.text "
            f"(the columns are {listed(table.column_names)})"
            for name, table in tables.items()
            if column in table.column_names and not is_text(type_ := table.data.schema.field(column).type)
        ]
        if problems:
            raise UserError(*problems)
        return column


@dataclass(frozen=True)
class DocumentRows(TableRows):
    """Documents for training or for evaluation, a text each."""

    @classmethod
    def of(cls, name: str, table: Any) -> "DocumentRows":
        """Return all rows of a `datasets.Dataset` of one column, the text."""
        return cls(name, table, np.arange(len(table)))

    def texts(self) -> Iterator[str]:
        """Yield the texts one after another: a document may be large, and is in memory alone."""
        for batch in self.table.with_format("arrow").iter(ROWS_AT_ONCE):
            for value in batch.column(0):
                yield value.as_py()


@dataclass(frozen=True)
class BlockData(TaskData):
    """The data of a language model; the tokens that the blocks are parts of are in their `stream`."""

    train: Blocks
    evaluate: Blocks


@dataclass(frozen=True)
class ReadDocuments(DataRead):
    """Documents to train on and to evaluate on."""

    train: DocumentRows
    evaluate: DocumentRows
    block: int
    apart: bool

    def training_texts(self) -> Iterator[str]:
        """Yield every training document, to train a tokenizer on."""
        yield from self.train.texts()

    @property
    def training_digest(self) -> str:
        """A hash of the training texts: the key under which a tokenizer that was trained on them can be kept."""
        return self.train.digest

    def tokenize(self, tokenizer: Any, objective: Objective) -> BlockData:
        """Return the training and the evaluation documents as blocks of tokens.

        Raises:
            UserError: the tokenizer has no token to end a document with, or data.block does not fit it or the model.
        """
        train, evaluate = (
            make_blocks(
                tokenize_documents(rows.texts(), rows.digest, tokenizer), tokenizer, objective, self.block, self.apart
            )
            for rows in (self.train, self.evaluate)
        )
        sizes = [
            f"{len(rows):,} ({len(blocks.stream) - 1:,} tokens)"
            for rows, blocks in ((self.train, train), (self.evaluate, evaluate))
        ]
        cut = "at most {} tokens, documents apart" if self.apart else "{} tokens, across documents"
        summary = {
            "documents": f"{sizes[0]} to train on and {sizes[1]} to evaluate on",
            "blocks": f"{len(train):,} and {len(evaluate):,} of {cut.format(self.block)}",
        }
        return BlockData(train, evaluate, self.files, self.workers, self.summary | summary)


def check_documents(whole: DocumentRows, files: list[Path]) -> Checked[DocumentRows]:
    """Return the documents that have a text, and what is wrong with the others.

    `files` are those that the documents are, or none where they are rows of a table.
    """
    empty = np.array([text is None or not text or text.isspace() for text in whole.texts()], dtype=bool)
    if not files or not empty.any():
        return checked_rows(whole, {"no text": empty})
    names = [file.name for file, is_empty in zip(files, empty, strict=True) if is_empty]
    shown = f"{', '.join(names[:SHOWN])}{', ...' * (len(names) > SHOWN)}"
    problem = f"{whole.name}: no text in {len(names):,} file{'s' * (len(names) > 1)} ({shown})"
    return Checked(whole.take(np.flatnonzero(~empty)), [problem], len(names))


def file_names(files: tuple[Path, ...], documents: int) -> list[Path]:
    """Return the file that each document is, or nothing where documents are rows of tables."""
    return list(files) if len(files) == documents and all(format_of(path) == "text" for path in files) else []


def hold_out_documents(whole: DocumentRows, share: float) -> tuple[list[DocumentRows], str]:
    """Return the documents that stay in training and those that are held out, and a line for the plan.

    Of several documents whole ones are held out, the same for every seed; of a single one the last part, from the
    beginning of a line where there is one.

    Raises:
        UserError: a single document is too short to be divided.
    """
    if len(whole) > 1:
        _, held = split_rows(len(whole), share)
        line = f"{len(held):,} of the {len(whole):,} documents, the same for every seed"
        return hold_out(whole, held, "documents"), line
    text = next(whole.texts())
    place = divide_at_line(text, share)
    if not text[:place].strip() or not text[place:].strip():
        raise UserError(
            "there is nothing to evaluate on: no evaluation data is given, and of the only document, with "
            f"{len(text):,} characters, the last {share:.0%} can't be held out; give data.eval, or more text"
        )
    characters = f"the last {len(text) - place:,} of the {len(text):,} characters of the only document"
    parts = [DocumentRows.of(whole.name, as_document(part)) for part in (text[:place], text[place:])]
    return parts, f"{characters}, from the beginning of a line"


def divide_at_line(text: str, share: float) -> int:
    """Return where the last `share` of a text begins: at the nearest line if one begins near enough, or anywhere."""
    place = round(len(text) * (1 - share))
    starts = (text.rfind("\n", 0, place) + 1, text.find("\n", place) + 1)
    near = [start for start in starts if 0 < start < len(text) and abs(start - place) < (len(text) - place) / 2]
    return min(near, key=lambda start: abs(start - place), default=place)


def as_document(text: str) -> Any:
    """Return a text, which may have more than 2 GB, as a `datasets.Dataset` of one row."""
    import datasets
    import pyarrow as pa

    return datasets.Dataset(pa.table({"text": pa.array([text], pa.large_string())}))
