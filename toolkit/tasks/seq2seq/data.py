"""Pairs of a source and a target text: where they come from, and every way in which they can be wrong."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from toolkit.config.schema import at_least, locates
from toolkit.data.config import DataConfig, split_rows
from toolkit.data.labels import Array
from toolkit.data.reading import listed, row_numbers
from toolkit.data.tokenized import ROWS_AT_ONCE, text_digest
from toolkit.errors import UserError
from toolkit.tasks.seq2seq.columns import (
    PAIRED,
    Place,
    check_places,
    find_languages,
    find_places,
    languages,
    read_pairs,
)
from toolkit.tasks.seq2seq.parallel import parallel_splits

if TYPE_CHECKING:
    from toolkit.data.sources import Splits

COMMON = 0.01
"""The share of the training rows from which on the most frequent target is worth being guessed."""


@dataclass(frozen=True)
class PairSplit:
    """Rows for training or for evaluation."""

    name: str
    table: Any
    """A `datasets.Dataset` of "source" (with the prefix), "target", and "references": all targets that are right."""
    rows: Array
    """The number that each row had in the data, counted from 0."""

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, rows: Array, name: str | None = None) -> "PairSplit":
        """Return these rows, in this order."""
        return PairSplit(name or self.name, self.table.select(rows), self.rows[rows])


@dataclass(frozen=True)
class Pairs:
    """Training and evaluation pairs."""

    train: PairSplit
    evaluate: PairSplit
    prefix: str
    summary: dict[str, str]
    """Lines for the plan."""
    files: tuple[Path, ...] = ()
    """The local files that were read."""

    def training_texts(self) -> Iterator[str]:
        """Yield every source and target to train on, to train a tokenizer on; few are in memory at once."""
        for batch in self.train.table.with_format("arrow").iter(ROWS_AT_ONCE):
            yield from batch["source"].to_pylist()
            yield from batch["target"].to_pylist()

    @cached_property
    def training_digest(self) -> str:
        """A hash of the training texts: the key under which a tokenizer that was trained on them can be kept."""
        return text_digest(self.train.table.select_columns(["source", "target"]))

    def source(self, number: int) -> str:
        """Return an evaluation source as it was given, without the prefix."""
        text: str = self.evaluate.table[number]["source"]
        return text.removeprefix(self.prefix)

    @cached_property
    def references(self) -> list[list[str]]:
        """All targets of the evaluation rows, row by row."""
        return list(self.evaluate.table["references"])

    def copies(self) -> list[str]:
        """Return what a model would answer that copies the source."""
        return [self.source(number) for number in range(len(self.evaluate))]

    def trivial_summaries(self) -> list[str]:
        """Return what a summary would be that took no understanding.

        Where one training target is frequent it is that, for every source; else the first words of the source, as many as
        a training target has in the middle.
        """
        targets = list(self.train.table["target"])
        text, count = Counter(targets).most_common(1)[0]
        if count > max(1, COMMON * len(targets)):
            return [text] * len(self.evaluate)
        words = int(np.median([len(target.split()) for target in targets]))
        return [" ".join(source.split()[:words]) for source in self.copies()]


@dataclass(frozen=True)
class TextPairs(DataConfig):
    """The `data` section of a recipe that makes a text of a text."""

    source: str | None = locates(None)
    """The column with the texts to start from (a list of sentences is joined); null finds it by its name."""
    target: str | None = locates(None)
    """The column with the texts to arrive at (a list holds several that are right); null finds it by its name."""
    prefix: str = ""
    """Put before each source: models such as T5 are told by it what to do, for example 'summarize: '."""
    max_length: int | None = None
    """Cut longer sources to so many tokens; null takes them whole and refuses those that the model cannot take."""
    max_target_length: int | None = None
    """Cut longer targets to so many tokens in training and in the loss, never in the other metrics; null cuts none."""
    drop_invalid: bool = False
    """Leave out rows with an empty source or target instead of refusing them; the plan counts them."""

    def problems(self) -> Iterator[str]:
        """Yield what is wrong with the values, a sentence each."""
        yield from super().problems()
        for name, value in (("max_length", self.max_length), ("max_target_length", self.max_target_length)):
            if value is not None:
                yield from at_least(1, f"data.{name}", value)

    def places(self, table: Any) -> tuple[Place, Place]:
        """Return where source and target are in a table."""
        return find_places(table, self.source, self.target)

    def tables(self, corpus: Callable[[], "Splits"]) -> "Splits":
        """Return the rows: those of two files that belong together line by line, or of what else was named."""
        return parallel_splits(self, *self.two_files()) or super().tables(corpus)

    def two_files(self) -> tuple[tuple[str, str], str]:
        """Return the endings that two such files have, and the flags that say so."""
        return (self.source or "source", self.target or "target"), "--data.source {} --data.target {}"

    def read(self, corpus: Callable[[], "Splits"]) -> Pairs:
        """Read the data and check it; `corpus` returns the embedded data.

        Raises:
            UserError: everything that is wrong with it.
        """
        read = self.tables(corpus)
        tables = {"training data": read.train}
        if read.evaluate is not None:
            tables["evaluation data"] = read.evaluate
        places = self.places(read.train)
        check_places(tables, places)
        splits, problems, dropped = [], [], []
        for name, table in tables.items():
            pairs, empty = read_pairs(table, places, self.prefix)
            split = PairSplit(name, pairs, np.arange(len(pairs), dtype=np.int64))
            bad = np.flatnonzero(empty)
            if len(bad):
                dropped.append(f"{len(bad):,} of the {name}")
                problems.append(f"{name}: no text in {places[0]} or {places[1]} in {row_numbers(bad)}")
                split = split.take(np.flatnonzero(~np.asarray(empty)))
            if not len(split):
                raise UserError(f"{name}: there is no row with text in {places[0]} and in {places[1]}")
            splits.append(split)
        if problems and not self.drop_invalid:
            remedy = "correct them, or leave them out with --data.drop_invalid true"
            raise UserError(*(f"{problem}; {remedy}" for problem in problems))
        summary = {"data": read.origin, "columns": f"source {places[0]}, target {places[1]}"}
        if dropped:
            summary["dropped"] = f"rows without a source or a target: {' and '.join(dropped)}"
        if len(splits) == 1:
            stay, held = split_rows(len(splits[0]), self.held_out)
            splits = [splits[0].take(stay), splits[0].take(held, "held-out rows of the training data")]
            summary["held out"] = f"{len(held):,} of the training rows, the same for every seed"
        train, evaluate = splits
        summary["pairs"] = f"{len(train):,} to train on, {len(evaluate):,} to evaluate on"
        most = max(map(len, evaluate.table["references"]))
        if most > 1:
            summary["references"] = f"up to {most} for an evaluation source; training and the loss take the first"
        return Pairs(train, evaluate, self.prefix, summary, read.files)


@dataclass(frozen=True)
class TranslationPairs(TextPairs):
    """The `data` section of a recipe for texts in two languages."""

    source_language: str | None = None
    """The language to translate from: a column, or a name within the column `translation`, such as en."""
    target_language: str | None = None
    """The language to translate to, given likewise."""

    def problems(self) -> Iterator[str]:
        """Yield what is wrong with the values, a sentence each."""
        yield from super().problems()
        named = [self.source_language, self.target_language]
        if named.count(None) == 1:
            yield "one of data.source_language and data.target_language is given; give both, or neither"
        elif self.source_language is not None:
            if self.source_language == self.target_language:
                yield f"data.source_language and data.target_language are both {self.source_language!r}; give two languages"
            if self.source is not None or self.target is not None:
                yield "data.source_language and data.target_language say where the texts are; leave data.source and data.target out"

    def two_files(self) -> tuple[tuple[str, str], str]:
        """Return the endings that a file for each language has, and the flags that say so."""
        if self.source_language is None or self.target_language is None:
            endings, _ = super().two_files()
        else:
            endings = (self.source_language, self.target_language)
        return endings, "--data.source_language {} --data.target_language {}"

    def places(self, table: Any) -> tuple[Place, Place]:
        """Return where source and target are in a table."""
        if self.source_language is not None and self.target_language is not None:
            return find_languages(table, self.source_language, self.target_language)
        known = languages(table).get(PAIRED)
        if known and self.source is None and self.target is None:
            raise UserError(
                f"the column {PAIRED!r} holds the languages {listed(known)}; say which to translate into which with "
                "--data.source_language and --data.target_language"
            )
        return super().places(table)
