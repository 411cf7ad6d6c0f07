"""The rows of a file one after the other, as they stand there, and files that rows are written to; few rows are in
memory at once."""

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime, time
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, Protocol

from toolkit.data.files import READERS, format_of
from toolkit.data.formats.content import form_of_text, is_parquet, refuse_foreign
from toolkit.data.formats.csv import open_separated
from toolkit.data.formats.header import Header
from toolkit.data.formats.json import json_objects
from toolkit.data.formats.text import file_errors, open_text
from toolkit.errors import UserError
from toolkit.predictor import Row

WRITTEN = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")
"""The endings of files that are written."""
ROWS_AT_ONCE = 512
"""Rows that are read, predicted and written together. It decides which rows share a batch, and so has to stay the same
within a file."""
IMAGES = (".png", ".jpg", ".jpeg", ".gif", ".bmp", ".webp", ".tif", ".tiff")


@dataclass(frozen=True)
class InputFile:
    """A file with rows to predict, or a folder of images."""

    path: Path
    header: Header = None
    """Whether a csv or tsv file names its columns, or the names."""

    def blocks(self) -> Iterator[list[dict[str, Any]]]:
        """Yield the rows of the file, `ROWS_AT_ONCE` at a time.

        Raises:
            UserError: it can't be read.
        """
        if self.path.is_dir():
            rows = ({"image": str(path.relative_to(self.path))} for path in images_in(self.path))
            yield from blocks_of(rows)
            return
        with file_errors(self.path):
            yield from self._blocks()

    def _blocks(self) -> Iterator[list[dict[str, Any]]]:
        if self.path.stat().st_size == 0:
            raise UserError(f"{self.path} is empty (0 bytes); give a file with rows")
        refuse_foreign(self.path)
        found = format_of(self.path) or ("parquet" if is_parquet(self.path) else form_of_text(self.path) or "text")
        match found:
            case "csv" | "tsv":
                table = open_separated(self.path, found, self.header)
                yield from blocks_of(dict(zip(table.names, record, strict=True)) for record in table.records())
            case "json lines":
                with open_text(self.path, newline="\n") as file:
                    yield from blocks_of(row for _, row in json_objects(self.path, file))
            case "parquet":
                import pyarrow.parquet as parquet

                for batch in parquet.ParquetFile(self.path).iter_batches(ROWS_AT_ONCE):
                    yield from blocks_of(iter(batch.to_pylist()))
            case "text":
                with open_text(self.path, newline="\n") as file:
                    yield from blocks_of({"text": line.rstrip("\r\n") or None} for line in file)
            case _:
                # A list in json, or a CoNLL file: read whole.
                table = READERS[found](self.path)
                for batch in table.to_batches(ROWS_AT_ONCE):
                    yield from blocks_of(iter(batch.to_pylist()))

    def schema(self) -> Any:
        """Return the types of the columns where the file itself has them, as `pyarrow.Schema`, or else None."""
        if self.path.is_file() and is_parquet(self.path):
            import pyarrow.parquet as parquet

            return parquet.ParquetFile(self.path).schema_arrow
        return None


def images_in(folder: Path) -> list[Path]:
    """Return the images in a folder and those below it, sorted.

    Raises:
        UserError: there is none.
    """
    found = sorted(path for path in folder.rglob("*") if path.suffix.lower() in IMAGES)
    if not found:
        raise UserError(f"{folder} is a folder without an image ({', '.join(IMAGES)}); give a file of rows")
    return found


def blocks_of(rows: Iterator[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Yield rows, `ROWS_AT_ONCE` at a time."""
    while block := list(islice(rows, ROWS_AT_ONCE)):
        yield block


def first_columns(file: InputFile) -> list[str]:
    """Return the columns of the first rows of a file.

    Raises:
        UserError: it has no rows.
    """
    block = next(file.blocks(), None)
    if block is None:
        raise UserError(f"{file.path} has no rows; give a file with rows")
    return list(dict.fromkeys(chain.from_iterable(block)))


class Writer(Protocol):
    """What rows are written with."""

    def write(self, rows: Sequence[Row]) -> None:
        """Write rows, which all have the columns of the first ones."""


class LinesWriter:
    """Json lines: a row is an object."""

    def __init__(self, file: IO[str]) -> None:
        self.file = file

    def write(self, rows: Sequence[Row]) -> None:
        self.file.writelines(json.dumps(row, ensure_ascii=False, default=as_json) + "\n" for row in rows)


class SeparatedWriter:
    """Csv or tsv; what is no text or number is written as JSON."""

    def __init__(self, file: IO[str], separator: str, columns: Sequence[str]) -> None:
        self.writer = csv.DictWriter(file, columns, delimiter=separator, lineterminator="\n")
        self.writer.writeheader()

    def write(self, rows: Sequence[Row]) -> None:
        self.writer.writerows({name: as_cell(value) for name, value in row.items()} for row in rows)


class ParquetWriter:
    """Parquet: the types of the input are kept where it has any, and others are those of the first rows."""

    def __init__(self, path: Path, columns: Sequence[str], known: Any) -> None:
        self.path, self.columns, self.known = path, columns, known
        self.writer: Any = None

    def write(self, rows: Sequence[Row]) -> None:
        import pyarrow as pa
        import pyarrow.parquet as parquet

        if self.writer is None:
            whole = pa.Table.from_pylist([{name: row.get(name) for name in self.columns} for row in rows])
            kept = {} if self.known is None else {field.name: field.type for field in self.known}
            # A column that is empty so far may hold texts.
            types = [
                (field.name, kept.get(field.name, pa.string() if pa.types.is_null(field.type) else field.type))
                for field in whole.schema
            ]
            self.writer = parquet.ParquetWriter(self.path, pa.schema(types))
        try:
            table = pa.Table.from_pylist([dict(row) for row in rows], self.writer.schema)
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise UserError(
                f"a column changes its type in the middle ({error}), which parquet can't hold; give --output a name "
                "that ends with .jsonl"
            ) from None
        self.writer.write_table(table)


@contextmanager
def writing_rows(path: Path, ending: str, columns: Sequence[str], known: Any) -> Iterator[Writer]:
    """Open a file for rows with these columns; the `ending` says its format, and `known` the types of the input."""
    if ending == ".parquet":
        writer = ParquetWriter(path, columns, known)
        yield writer
        if writer.writer is not None:
            writer.writer.close()
        return
    with path.open("w", encoding="utf-8", newline="") as file:
        if ending in (".csv", ".tsv"):
            yield SeparatedWriter(file, "," if ending == ".csv" else "\t", columns)
        else:
            yield LinesWriter(file)


def as_cell(value: Any) -> Any:
    """Return a value as a csv file has it."""
    return json.dumps(value, ensure_ascii=False, default=as_json) if isinstance(value, Mapping | list) else value


def as_json(value: Any) -> str:
    """Return a value that JSON does not know as a text."""
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    return str(value)
