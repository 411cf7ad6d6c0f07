"""Words and their tags as they come in two columns of lists, and what can be wrong with them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from toolkit.data.label_reading import codes_of, column_of, is_list, is_text
from toolkit.data.labels import UNKNOWN, Array, starts_of
from toolkit.data.reading import row_numbers
from toolkit.errors import UserError


@dataclass(frozen=True)
class TaggedRows:
    """Sentences for training or for evaluation."""

    name: str
    words: Any
    """A `datasets.Dataset` with the column "tokens": a list of words in each row."""
    starts: Array
    """Row i has the tags `tags[starts[i]:starts[i + 1]]`."""
    tags: Array
    """int64 codes, one for each word."""
    names: list[str]
    """Names of the codes."""
    in_order: bool
    """Whether the data itself gave the names their order."""
    rows: Array
    """The number that each row had in the data, counted from 0."""

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, rows: Array, name: str | None = None) -> "TaggedRows":
        """Return these rows, in this order."""
        counts = np.diff(self.starts)[rows]
        starts = starts_of(counts)
        tags = self.tags[np.repeat(self.starts[rows] - starts[:-1], counts) + np.arange(starts[-1])]
        return TaggedRows(
            name or self.name, self.words.select(rows), starts, tags, self.names, self.in_order, self.rows[rows]
        )

    def renamed(self, names: Sequence[str], called: Sequence[str] | None = None) -> "TaggedRows":
        """Return the same tags as codes of other names; a tag that is not among them becomes UNKNOWN.

        `called` are the names that the present codes go by, if they are others.
        """
        ids = {name: number for number, name in enumerate(names)}
        table = np.array([*(ids.get(name, UNKNOWN) for name in called or self.names), UNKNOWN], dtype=np.int64)
        return TaggedRows(self.name, self.words, self.starts, table[self.tags], list(names), True, self.rows)

    def retagged(self, tags: Array) -> "TaggedRows":
        """Return the same words with other codes."""
        return replace(self, tags=tags)

    def rows_with(self, words: Array) -> Array:
        """Return the numbers, in the data, of the rows that have at least one of the words marked in a flat array."""
        found = np.unique(np.searchsorted(self.starts, np.flatnonzero(words), side="right") - 1)
        return self.rows[found]

    def used(self) -> list[str]:
        """Return the names of the tags that occur, in the order of their codes."""
        return [self.names[code] for code in np.unique(self.tags).tolist()]


def read_rows(name: str, table: Any, words: str, tags: str) -> tuple[TaggedRows, list[str]]:
    """Return the rows of a table that have words and as many tags, and what is wrong with the others, a sentence each.

    Raises UserError if a column holds something else.
    """
    import datasets
    import pyarrow as pa
    import pyarrow.compute as pc

    word_lists, tag_lists = _lists(name, table, words, "tokens"), _lists(name, table, tags, "tags")
    if not is_text(word_lists.type.value_type):
        raise UserError(
            f"{name}: the column {words!r} holds {word_lists.type}, not lists of words; give another one with --data.tokens COLUMN"
        )
    feature = getattr(table.features[tags], "feature", None)
    given = getattr(feature, "names", None)
    missing = _null(word_lists) | _null(tag_lists)
    counts, tag_counts = _counts(word_lists), _counts(tag_lists)
    empty = ~missing & (counts == 0) & (tag_counts == 0)
    uneven = ~missing & (counts != tag_counts)
    codes, names = codes_of(pc.list_flatten(tag_lists), given)
    tagless = ~uneven & _any_in_row(codes == UNKNOWN, tag_counts)
    wordless = ~uneven & _any_in_row(_null(pc.list_flatten(word_lists)), counts)
    problems = []
    for wrong, what in (
        (missing, f"nothing in column {words!r} or {tags!r} in"),
        (empty, f"an empty sentence in column {words!r} in"),
        (uneven, _uneven(uneven, counts, tag_counts, words, tags)),
        (wordless, f"a word that is null in column {words!r} in"),
        (tagless, f"a word without a tag{' among those that the data names' if given else ''} in column {tags!r} in"),
    ):
        if wrong.any():
            problems.append(
                f"{name}: {what} {row_numbers(np.flatnonzero(wrong))}; correct them, or leave them out with --data.drop_invalid true"
            )
    valid = np.flatnonzero(~(missing | empty | uneven | tagless | wordless))
    starts = starts_of(tag_counts)
    flat = datasets.Dataset(pa.table({"tokens": word_lists.cast(pa.list_(pa.string()))}))
    rows = TaggedRows(name, flat, starts, codes, names, bool(given), np.arange(len(counts), dtype=np.int64))
    return rows.take(valid), problems


def _lists(name: str, table: Any, column: str, flag: str) -> Any:
    """Return a column of lists; a text is split at its white space."""
    import pyarrow as pa

    array = column_of(table, column)
    if is_text(array.type):
        texts = array.to_pylist()
        _check_texts(name, column, texts)
        return pa.array([None if text is None else text.split() for text in texts], pa.list_(pa.string()))
    if is_list(array.type) and not pa.types.is_nested(array.type.value_type):
        return array.cast(pa.list_(array.type.value_type))
    raise UserError(
        f"{name}: the column {column!r} holds {array.type}, not lists of words and tags; give another one with --data.{flag} COLUMN"
    )


def _check_texts(name: str, column: str, texts: list[str | None]) -> None:
    """Refuse a column of texts whose words were not joined by spaces: split there, they would be trained on without a word."""
    written = [text.strip() for text in texts if text is not None and text.strip()]
    if written and all(text[0] == "[" and text[-1] == "]" for text in written):
        raise UserError(
            f"{name}: the column {column!r} holds lists that were written as texts, such as {written[0][:40]!r}; write words "
            "with spaces between them, or give json lines or parquet, which have lists"
        )
    if len(written) > 1 and not any(len(text.split()) > 1 for text in written):
        raise UserError(
            f"{name}: no row of the column {column!r} has more than one word (the first is {written[0][:40]!r}); give a row for "
            "each sentence, with spaces between its words, or a CoNLL file, which has a line for each word"
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
        f"(the first such row has {counts[row]:,} words and {tag_counts[row]:,} tags) in"
    )
