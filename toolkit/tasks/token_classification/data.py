"""Sentences with a tag on each word: where they come from, and every way in which they can be wrong."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from toolkit.config.schema import at_least, locates
from toolkit.data.columns import find_column
from toolkit.data.config import DataConfig, embedded_splits
from toolkit.data.formats.header import NoHeaderError
from toolkit.data.held_out import held_out_rows
from toolkit.data.labels import UNKNOWN, Array, starts_of
from toolkit.data.reading import SHOWN, listed, row_numbers
from toolkit.errors import UserError
from toolkit.sample_data.code_tokens import code_tokens
from toolkit.tasks.token_classification.files import read_tag_files, with_columns
from toolkit.tasks.token_classification.reading import TaggedRows, read_rows
from toolkit.tasks.token_classification.schemes import (
    MARKED,
    OUTSIDE,
    Kind,
    as_bio,
    broken_starts,
    kind_of_tags,
    repaired,
    tag_names,
)
from toolkit.tasks.token_classification.sentences import TaggedSentences

if TYPE_CHECKING:
    from toolkit.data.sources import Splits

WORD_NAMES = (("tokens",), ("words",), ("token", "word"), ("sentence", "text"))
TAG_NAMES = (
    ("tags",),
    ("ner_tags",),
    ("labels", "label", "ner", "entities", "tag"),
    ("pos_tags", "upos", "pos"),
    ("chunk_tags", "xpos"),
)

CONLL_HINT = "; a CoNLL file, with a word and its tag on each line, has the ending .conll"


@dataclass(frozen=True)
class TaggedTexts(DataConfig):
    """The `data` section of a recipe that tags words."""

    tokens: str | None = locates(None)
    """The column with the words; null finds it by its name."""
    tags: str | None = locates(None)
    """The column with a tag for each word; null finds it by its name."""
    kind: Literal["auto", "bio", "plain"] = "auto"
    """Tags that mark entities (bio: B-person, I-person, O), or a class for each word (plain); auto decides by the tags."""
    repair: bool = False
    """Read I-x where no x has begun as its beginning (the older scheme IOB1) instead of refusing such rows; the plan counts them."""
    max_length: int | None = None
    """Tokens of a window, special ones included; null is what the model takes. Longer sentences are covered by several windows."""
    overlap: int | None = None
    """Tokens that two neighbouring windows share at most; null is a quarter of a window."""
    drop_invalid: bool = False
    """Leave out rows with words or tags missing instead of refusing them; the plan counts them."""

    text_is_document: ClassVar[bool] = True  # of which `read_tag_files` makes sentences

    def problems(self) -> Iterator[str]:
        """Yield what is wrong with the values, a sentence each."""
        yield from super().problems()
        if self.max_length is not None:
            yield from at_least(1, "data.max_length", self.max_length)
        if self.overlap is not None:
            yield from at_least(0, "data.overlap", self.overlap)
        if self.repair and self.kind == "plain":
            yield "data.repair is true and data.kind is plain; plain tags have no beginnings to repair: leave one of the two out"

    def read(self, saved: Sequence[str] | None = None, trained: bool = False) -> TaggedSentences:
        """Read the data, check it, and number its tags.

        Args:
            saved: the tags of the model's own head, in the order of their ids, or None.
            trained: the head is used as it is, because nothing is trained: then every tag has to be one of `saved`.

        Raises:
            UserError: with everything that is wrong.
        """
        read = self._rows()
        words, tags = self._columns(read)
        summary = {"data": read.origin, "columns": f"words {words!r}, tags {tags!r}"}
        splits, problems = [], []
        for name, table in (("training data", read.train), ("evaluation data", read.evaluate)):
            if table is not None:
                rows, wrong = read_rows(name, with_columns(name, table, words, tags), words, tags)
                splits.append(rows)
                problems += wrong
                if wrong and self.drop_invalid:
                    summary[f"dropped, {name}"] = f"{len(table) - len(rows):,} rows with words or tags missing"
        if problems and not self.drop_invalid:
            raise UserError(*problems)
        if nothing := [rows.name for rows in splits if not len(rows)]:
            raise UserError(*(f"{name}: there is no row with words and tags" for name in nothing))

        kind, splits = self._schemed(splits, summary)
        known = list(saved) if saved is not None and trained else None
        names = known or tag_names(
            kind, splits[0].names if splits[0].in_order else splits[0].used(), splits[0].in_order
        )
        if not trained:
            names = _for_head(names, saved, summary)
        if len(splits) == 1:
            splits = self._hold_out(splits[0])
            share = len(splits[1]) / (len(splits[0]) + len(splits[1]))
            summary["held out"] = (
                f"{share:.1%} of the training rows, the same for every seed; each tag stays in training"
            )
        splits = _numbered(kind, splits, names, known is not None)
        counts = [f"{len(rows):,} with {len(rows.tags):,} words" for rows in splits]
        summary["sentences"] = f"{counts[0]} to train on, {counts[1]} to evaluate on"
        summary["tags"] = _tags_line(kind, splits[0])
        return TaggedSentences(kind, names, splits[0], splits[1], self.max_length, self.overlap, summary, read.files)

    def _rows(self) -> "Splits":
        if self.embedded:
            return embedded_splits("lines of this Python's standard library, held out by file", *code_tokens())
        try:
            return read_tag_files(self)
        except NoHeaderError as error:
            raise UserError(*(problem + CONLL_HINT for problem in error.problems)) from None

    def _columns(self, read: "Splits") -> tuple[str, str]:
        """Return the columns of the words and of the tags."""
        names = read.train.column_names
        try:
            given = [] if self.tags is None else [self.tags]
            words = find_column(names, "tokens", self.tokens, WORD_NAMES, "the words", taken=given)
            return words, find_column(names, "tags", self.tags, TAG_NAMES, "the tags", taken=[words])
        except UserError as error:
            hint = ""
            tables = read.files and all({".tsv", ".csv"} & set(path.suffixes) for path in read.files)
            if tables and self.tokens is None and self.tags is None:
                hint = CONLL_HINT
            raise UserError(*(problem + hint for problem in error.problems)) from None

    def _schemed(self, splits: list[TaggedRows], summary: dict[str, str]) -> tuple[Kind, list[TaggedRows]]:
        """Return the kind of the tags, and, if it is bio, rows in which each entity begins with a beginning."""
        used = list(dict.fromkeys(name for rows in splits for name in rows.used()))
        kind, problem = kind_of_tags(used, self.kind)
        if kind is None:
            raise UserError(problem)
        if kind == "plain":
            if self.repair:
                raise UserError("data.repair is true, but the tags are plain ones, without beginnings; leave it out")
            return kind, splits
        if longer := [name for name in used if as_bio(name) != name]:
            summary["scheme"] = f"{listed(longer)} and the like are read as B- and I- (BIO)"
        whole, problems, mended = [], [], 0
        for rows in splits:
            called = [as_bio(name) for name in rows.names]
            names = tag_names(
                kind, [name for name in called if name == OUTSIDE or MARKED.fullmatch(name)], rows.in_order
            )
            named = rows.renamed(names, called)
            broken = broken_starts(names, named.tags, named.starts)
            if broken.any() and not self.repair:
                problems.append(_broken_line(named, broken))
            mended += int(broken.sum())
            whole.append(named.retagged(repaired(names, named.tags, broken)))
        if problems:
            raise UserError(*problems)
        if self.repair:
            summary["repaired"] = f"{mended:,} words inside of an entity that had not begun are now its beginning"
        return kind, whole

    def _hold_out(self, whole: TaggedRows) -> list[TaggedRows]:
        """Split rows in two so that each tag stays in training."""
        counts = np.diff(whole.starts)
        pairs = np.unique(np.repeat(np.arange(len(whole)), counts) * len(whole.names) + whole.tags)
        sentence, tag = np.divmod(pairs, len(whole.names))
        held = held_out_rows(starts_of(np.bincount(sentence, minlength=len(whole))), tag, self.held_out)
        if not len(held):
            raise UserError(
                f"there is no evaluation data, and none of the {len(whole)} training rows can be held out, since each "
                "tag must stay in training; give data.eval, or more rows"
            )
        stay = np.setdiff1d(np.arange(len(whole)), held, assume_unique=True)
        return [whole.take(stay), whole.take(held, "held-out rows of the training data")]


def _for_head(names: list[str], saved: Sequence[str] | None, summary: dict[str, str]) -> list[str]:
    """Return the tags in the order of the model's own head, if it has one for the same tags; the plan says what becomes of it."""
    if saved is None:
        summary["head"] = f"new weights, {len(names)} tags"
    elif sorted(saved) == sorted(names):
        summary["head"] = f"the model's own, {len(names)} tags"
        return list(saved)
    elif len(saved) != len(names):
        summary["head"] = (
            f"new weights, {len(names)} tags, because the model's own is for {len(saved)} ({listed(saved)})"
        )
    else:
        summary["head"] = f"starts from the model's own, which was trained for other tags ({listed(saved)})"
    return names


def _numbered(kind: Kind, splits: list[TaggedRows], names: list[str], known: bool) -> list[TaggedRows]:
    """Return rows with tags as ids of `names`. Raises UserError for tags without an id, or that training never shows."""
    numbered = [rows.renamed(names) for rows in splits]
    seen = np.bincount(numbered[0].tags[numbered[0].tags >= 0], minlength=len(names)) > 0
    if kind == "bio":  # of a rare type training may have beginnings alone
        types = {name[1:] for name, there in zip(names, seen, strict=True) if there and name != OUTSIDE}
        seen = np.array([name == OUTSIDE or name[1:] in types for name in names])
    problems = []
    for before, after in zip(splits, numbered, strict=True):
        strange = after.tags == UNKNOWN
        if not known:
            strange |= ~seen[after.tags]
        if strange.any():
            problems.append(_strange_line(before, strange, names if known else None))
    if not known and len(present := numbered[0].used()) < 2:
        problems.append(f"training data: every word has the tag {present[0]!r}, so there is nothing to learn")
    if problems:
        raise UserError(*problems)
    return numbered


def _strange_line(rows: TaggedRows, strange: Array, names: Sequence[str] | None) -> str:
    found = np.bincount(rows.tags[strange], minlength=len(rows.names)).tolist()
    counts = [f"{name!r} ({count:,}x)" for name, count in zip(rows.names, found, strict=True) if count]
    shown = ", ".join(counts[:SHOWN]) + (f", ... ({len(counts)} in all)" if len(counts) > SHOWN else "")
    where = "the training data" if names is None else f"the model, whose tags are {listed(names)},"
    return (
        f"{rows.name}: tags that {where} does not know: {shown}, in {row_numbers(rows.rows_with(strange))}; correct or remove "
        "these rows, or " + ("add such rows to the training data" if names is None else "take another model")
    )


def _broken_line(rows: TaggedRows, broken: Array) -> str:
    word = int(broken.argmax())
    return (
        f"{rows.name}: {int(broken.sum()):,} words are tagged as inside of an entity that has not begun, such as "
        f"{rows.names[rows.tags[word]]!r}, in {row_numbers(rows.rows_with(broken))}; correct them, or read them as beginnings with "
        "--data.repair true (files in the scheme IOB1 have many)"
    )


def _tags_line(kind: Kind, rows: TaggedRows) -> str:
    counts = np.bincount(rows.tags, minlength=len(rows.names))
    if kind == "bio":
        types = sorted({name[2:] for name in rows.names if name != OUTSIDE})
        begins = sum(int(counts[at]) for at, name in enumerate(rows.names) if name[0] == "B")
        return f"BIO, {len(types)} types of entity ({listed(types)}) with {begins:,} entities to train on"
    most = int(counts.argmax())
    return f"plain, {len(rows.names)}; the most frequent is {rows.names[most]!r} with {counts[most] / len(rows.tags):.1%} of the words"
