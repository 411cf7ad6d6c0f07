"""Comma- and tab-separated files, exactly: a field is a text as written, or null where it is empty."""

import csv
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.errors import UserError
from toolkit.table_text import open_text

if TYPE_CHECKING:
    import pyarrow

SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
ROWS_AT_ONCE = 100_000
"""Rows that are Python objects at one time; as an Arrow table they take about a tenth of the memory."""


def read_separated(path: Path, kind: str) -> tuple["pyarrow.Table", str]:
    import pyarrow as pa

    with open_text(path, newline="") as file:
        first = next((line for line in file if line.strip()), "")
    if not first:
        raise UserError(f"{path} holds nothing but blank lines; give a file with a header and rows")
    separator = "\t" if kind == "tsv" else _separator(first)
    note = "" if kind == "tsv" or separator == "," else f"separated by {SEPARATORS[separator]}"
    quoted = kind == "csv" or not _reads_unquoted(path)
    if not quoted:
        note = "quotes taken as text"
    names: list[str] = []
    pieces: list[Any] = []
    with _long_fields():
        rows = _records(path, separator, quoted)
        for number, header in islice(rows, 1):
            names = _column_names(path, number, header)
        while chunk := list(islice(_whole(path, rows, names), ROWS_AT_ONCE)):
            columns = [
                pa.array([value or None for value in column], pa.string()) for column in zip(*chunk, strict=True)
            ]
            pieces.append(pa.table(columns, names=names))
    table = pa.concat_tables(pieces) if pieces else pa.schema([(name, pa.string()) for name in names]).empty_table()
    return table, note


def _separator(header: str) -> str:
    """Return the comma, or what else separates the header without one (semicolons, where the comma is decimal)."""
    outside_quotes = "".join(header.split('"')[::2])
    if "," in outside_quotes:
        return ","
    return max(SEPARATORS, key=lambda sign: (outside_quotes.count(sign), sign == ","))


def _records(path: Path, separator: str, quoted: bool) -> Iterator[tuple[int, list[str]]]:
    """Yield each record that is not blank, with the number of the line that it starts on."""
    with open_text(path, newline="") as file:
        reader = csv.reader(
            file, delimiter=separator, strict=True, quoting=csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
        )
        start = 1
        try:
            for record in reader:
                if record:
                    yield start, record
                start = reader.line_num + 1
        except csv.Error as error:
            reason = "a quote that opens there is never closed" if "end of data" in str(error) else str(error)
            raise UserError(
                f'{path}, line {start}: malformed ({reason}); a field with a quote in it is written "like ""this"""'
            ) from error


def _whole(path: Path, rows: Iterator[tuple[int, list[str]]], names: Sequence[str]) -> Iterator[list[str]]:
    for number, record in rows:
        if len(record) != len(names):
            raise UserError(
                f"{path}, line {number}: {len(record)} field{'s' * (len(record) != 1)}, but the header has {len(names)} ({', '.join(names)}); "
                "a field that contains the separator or a line break must stand in double quotes"
            )
        yield record


def _column_names(path: Path, number: int, header: Sequence[str]) -> list[str]:
    # A nameless first column is what pandas writes for its index.
    names = [name.strip() or f"column {place}" for place, name in enumerate(header, start=1)]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UserError(
            f"{path}, line {number}: the header has {', '.join(map(repr, twice))} more than once; "
            "give each column its own name"
        )
    return names


def _reads_unquoted(path: Path) -> bool:
    """Return whether a tsv is one record per line with quotes as plain text.

    Many published files are: a stray quote would then swallow lines until the next one. Where both readings fit, quotes
    count as such only if they contain no line break.
    """
    with _long_fields():
        plain = _shape(path, quoted=False)
        if plain is None or not plain[1]:
            return False  # only the quoted reading can fit, or both are the same
        quoted = _shape(path, quoted=True)
    return quoted is None or quoted[0] != plain[0]


def _shape(path: Path, quoted: bool) -> tuple[int, bool] | None:
    """Return how many records a tsv has and whether a field begins with a quote; None if it can't be read so."""
    width, count, quotes = 0, 0, False
    try:
        for _, record in _records(path, "\t", quoted):
            width = width or len(record)
            if len(record) != width:
                return None
            count += 1
            quotes = quotes or any(field.startswith('"') for field in record)
    except UserError:
        return None
    return count, quotes


@contextmanager
def _long_fields() -> Iterator[None]:
    before = csv.field_size_limit(sys.maxsize)  # the default refuses texts of more than 131,072 characters
    try:
        yield
    finally:
        csv.field_size_limit(before)
