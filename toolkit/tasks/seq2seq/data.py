"""Pairs of a source and a target text: where they come from, and every way in which they can be wrong."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from toolkit.config.fields import at_least, locates
from toolkit.data.config import DataConfig, split_rows
from toolkit.data.reading import counts_line, hold_out, listed, usable_rows
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
from toolkit.tasks.seq2seq.pairs import Pairs
from toolkit.tasks.seq2seq.parallel import parallel_splits

if TYPE_CHECKING:
    from toolkit.data.sources import Splits


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
    """Truncate longer sources to so many tokens; null takes them whole and refuses those that the model cannot take."""
    max_target_length: int | None = None
    """Truncate longer targets to so many tokens in training and in the loss, never in the other metrics; null truncates
    none."""
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
        return self.each_set(lambda own: parallel_splits(own, *own.two_files()) or own.named_tables(corpus))

    def two_files(self) -> tuple[tuple[str, str], str]:
        """Return the endings that two such files have, and the flags that name them."""
        return (self.source or "source", self.target or "target"), "--data.source {} --data.target {}"

    def read(self, corpus: Callable[[], "Splits"]) -> Pairs:
        """Read the data and check it; `corpus` returns the embedded data.

        Raises:
            UserError: everything that is wrong with it.
        """
        read = self.tables(corpus)
        places = self.places(read.train)
        check_places(read.tables, places)
        splits, dropped = usable_rows(
            [read_pairs(name, table, places, self.prefix) for name, table in read.tables.items()],
            drop_invalid=self.drop_invalid,
            a_row=f"row with text in {places[0]} and in {places[1]}",
            invalid="rows without a source or a target",
        )
        summary = {"data": read.origin, "columns": f"source {places[0]}, target {places[1]}", **dropped}
        if len(splits) == 1:
            _, held = split_rows(len(splits[0]), self.held_out)
            splits = hold_out(splits[0], held)
            summary["held out"] = f"{len(held):,} of the training rows, the same for every seed"
        train, evaluate = splits
        summary["pairs"] = counts_line(train, evaluate)
        most = max(map(len, evaluate.table["references"]))
        if most > 1:
            summary["references"] = f"up to {most} for an evaluation source; training and the loss take the first"
        return Pairs(
            train,
            evaluate,
            self.prefix,
            self.max_length,
            self.max_target_length,
            summary=summary,
            files=read.files,
            workers=self.workers,
            inputs={
                "source": places[0].column,
                **({} if places[0].language is None else {"language": places[0].language}),
            },
            groups=self.groups_of(read, evaluate.rows),
        )


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
                yield (
                    f"data.source_language and data.target_language are both {self.source_language!r}; give two "
                    "languages"
                )
            if self.source is not None or self.target is not None:
                yield (
                    "data.source_language and data.target_language say where the texts are; leave data.source and "
                    "data.target out"
                )

    def two_files(self) -> tuple[tuple[str, str], str]:
        """Return the endings that a file for each language has, and the flags that name them."""
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
                f"the column {PAIRED!r} holds the languages {listed(known)}; say which to translate into which, such "
                f"as --data.source_language {known[0]} --data.target_language {known[-1]}"
            )
        return super().places(table)
