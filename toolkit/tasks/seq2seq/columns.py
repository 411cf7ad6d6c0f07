"""Where the source and the target of a pair of texts stand in a table, and the texts themselves."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from toolkit.data.columns import find_column
from toolkit.data.label_reading import is_list, is_text
from toolkit.data.reading import Checked, TableRows, checked_rows, listed
from toolkit.data.tokenized import ROWS_AT_ONCE
from toolkit.errors import UserError

# Tiers: the first one that has exactly one column in the table decides.
SOURCE_NAMES = (
    ("source", "src", "input"),
    ("document", "article", "dialogue", "report", "code", "text"),
    ("source_text", "input_text", "original", "content", "body", "sentence", "question"),
)
TARGET_NAMES = (
    ("target", "tgt", "targets"),
    ("summary", "summaries", "highlights", "output", "translation", "description"),
    ("target_text", "output_text", "abstract", "tldr", "title", "headline", "answer"),
)
PAIRED = "translation"
"""The column in which translation sets of the hub keep a text for each language."""


@dataclass(frozen=True)
class Place:
    """A column, or one language in a column that has a text for each of several."""

    column: str
    language: str | None = None

    def __str__(self) -> str:
        return repr(self.column) if self.language is None else f"{self.language!r} in {self.column!r}"

    def type_in(self, table: Any) -> Any:
        """Return the Arrow type that the table has there, or None if there is nothing."""
        schema = table.data.schema
        if self.column not in schema.names:
            return None
        type_ = schema.field(self.column).type
        if self.language is None:
            return type_
        inner = type_.get_field_index(self.language) if hasattr(type_, "get_field_index") else -1
        return type_.field(inner).type if inner >= 0 else None


def find_places(table: Any, source: str | None, target: str | None) -> tuple[Place, Place]:
    """Return where source and target are: in the columns that are given, or in those with usual names.

    Raises:
        UserError: a column does not exist, or none has a usual name; both are reported together.
    """
    places: list[Place] = []
    problems: list[str] = []
    wanted = ("source", source, SOURCE_NAMES), ("target", target, TARGET_NAMES)
    for flag, given, tiers in wanted:
        # One column given for both is reported below.
        taken = [other for name, other, _ in wanted if name != flag and other is not None and given is None]
        try:
            places.append(Place(find_column(table.column_names, flag, given, tiers, f"the {flag} text", taken)))
        except UserError as error:
            problems += error.problems
    if not problems and places[0] == places[1]:
        problems.append(f"data.source and data.target are both {source!r}; give a column each")
    if problems:
        raise UserError(*problems)
    return places[0], places[1]


def find_languages(table: Any, source: str, target: str) -> tuple[Place, Place]:
    """Return where the texts of two languages are: in columns that are called like them, or within one column.

    Raises:
        UserError: there is no such language.
    """
    inside = languages(table)
    places, problems = [], []
    for flag, language in (("source_language", source), ("target_language", target)):
        found = [Place(column, language) for column, names in inside.items() if language in names]
        if language in table.column_names:
            found = [Place(language)]
        if len(found) == 1:
            places.append(found[0])
            continue
        there = " and ".join(f"the column {column!r} holds {listed(names)}" for column, names in inside.items())
        problems.append(
            f"data.{flag} is {language!r}, but "
            + ("several columns hold it" if found else there or "no column holds languages")
            + f"; the columns are {listed(table.column_names)}: give a language or a column that is there"
        )
    if problems:
        raise UserError(*problems)
    return places[0], places[1]


def languages(table: Any) -> dict[str, list[str]]:
    """Return the languages of each column that has a text for each of several."""
    import pyarrow as pa

    columns = {field.name: field.type for field in table.data.schema if pa.types.is_struct(field.type)}
    return {name: [inner.name for inner in type_ if is_text(inner.type)] for name, type_ in columns.items()}


def check_places(tables: dict[str, Any], places: Sequence[Place]) -> None:
    """Raise UserError if a table has no texts, or lists of them, in one of the places."""
    problems = []
    for name, table in tables.items():
        for flag, place in zip(("source", "target"), places, strict=True):
            type_ = place.type_in(table)
            if type_ is None:
                problems.append(
                    f"{name}: there is no {place}, which the training data has; the columns here are "
                    f"{listed(table.column_names)}: name them alike in both"
                )
            elif not is_text(type_) and not (is_list(type_) and is_text(type_.value_type)):
                problems.append(
                    f"{name}: {place} holds {type_}, neither text nor lists of texts; give another column with "
                    f"--data.{flag} (the columns are {listed(table.column_names)})"
                )
    if problems:
        raise UserError(*problems)


def read_pairs(name: str, table: Any, places: Sequence[Place], prefix: str) -> Checked[TableRows]:
    """Return the rows of a table that have a source and a target, in the columns "source", "target" and "references".

    A source that is a list (of sentences) is joined with spaces. A target that is a list is one of several that are
    right: the first that is not empty is the target, all are references. `prefix` is put before each source.
    """
    import datasets
    import pyarrow as pa

    types = {"source": pa.string(), "target": pa.string(), "references": pa.list_(pa.string())}
    batches, empty = [], []
    chosen = table.select_columns(list(dict.fromkeys(place.column for place in places)))
    for batch in chosen.with_format("arrow").iter(ROWS_AT_ONCE):
        sources, targets = ([texts_in(value) for value in values_in(batch, place)] for place in places)
        joined = [" ".join(texts) for texts in sources]
        empty += [not source or not target for source, target in zip(joined, targets, strict=True)]
        columns = [
            [prefix + text for text in joined],
            [texts[0] if texts else "" for texts in targets],
            targets,
        ]
        arrays = [pa.array(column, type_) for column, type_ in zip(columns, types.values(), strict=True)]
        batches.append(pa.record_batch(arrays, schema=pa.schema(types)))
    whole = TableRows(name, datasets.Dataset(pa.Table.from_batches(batches)), np.arange(len(table), dtype=np.int64))
    return checked_rows(whole, {f"no text in {places[0]} or {places[1]}": np.array(empty)})


def values_in(batch: Any, place: Place) -> list[Any]:
    """Return what a batch has in a place, row by row."""
    values: list[Any] = batch[place.column].to_pylist()
    return values if place.language is None else [value and value[place.language] for value in values]


def texts_in(value: str | list[str | None] | None) -> list[str]:
    """Return the texts of a row that are not empty, without white space around them."""
    several = [value] if isinstance(value, str) or value is None else value
    return [text.strip() for text in several if text and text.strip()]
