"""Tables with one word in each row, and a column that tells its sentence: they become rows of sentences.

The column may be filled in every row, or only in the first one of each sentence, as in the tables of Kaggle.
"""

import shlex
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from toolkit.data.columns import plain_name
from toolkit.data.label_reading import column_of, is_text
from toolkit.data.labels import Array
from toolkit.data.reading import listed, missing_columns
from toolkit.errors import UserError

if TYPE_CHECKING:
    from toolkit.data.sources import Splits

SENTENCE_NAMES = {
    *("sentence", "sentence_#", "sentence#", "sentence_id", "sentenceid", "sentence_number", "sentence_num"),
    *("sentence_no", "sentence_no.", "sentence_nr", "sentence_idx", "sentence_index"),
    *("sent", "sent_#", "sent_id", "sentid", "sent_number", "sent_num", "sent_no", "sent_idx"),
}
"""Usual names of the column, as `plain_name` has them."""
SINGLE = 0.9
"""The share of rows that have to be single words for a table to be taken for one of words without being told."""


@dataclass(frozen=True)
class Grouping:
    """Which rows of a table make a sentence."""

    starts: Array
    """The rows with which sentences begin, ascending."""
    kept: Array
    """The rows that hold anything; int64, ascending."""
    again: int | None
    """The first row of a sentence whose value an earlier one has; None where each has its own."""

    @property
    def sentences(self) -> int:
        """How many there are."""
        return len(self.starts)


def sentences_of(read: "Splits", words: str, tags: str, given: str | None, group: str | None) -> "Splits":
    """Return rows of sentences, if the tables have one word in each row; any other tables as they are.

    Args:
        read: the tables.
        words: the column with the words.
        tags: the column with the tags.
        given: data.sentence; None finds the column by its name.
        group: data.group, of which a sentence has the value that its first word has.

    Raises:
        UserError: the column that is given can't be what tells sentences apart, or what it has does not.
    """
    column = given
    if column is None:
        column = found_column(read.train, words, tags)
        if column is None:
            return read
    elif column not in (others := [name for name in read.train.column_names if name not in (words, tags)]):
        raise UserError(
            f"data.sentence is {column!r}, and besides the words ({words!r}) and the tags ({tags!r}) the data has "
            f"{listed(others) if others else 'no column'}; name the one that tells which sentence a word is of"
        )
    if problems := missing_columns(read.tables, [column]):
        raise UserError(*problems)
    if (holds := next((one for one in (words, tags) if is_nested(read.train, one)), None)) is not None:
        raise UserError(
            f"data.sentence is {column!r}, but the column {holds!r} has a list in each row; leave data.sentence out"
        )
    made = {name: grouped(name, table, words, tags, column, group) for name, table in read.tables.items()}
    origin = f"{read.origin} (one word in each row, sentences by {column!r})"
    return replace(read, train=made["training data"], evaluate=made.get("evaluation data"), origin=origin)


def found_column(table: Any, words: str, tags: str) -> str | None:
    """Return the column with a usual name that tells the sentence of the word in each row, if rows are single words."""
    named = [name for name in other_columns(table, words, tags) if plain_name(name) in SENTENCE_NAMES]
    if len(named) != 1 or is_nested(table, words) or is_nested(table, tags) or not has_single_words(table, words):
        return None
    found = grouping(table, words, tags, named[0])
    return named[0] if found.sentences < len(found.kept) else None


def hint_at_column(table: Any, words: str, tags: str) -> str:
    """Return which flag would read single words as sentences, where a column divides the rows as sentences would."""
    for name in other_columns(table, words, tags):
        found = grouping(table, words, tags, name)
        if 1 < found.sentences < len(found.kept) and found.again is None:
            return f"if {name!r} tells which sentence a word is of, give --data.sentence {shlex.quote(name)}; or "
    return ""


def other_columns(table: Any, words: str, tags: str) -> list[str]:
    """Return the columns that are neither words nor tags and have a plain value in each row."""
    return [name for name in table.column_names if name not in (words, tags) and not is_nested(table, name)]


def is_nested(table: Any, column: str) -> bool:
    """Return whether a column has lists, or other values with parts."""
    import pyarrow as pa

    return bool(pa.types.is_nested(table.data.schema.field(column).type))


def has_single_words(table: Any, column: str) -> bool:
    """Return whether nearly all texts of a column are one word: a word may have a space in it."""
    import pyarrow.compute as pc

    array = column_of(table, column)
    if not is_text(array.type) or array.null_count == len(array):
        return False
    several = pc.match_substring_regex(pc.utf8_trim_whitespace(array), r"\s")
    return bool(pc.mean(several).as_py() < 1 - SINGLE)


def grouping(table: Any, words: str, tags: str, column: str) -> Grouping:
    """Return which rows make a sentence: those with one value after each other, and those below that have none.

    Rows in which the word, the tag and this column are empty are left out.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    def text(name: str) -> Any:
        array = column_of(table, name)
        array = array.storage if isinstance(array, pa.ExtensionArray) else array
        array = pc.utf8_trim_whitespace(array.cast(pa.string()))
        return pc.if_else(pc.equal(array, ""), pa.scalar(None, pa.string()), array)

    values = text(column)
    empty = pc.and_(pc.is_null(values), pc.and_(pc.is_null(text(words)), pc.is_null(text(tags))))
    kept = np.flatnonzero(~np.asarray(empty.to_numpy(zero_copy_only=False)))
    filled = pc.fill_null_forward(values.take(pa.array(kept)))
    codes = filled.dictionary_encode("encode").indices.to_numpy(zero_copy_only=False).astype(np.int64)
    places = np.flatnonzero(np.diff(codes, prepend=-1) != 0)
    of = codes[places]
    firsts = np.unique(of, return_index=True)[1]
    again = np.setdiff1d(np.arange(len(of)), firsts)
    return Grouping(kept[places], kept, int(kept[places[again[0]]]) if len(again) else None)


def grouped(name: str, table: Any, words: str, tags: str, column: str, group: str | None) -> Any:
    """Return a table with a sentence in each row: lists of all columns, but a value of those that tell the sentence
    and its group.

    Raises:
        UserError: the first word has no sentence, or a sentence comes again.
    """
    import datasets
    import pyarrow as pa

    found = grouping(table, words, tags, column)
    if not len(found.kept):
        raise UserError(f"{name}: the table has no word; give one with a word in each row")
    arrays = {one: plain_column(table, one) for one in table.column_names}
    if arrays[column][int(found.kept[0])].as_py() in (None, ""):
        raise UserError(
            f"{name}: the first word has nothing in column {column!r}, which tells which sentence a word is of; fill "
            "it in the first row of each sentence, or in every row"
        )
    if found.sentences == len(found.kept):
        raise UserError(
            f"{name}: each row has a value of its own in column {column!r}, so that each sentence would be one word; "
            "name the column that tells which sentence a word is of with --data.sentence, or leave that out where each "
            "row is a sentence"
        )
    if found.again is not None:
        raise UserError(
            f"{name}: {arrays[column][found.again].as_py()!r} in column {column!r} comes again in row "
            f"{found.again + 1:,}, after other sentences; the words of a sentence have to stand together, and each "
            "sentence has a number of its own: sort the rows, or, where numbers begin again in each document, put the "
            "document before the number"
        )
    kept = pa.array(found.kept)
    ends = [*np.searchsorted(found.kept, found.starts).tolist(), len(found.kept)]
    starts, offsets = pa.array(found.starts), pa.array(ends, pa.int32())

    def of_sentences(one: str) -> Any:
        if one in (column, group):
            return arrays[one].take(starts)
        return pa.ListArray.from_arrays(offsets, arrays[one].take(kept))

    return datasets.Dataset(pa.table({one: of_sentences(one) for one in arrays}))


def plain_column(table: Any, column: str) -> Any:
    """Return a column as an Arrow array; numbers of classes that the data set names as their names."""
    import pyarrow as pa

    array = column_of(table, column)
    names = getattr(table.features[column], "names", None)
    return pa.array(names, pa.string()).take(array) if names else array
