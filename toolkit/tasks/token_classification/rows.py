"""Words and their tags as they come in two columns of lists, and what can be wrong with them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from hashlib import blake2b
from typing import Any

import numpy as np

from toolkit.data.cache import digest_of
from toolkit.data.label_reading import codes_of, column_of, is_list, is_text
from toolkit.data.labels import UNKNOWN, Array, starts_of
from toolkit.data.reading import Checked, TableRows, checked_rows
from toolkit.data.tokenized import ROWS_AT_ONCE
from toolkit.errors import UserError
from toolkit.tasks.token_classification.word_rows import hint_at_column

LOOKED_AT = 100
UNIVERSAL = 8
"""Columns of CoNLL-U between the first and the last; the third is the part of speech."""


@dataclass(frozen=True)
class TaggedRows(TableRows):
    """Sentences for training or for evaluation; the table has the column "tokens", a list of words in each row."""

    starts: Array
    """Row i has the tags `tags[starts[i]:starts[i + 1]]`."""
    tags: Array
    """int64 codes, one for each word."""
    names: list[str]
    """Names of the codes."""
    in_order: bool
    """Whether the data itself gave the names their order."""

    def take(self, rows: Array, name: str | None = None) -> "TaggedRows":
        """Return these rows, in this order, under another name if one is given."""
        counts = np.diff(self.starts)[rows]
        starts = starts_of(counts)
        tags = self.tags[np.repeat(self.starts[rows] - starts[:-1], counts) + np.arange(starts[-1])]
        return replace(super().take(rows, name), starts=starts, tags=tags)

    def sentences(self) -> Iterator[list[list[str]]]:
        """Yield the words of some sentences after the other; few are in memory at once."""
        for batch in self.table.with_format("arrow").iter(ROWS_AT_ONCE):
            yield batch.column(0).to_pylist()

    def texts(self) -> Iterator[str]:
        """Yield the words of each sentence with spaces between them, to train a tokenizer on."""
        for sentences in self.sentences():
            yield from map(" ".join, sentences)

    @cached_property
    def digest(self) -> str:
        """A hash of the words of all sentences."""
        state = blake2b(digest_size=16)
        for sentences in self.sentences():
            for words in sentences:
                # The lengths say where a word ends: ("ab", "c") is not ("a", "bc").
                state.update(np.array([len(words), *map(len, words)], dtype=np.int64).tobytes())
                state.update("".join(words).encode("utf-8", "surrogatepass"))
        return digest_of(len(self), state.hexdigest())

    def renamed(self, names: Sequence[str], called: Sequence[str] | None = None) -> "TaggedRows":
        """Return the same tags as codes of other names; a tag that is not among them becomes UNKNOWN.

        `called` are the names that the present codes go by, if they are others.
        """
        ids = {name: number for number, name in enumerate(names)}
        table = np.array([*(ids.get(name, UNKNOWN) for name in called or self.names), UNKNOWN], dtype=np.int64)
        return replace(self, tags=table[self.tags], names=list(names), in_order=True)

    def rows_with(self, words: Array) -> Array:
        """Return the numbers, in the data, of the rows that have at least one of the words marked in a flat array."""
        found = np.unique(np.searchsorted(self.starts, np.flatnonzero(words), side="right") - 1)
        return self.rows[found]

    def used(self) -> list[str]:
        """Return the names of the tags that occur, in the order of their codes."""
        return [self.names[code] for code in np.unique(self.tags).tolist()]


def read_rows(name: str, table: Any, words: str, tags: str) -> Checked[TaggedRows]:
    """Return the rows of a table that have words and as many tags, and what is wrong with the others.

    Raises:
        UserError: a column holds something else.
    """
    import datasets
    import pyarrow as pa
    import pyarrow.compute as pc

    hint = partial(hint_at_column, table, words, tags)
    word_lists, tag_lists = (
        _lists(name, table, column, flag, hint) for column, flag in ((words, "tokens"), (tags, "tags"))
    )
    if not is_text(word_lists.type.value_type):
        raise UserError(
            f"{name}: the column {words!r} holds {word_lists.type}, not lists of words; give another one with "
            "--data.tokens COLUMN"
        )
    given = getattr(getattr(table.features[tags], "feature", None), "names", None)
    missing = _null(word_lists) | _null(tag_lists)
    counts, tag_counts = _counts(word_lists), _counts(tag_lists)
    uneven = ~missing & (counts != tag_counts)
    codes, names = codes_of(pc.list_flatten(tag_lists), given)
    unknown = f"a word without a tag{' among those that the data names' if given else ''} in column {tags!r}"
    wrong = {
        f"nothing in column {words!r} or {tags!r}": missing,
        f"an empty sentence in column {words!r}": ~missing & (counts == 0) & (tag_counts == 0),
        _uneven(uneven, counts, tag_counts, words, tags): uneven,
        f"a word that is null in column {words!r}": ~uneven & _any_in_row(_null(pc.list_flatten(word_lists)), counts),
        unknown: ~uneven & _any_in_row(codes == UNKNOWN, tag_counts),
    }
    flat = datasets.Dataset(pa.table({"tokens": word_lists.cast(pa.list_(pa.string()))}))
    numbers = np.arange(len(counts), dtype=np.int64)
    return checked_rows(TaggedRows(name, flat, numbers, starts_of(tag_counts), codes, names, bool(given)), wrong)


def refuse_numbers(table: Any) -> None:
    """Raise UserError for a CoNLL file whose first column numbers the words of each sentence: they are no words."""
    sentences = table.select_columns(["tokens"])[:LOOKED_AT]["tokens"]
    if all(words == [str(number + 1) for number in range(len(words))] for words in sentences):
        columns = [name for name in table.column_names if name.startswith("column_")]
        words, tags = columns[0], columns[2 if len(columns) == UNIVERSAL else 1] if len(columns) > 1 else "tags"
        raise UserError(
            "the first column of the CoNLL file numbers the words (1, 2, 3, ...); say which holds the words and which "
            f"the tags, such as --data.tokens {words} --data.tags {tags} (the columns are "
            f"{', '.join(table.column_names)}, and the first sentence has there "
            + ", ".join(f"{name} {table[0][name][:2]}" for name in (words, tags))
            + ")"
        )


def _lists(name: str, table: Any, column: str, flag: str, hint: Callable[[], str]) -> Any:
    """Return a column of lists; a text is split at its white space."""
    import pyarrow as pa

    array = column_of(table, column)
    if is_text(array.type):
        texts = array.to_pylist()
        _check_texts(name, column, texts, hint)
        return pa.array([None if text is None else text.split() for text in texts], pa.list_(pa.string()))
    if is_list(array.type) and not pa.types.is_nested(array.type.value_type):
        return array.cast(pa.list_(array.type.value_type))
    raise UserError(
        f"{name}: the column {column!r} holds {array.type}, not lists of words and tags; give another one with "
        f"--data.{flag} COLUMN"
    )


def _check_texts(name: str, column: str, texts: list[str | None], hint: Callable[[], str]) -> None:
    """Refuse a column of texts whose words were not joined by spaces: split there, each would be one word."""
    written = [text.strip() for text in texts if text is not None and text.strip()]
    if written and all(text[0] == "[" and text[-1] == "]" for text in written):
        raise UserError(
            f"{name}: the column {column!r} holds lists that were written as texts, such as {written[0][:40]!r}; write "
            "words with spaces between them, or give json lines or parquet, which have lists"
        )
    if len(written) > 1 and not any(len(text.split()) > 1 for text in written):
        raise UserError(
            f"{name}: no row of the column {column!r} has more than one word (the first is {written[0][:40]!r}); "
            f"{hint()}give a row for each sentence, with spaces between its words, or a CoNLL file, which has a line "
            "for each word"
        )


def _null(array: Any) -> Array:
    import pyarrow.compute as pc

    return np.asarray(pc.is_null(array).to_numpy(zero_copy_only=False))


def _counts(lists: Any) -> Array:
    import pyarrow.compute as pc

    return np.asarray(pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False), dtype=np.int64)


def _any_in_row(marked: Array, counts: Array) -> Array:
    rows = np.repeat(np.arange(len(counts)), counts)[marked]
    return np.bincount(rows, minlength=len(counts)) > 0


def _uneven(uneven: Array, counts: Array, tag_counts: Array, words: str, tags: str) -> str:
    if not uneven.any():
        return ""
    row = int(uneven.argmax())
    return (
        f"not as many tags in column {tags!r} as words in column {words!r} "
        f"(the first such row has {counts[row]:,} words and {tag_counts[row]:,} tags)"
    )
