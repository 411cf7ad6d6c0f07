"""The rows of a file one after the other, as they stand there, and files that rows are written to; few rows are in
memory at once."""

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime, time
from itertools import islice
from pathlib import Path
from typing import IO, Any, Protocol

from toolkit.data.files import READERS, format_of
from toolkit.data.formats.content import form_of_text, is_parquet, refuse_foreign
from toolkit.data.formats.csv import check_first_line, open_separated
from toolkit.data.formats.header import Header
from toolkit.data.formats.json import HALF, json_objects
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
        rows = self.rows()
        while block := list(islice(rows, ROWS_AT_ONCE)):
            yield block

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield the rows of the file.

        Raises:
            UserError: it can't be read.
        """
        if self.path.is_dir():
            yield from ({"image": str(path.relative_to(self.path))} for path in images_in(self.path))
            return
        with file_errors(self.path):
            yield from self._rows()

    def _rows(self) -> Iterator[dict[str, Any]]:
        if self.path.stat().st_size == 0:
            raise UserError(f"{self.path} is empty (0 bytes); give a file with rows")
        refuse_foreign(self.path)
        found = format_of(self.path) or ("parquet" if is_parquet(self.path) else form_of_text(self.path) or "text")
        match found:
            case "csv" | "tsv":
                table = open_separated(self.path, found, self.header)
                yield from (dict(zip(table.names, record, strict=True)) for record in table.records())
            case "json lines":
                with open_text(self.path, newline="\n") as file:
                    yield from (checked_object(self.path, *row) for row in json_objects(self.path, file))
            case "parquet":
                yield from parquet_rows(self.path)
            case "text":
                with open_text(self.path, newline="\n") as file:
                    yield from ({"text": line.rstrip("\r\n") or None} for line in file)
            case _:
                # A list in json, or a CoNLL file: read whole.
                for batch in READERS[found](self.path).to_batches(ROWS_AT_ONCE):
                    yield from batch.to_pylist()

    def check_header(self) -> None:
        """Check the first line of a csv or tsv file as a training does, by the rows below it.

        Raises:
            UserError: it looks like data and was taken for names, or the other way round.
        """
        found = format_of(self.path) if self.path.is_file() else None
        if found not in ("csv", "tsv") or self.path.stat().st_size == 0:
            return
        try:
            with file_errors(self.path):
                check_first_line(open_separated(self.path, found, self.header), self.header)
        except UserError as error:
            raise UserError(*(problem.replace("data.header", "header") for problem in error.problems)) from None

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


def checked_object(path: Path, place: str, row: Any) -> dict[str, Any]:
    """Return what stands in a line of a json lines file.

    Raises:
        UserError: it is no object, or has half a character.
    """
    if not isinstance(row, dict):
        raise UserError(f"{path}, {place}: no object with columns as its keys; give one object a line")
    try:
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeError:
        raise UserError(f"{path}, {place}: a text with {HALF}") from None
    return row


def parquet_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a parquet file.

    Raises:
        UserError: it is none, or not whole.
    """
    import pyarrow as pa
    import pyarrow.parquet as parquet

    try:
        for batch in parquet.ParquetFile(path).iter_batches(ROWS_AT_ONCE):
            yield from batch.to_pylist()
    except pa.ArrowException as error:
        reason = str(error).partition("\n")[0]
        raise UserError(f"{path} is no readable parquet file ({reason}); write or download it again") from None


@dataclass(frozen=True)
class Seen:
    """What a file holds, after one look at all of it."""

    rows: int
    columns: list[str]
    schema: Any = None
    """The types of the columns, as `pyarrow.Schema`, where they are asked for."""


def look_at(file: InputFile, ending: str) -> Seen:
    """Read a file once, before the hours that predictions may take.

    Args:
        file: the file.
        ending: of the output, which decides what rows may hold.

    Raises:
        UserError: it can't be read, has no rows, or the output could not hold what is in it.
    """
    file.check_header()
    columns: dict[str, None] = {}
    rows, schema = 0, file.schema() if ending == ".parquet" else None
    infers = ending == ".parquet" and schema is None
    for block in file.blocks():
        rows += len(block)
        for row in block:
            columns.update(dict.fromkeys(row))
        if ending != ".parquet" and (name := with_bytes(block[0])) is not None:
            raise UserError(f"the column {name!r} holds bytes, which only a file that ends with .parquet can keep")
        if infers:
            schema = joined_schema(schema, block, list(columns))
    if not rows:
        raise UserError(f"{file.path} has no rows; give a file with rows")
    return Seen(rows, list(columns), schema)


def with_bytes(row: Row) -> str | None:
    """Return a column of a row that holds bytes, if there is one."""
    for name, value in row.items():
        if isinstance(value, bytes) or (isinstance(value, dict) and isinstance(value.get("bytes"), bytes)):
            return name
    return None


def joined_schema(known: Any, block: Sequence[Row], columns: Sequence[str]) -> Any:
    """Return types that fit the rows before, whose are `known`, and those of a block.

    Raises:
        UserError: there are none.
    """
    import pyarrow as pa

    try:
        own = pa.Table.from_pylist([{name: row.get(name) for name in columns} for row in block]).schema
        return own if known is None else pa.unify_schemas([known, own], promote_options="permissive")
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise UserError(
            f"a column holds values of several types ({error}), which parquet can't; give --output a name that ends "
            "with .jsonl"
        ) from None


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
        form = {"delimiter": separator, "lineterminator": "\n"}
        self.writer = csv.DictWriter(file, columns, **form)  # type: ignore[arg-type]
        self.quoting = csv.DictWriter(file, columns, quoting=csv.QUOTE_ALL, **form)  # type: ignore[arg-type]
        self.writer.writeheader()

    def write(self, rows: Sequence[Row]) -> None:
        for row in rows:
            cells = {name: as_cell(value) for name, value in row.items()}
            # Python quotes no lone carriage return, which ends a row to most readers.
            returns = any(isinstance(cell, str) and "\r" in cell for cell in cells.values())
            (self.quoting if returns else self.writer).writerow(cells)


class ParquetWriter:
    """Parquet, with the types of the input."""

    def __init__(self, path: Path, adds: Mapping[str, str], known: Any) -> None:
        self.path, self.adds, self.known = path, adds, known
        self.writer: Any = None
        self.waiting: list[Row] = []
        """The rows before the first one whose scores say what labels there are."""

    def write(self, rows: Sequence[Row]) -> None:
        self.waiting += rows
        scored = [name for name, kind in self.adds.items() if kind == "scores"]
        if all(any(row.get(name) for row in self.waiting) for name in scored) or self.writer is not None:
            self.flush()

    def flush(self) -> None:
        """Write the rows that wait."""
        import pyarrow as pa
        import pyarrow.parquet as parquet

        if self.writer is None:
            kinds = {"text": pa.string(), "number": pa.float64(), "place": pa.int64()}
            kinds |= {"texts": pa.list_(pa.string()), "vector": pa.list_(pa.float64())}
            guess = pa.struct([("token", pa.string()), ("score", pa.float64())])
            kinds["guesses"] = pa.list_(pa.list_(guess))
            of_input = [
                (field.name, pa.string() if pa.types.is_null(field.type) else field.type) for field in self.known
            ]
            made = [(name, kinds.get(kind) or self.scores(name)) for name, kind in self.adds.items()]
            self.writer = parquet.ParquetWriter(self.path, pa.schema([*of_input, *made]))
        if self.waiting:
            self.writer.write_table(pa.Table.from_pylist([dict(row) for row in self.waiting], self.writer.schema))
        self.waiting = []

    def scores(self, name: str) -> Any:
        """Return the type of scores by label, which all rows with a prediction have."""
        import pyarrow as pa

        labels = next((list(row[name]) for row in self.waiting if row.get(name)), None)
        return pa.string() if labels is None else pa.struct([(label, pa.float64()) for label in labels])


@contextmanager
def writing_rows(path: Path, ending: str, seen: "Seen", adds: Mapping[str, str]) -> Iterator[Writer]:
    """Open a file for the rows of another one with what predictions add; the `ending` says its format."""
    columns = [*seen.columns, *adds]
    if ending == ".parquet":
        writer = ParquetWriter(path, adds, seen.schema)
        yield writer
        writer.flush()
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
