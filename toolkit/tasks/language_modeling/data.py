"""Documents for language modelling: where they come from, which are held out, and every way in which they can be wrong."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from toolkit.config.schema import at_least, locates
from toolkit.data.columns import TEXT_NAMES, find_column, look_like_data
from toolkit.data.config import DataConfig, embedded_splits, split_rows
from toolkit.data.files import format_of
from toolkit.data.label_reading import is_text
from toolkit.data.reading import SHOWN, listed, row_numbers
from toolkit.data.tokenized import text_digest
from toolkit.errors import UserError
from toolkit.sample_data.docstrings import docstrings_by_file
from toolkit.tasks.language_modeling.stream import Stream, tokenize_documents


@dataclass(frozen=True)
class Documents(DataConfig):
    """The `data` section of a recipe that learns from running text."""

    text: str | None = locates(None)
    """The column with the text, where the data has columns; null finds it by its name. A text file (.txt) is a document."""
    block: int = 128
    """Tokens that the model reads at once: documents are joined, and cut into blocks of this length."""
    mask: float = 0.15
    """The part of the tokens that is hidden and has to be found again; it counts for the masked objective alone."""
    drop_invalid: bool = False
    """Leave out empty documents instead of refusing them; the plan counts them."""

    text_is_document: ClassVar[bool] = True

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
        tables = {"training data": read.train}
        if read.evaluate is not None:
            tables["evaluation data"] = read.evaluate
        column = self._column(tables)
        summary = {"data": read.origin}
        problems, kept, dropped = [], {}, {}
        files = file_names(read.files, sum(map(len, tables.values())))
        if not files and not self.embedded:
            summary["columns"] = f"text {column!r}"
        for name, table in tables.items():
            whole = table.select_columns([column])
            empty = empty_rows(whole)
            own, files = files[: len(whole)], files[len(whole) :]
            if len(empty):
                problems.append(
                    f"{name}: no text in {named(empty, own)}; remove these documents, or leave them out with "
                    "--data.drop_invalid true"
                )
            if len(empty) == len(whole):
                raise UserError(f"{name}: there is no document with a text in it; give some text")
            kept[name] = whole.select(np.setdiff1d(np.arange(len(whole)), empty)) if len(empty) else whole
            dropped[name] = len(empty)
        if problems and not self.drop_invalid:
            raise UserError(*problems)
        if problems:
            summary["dropped"] = "empty documents: " + " and ".join(
                f"{n:,} of the {name}" for name, n in dropped.items()
            )
        train, evaluate = kept["training data"], kept.get("evaluation data")
        if evaluate is None:
            train, evaluate, summary["held out"] = hold_out(train, self.held_out)
        return ReadDocuments(train, evaluate, summary, read.files)

    def _column(self, tables: dict[str, Any]) -> str:
        existing = tables["training data"].column_names
        only = existing[0] if len(existing) == 1 and not look_like_data(existing) else None
        given = only if self.text is None else self.text
        column = find_column(existing, "text", given, TEXT_NAMES, "the text")
        problems = []
        for name, table in tables.items():
            if column not in table.column_names:
                problems.append(
                    f"{name}: no column {column!r}, which the training data has; the columns here are "
                    f"{listed(table.column_names)}: name them alike in both"
                )
            elif not is_text(type_ := table.data.schema.field(column).type):
                problems.append(
                    f"{name}: the column {column!r} holds {type_}, not text; give another one with --data.text "
                    f"(the columns are {listed(table.column_names)})"
                )
        if problems:
            raise UserError(*problems)
        return column


@dataclass(frozen=True)
class ReadDocuments:
    """Documents to train on and to evaluate on."""

    train: Any
    """A `datasets.Dataset` with the column "text"."""
    evaluate: Any
    summary: dict[str, str]
    """Lines for the plan."""
    files: tuple[Path, ...]
    """The local files that were read."""

    def training_texts(self) -> Iterator[str]:
        """Yield every training document, to train a tokenizer on."""
        yield from texts_of(self.train)

    @cached_property
    def training_digest(self) -> str:
        """A hash of the training texts: the key under which a tokenizer that was trained on them can be kept."""
        return text_digest(self.train)

    def tokenize(self, tokenizer: Any) -> tuple[Stream, Stream]:
        """Return the tokens of the training and of the evaluation documents.

        Raises:
            UserError: the tokenizer has no token to end a document with.
        """
        digests = (self.training_digest, text_digest(self.evaluate))
        streams = [
            tokenize_documents(texts_of(part), digest, tokenizer)
            for part, digest in zip((self.train, self.evaluate), digests, strict=True)
        ]
        self.summary["documents"] = " and ".join(
            f"{len(part):,} ({len(stream) - 1:,} tokens) to {purpose}"
            for part, stream, purpose in zip(
                (self.train, self.evaluate), streams, ("train on", "evaluate on"), strict=True
            )
        )
        return streams[0], streams[1]


def texts_of(documents: Any) -> Iterator[str]:
    """Yield the texts of a `datasets.Dataset`, one after another: a document may be large, and is in memory alone."""
    for batch in documents.with_format("arrow").iter(1000):
        for value in batch.column(0):
            yield value.as_py()


def empty_rows(documents: Any) -> "np.ndarray[Any, np.dtype[np.int64]]":
    """Return the numbers of the rows without a text, or with one of white space alone."""
    found = [number for number, text in enumerate(texts_of(documents)) if text is None or not text or text.isspace()]
    return np.array(found, dtype=np.int64)


def file_names(files: tuple[Path, ...], documents: int) -> list[Path]:
    """Return the file that each document is, or nothing where documents are rows of tables."""
    return list(files) if len(files) == documents and all(format_of(path) == "text" for path in files) else []


def named(rows: "np.ndarray[Any, np.dtype[np.int64]]", files: list[Path]) -> str:
    """Say which documents these are: by their files, or by the numbers of their rows."""
    if not files:
        return row_numbers(rows)
    names = ", ".join(files[row].name for row in rows[:SHOWN].tolist())
    return f"{len(rows):,} file{'s' * (len(rows) > 1)} ({names}{', ...' * (len(rows) > SHOWN)})"


def hold_out(documents: Any, share: float) -> tuple[Any, Any, str]:
    """Return documents to train on, those held out, and a line for the plan.

    Of several documents whole ones are held out, the same for every seed; of a single one the last part, from the beginning
    of a line where there is one.

    Raises:
        UserError: a single document is too short to be divided.
    """
    if len(documents) > 1:
        stay, held = split_rows(len(documents), share)
        line = f"{len(held):,} of the {len(documents):,} documents, the same for every seed"
        return documents.select(stay), documents.select(held), line
    text = next(texts_of(documents))
    cut = cut_at_line(text, share)
    if not text[:cut].strip() or not text[cut:].strip():
        raise UserError(
            f"there is nothing to evaluate on: no evaluation data is given, and of the only document, with {len(text):,} "
            f"characters, the last {share:.0%} can't be held out; give data.eval, or more text"
        )
    line = f"the last {len(text) - cut:,} of the {len(text):,} characters of the only document, from the beginning of a line"
    return as_documents(text[:cut]), as_documents(text[cut:]), line


def cut_at_line(text: str, share: float) -> int:
    """Return where the last `share` of a text begins: where a line does, if one begins near enough, or else at a character."""
    place = round(len(text) * (1 - share))
    starts = (text.rfind("\n", 0, place) + 1, text.find("\n", place) + 1)
    near = [start for start in starts if 0 < start < len(text) and abs(start - place) < (len(text) - place) / 2]
    return min(near, key=lambda start: abs(start - place), default=place)


def as_documents(*texts: str) -> Any:
    """Return texts as a `datasets.Dataset`; one of them may have more than 2 GB."""
    import datasets
    import pyarrow as pa

    return datasets.Dataset(pa.table({"text": pa.array(texts, pa.large_string())}))
