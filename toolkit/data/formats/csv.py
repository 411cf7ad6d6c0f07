"""Comma- and tab-separated files, exactly: a field is a text as written, or null where it is empty.

They are read by Python's own `csv`, which is strict and counts lines. `pandas.read_csv` fills a line that has too few
fields with nulls, and `pyarrow.csv` takes `"a"b` for `ab`. Where a field
has a line break, the numbers in their errors are not those of the lines in the file.
"""

import csv
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from toolkit.data.formats.archive import archive_of
from toolkit.data.formats.conll import has_sentences_of_conll
from toolkit.data.formats.header import Header, check_header, column_names, has_names, shown
from toolkit.data.formats.text import LINES_LOOKED_AT, ROWS_AT_ONCE, first_lines, open_text
from toolkit.errors import UserError

if TYPE_CHECKING:
    import pyarrow

SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
# Only numbers that convert without loss: no leading zeros, no more digits than the type holds.
WHOLE_NUMBER = r"^(0|-?[1-9][0-9]{0,17})$"
FLOATING_POINT = r"^-?((0|[1-9][0-9]{0,14})(\.[0-9]+)?|\.[0-9]+)([eE][+-]?[0-9]{1,2})?$"


@dataclass(frozen=True)
class Separated:
    """How a csv or tsv file is read."""

    path: Path
    separator: str
    quoted: bool
    """Whether quotes enclose fields; otherwise they are text."""
    named: bool
    """Whether the first line names the columns."""
    line: int
    """The number of the first line."""
    first: list[str]
    """The fields of it."""
    names: list[str]

    def records(self) -> Iterator[list[str | None]]:
        """Yield the fields of each row, null where a field is empty.

        Raises:
            UserError: a line is malformed.
        """
        with _long_fields():
            rows = _records(self.path, self.separator, self.quoted)
            if self.named:
                next(rows)
            beginning = f"the {'header' if self.named else 'first line'} has {len(self.first)} ({shown(self.first)})"
            for record in _of_width(self.path, rows, len(self.first), beginning):
                yield [cell or None for cell in record]


def open_separated(path: Path, kind: str, header: Header = None) -> Separated:
    """Return how a csv or tsv (`kind`) is read; `header` is data.header.

    Raises:
        UserError: it has no rows, or its first line can't be names.
    """
    with _long_fields():
        begin = first_lines(path, LINES_LOOKED_AT, newline="")
        if not begin:
            raise UserError(f"{path} holds nothing but blank lines; give a file with a header and rows")
        separator = "\t" if kind == "tsv" else _separator(begin)
        quoted = separator != "\t" or not _reads_unquoted(path)
        number, first = next(_records(path, separator, quoted))
    names = column_names(header, f"{path}, line {number}", first)
    return Separated(path, separator, quoted, has_names(header), number, first, names)


def check_first_line(found: Separated, header: Header) -> None:
    """Hold the first line of a file against `header`, by the first rows below it; see `check_header`.

    Raises:
        UserError: it contradicts that.
    """
    rows = list(islice(found.records(), LINES_LOOKED_AT))
    table = texts_table(iter(rows if found.named else rows[1:]), found.names)
    check_header(header, f"{found.path}, line {found.line}", found.first, table)


def read_separated(path: Path, kind: str, header: Header = None) -> tuple["pyarrow.Table", str]:
    """Return a csv or tsv as texts, and what the plan should say about how it was read; `header` is data.header."""
    found = open_separated(path, kind, header)
    table = texts_table(found.records(), found.names)
    check_header(header, f"{path}, line {found.line}", found.first, table if found.named else table.slice(1))
    notes = {
        f"separated by {SEPARATORS[found.separator]}": kind == "csv" and found.separator != ",",
        "quotes taken as text": not found.quoted,
        "without a header": not found.named,
    }
    return table, ", ".join(note for note, holds in notes.items() if holds)


def texts_table(records: Iterator[list[str | None]], names: Sequence[str]) -> "pyarrow.Table":
    import pyarrow as pa

    parts = []
    while chunk := list(islice(records, ROWS_AT_ONCE)):
        columns = zip(*chunk, strict=True)
        parts.append(pa.table([pa.array(column, pa.string()) for column in columns], names))
    return pa.concat_tables(parts) if parts else pa.schema([(name, pa.string()) for name in names]).empty_table()


def number_types(tables: Sequence["pyarrow.Table"]) -> dict[str, "pyarrow.DataType"]:
    """Return the types of the columns that hold nothing but numbers, in all of these tables of texts together."""
    names = {name for table in tables for name in table.column_names}
    types = {name: _number_type([table[name] for table in tables if name in table.column_names]) for name in names}
    return {name: kind for name, kind in types.items() if kind is not None}


def with_types(table: "pyarrow.Table", types: dict[str, "pyarrow.DataType"]) -> "pyarrow.Table":
    """Return a table of texts with the columns of numbers as numbers."""
    for place, name in enumerate(table.column_names):
        if name in types:
            table = table.set_column(place, name, table[name].cast(types[name]))
    return table


def _number_type(columns: Sequence["pyarrow.ChunkedArray"]) -> "pyarrow.DataType | None":
    import pyarrow as pa
    import pyarrow.compute as compute

    if all(column.null_count == len(column) for column in columns):
        return None
    for pattern, kind in ((WHOLE_NUMBER, pa.int64()), (FLOATING_POINT, pa.float64())):
        if all(compute.all(compute.match_substring_regex(column, pattern)).as_py() is not False for column in columns):
            return kind
    return None


def _separator(lines: Sequence[str]) -> str:
    """Return what separates the fields: the comma, or in a first line without one the most frequent of the others.

    If it does not divide all lines into equally many fields and another one does, it is the other: where there is no
    header, the first line has the commas of its texts.
    """
    outside_quotes = "".join(lines[0].split('"')[::2])
    # Without a header the first line may have decimal commas.
    names = re.sub("(?<=[0-9]),(?=[0-9])", "", outside_quotes)
    usual = "," if "," in names else max(SEPARATORS, key=lambda sign: (names.count(sign), sign == ","))
    return next((sign for sign in (usual, *SEPARATORS) if _divides(lines, sign)), usual)


def _divides(lines: Sequence[str], separator: str) -> bool:
    for quoting in (csv.QUOTE_MINIMAL, csv.QUOTE_NONE) if separator == "\t" else (csv.QUOTE_MINIMAL,):
        try:
            widths = [len(record) for record in csv.reader(lines, delimiter=separator, quoting=quoting) if record]
        except csv.Error:
            continue
        if len(lines) == LINES_LOOKED_AT:
            widths.pop()  # the last record may go on behind these lines
        if len(set(widths)) == 1 and widths[0] > 1:
            return True
    return False


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
                + _or_conll(path)
            ) from error


def _of_width(path: Path, rows: Iterator[tuple[int, list[str]]], width: int, beginning: str) -> Iterator[list[str]]:
    for number, record in rows:
        if len(record) != width:
            raise UserError(
                f"{path}, line {number}: {len(record)} field{'s' * (len(record) != 1)}, but {beginning}; "
                "a field that contains the separator or a line break must stand in double quotes" + _or_conll(path)
            )
        yield record


def _or_conll(path: Path) -> str:
    """Return what to do with a file that has words and tags on its lines, as the end of a sentence."""
    if not has_sentences_of_conll(path):
        return ""
    link = (
        f" (a link will do: ln -s {quote(path.name)} {quote(path.name + '.conll')})" if archive_of(path) is None else ""
    )
    return (
        "; it looks like CoNLL, with a word and its tags on each line and blank lines between sentences: if it is, "
        f"give it the ending .conll{link}"
    )


def _reads_unquoted(path: Path) -> bool:
    """Return whether a tsv is one record per line with quotes as plain text.

    Many published files are: a stray quote would swallow lines until the next one. Where both readings fit, quotes
    count as such only if none contains a line break.
    """
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
