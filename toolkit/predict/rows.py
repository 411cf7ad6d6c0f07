"""The rows of a file one after the other, as they stand there; few of them are in memory at once."""

import io
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from toolkit.data.archives import only_member
from toolkit.data.class_folders import files_below
from toolkit.data.endings import format_of
from toolkit.data.formats.archive import archive_of
from toolkit.data.formats.conll import read_conll
from toolkit.data.formats.content import form_of_packed, form_of_text, is_parquet, refuse_foreign
from toolkit.data.formats.csv import check_first_line, open_separated
from toolkit.data.formats.excel import check_first_row, only_sheet, open_sheet
from toolkit.data.formats.header import Header
from toolkit.data.formats.inside import SeveralTablesError, divided
from toolkit.data.formats.json import HALF, json_objects, read_json
from toolkit.data.formats.labelled_lines import labelled_lines
from toolkit.data.formats.parquet import source
from toolkit.data.formats.text import file_errors, is_empty, open_text
from toolkit.errors import UserError
from toolkit.predictor import Row

ROWS_AT_ONCE = 512
"""Rows that are read, predicted and written together. It decides which rows share a batch, and so has to stay the same
within a file."""
AS_LINES = "which parquet can't keep; give --output a name that ends with .jsonl"
IMAGES = (".png", ".jpg", ".jpeg", ".gif", ".bmp", ".webp", ".tif", ".tiff")


@dataclass(frozen=True)
class InputFile:
    """A file with rows to predict, or a folder of images or texts."""

    path: Path
    header: Header = None
    """Whether a csv or tsv file names its columns, or the names."""
    read_as: str | None = None
    """What a file is whose name does not say it; null tells it by its content alone."""

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
            files = files_in(self.path)
            if is_text(files[0]):
                yield from ({"file": str(path.relative_to(self.path)), "text": text_of_file(path)} for path in files)
            else:
                yield from ({"image": str(path.relative_to(self.path))} for path in files)
            return
        place, inner = self.place()
        with file_errors(place):
            yield from self._rows(place, inner)

    def place(self) -> tuple[Path, str | None]:
        """Return the file with the rows, which may lie in an archive, and the sheet or the key in it that was named.

        Raises:
            SeveralTablesError: it holds several tables, and none was named.
            UserError: there is nothing of that name in it.
        """
        with file_errors(self.path):
            place, inner = divided(self.path)
            if form_of_packed(place) == "zip" and archive_of(place) is None:
                return only_member(place, inner), None
            if inner is not None and self.form(place) not in ("excel", "json"):
                raise UserError(f"{self.path}: {place} is a file without parts that have names; give {place}")
            return place, inner

    def _rows(self, place: Path, inner: str | None) -> Iterator[dict[str, Any]]:
        match self.form(place):
            case "csv" | "tsv" as found:
                table = open_separated(place, found, self.header)
                yield from (dict(zip(table.names, record, strict=True)) for record in table.records())
            case "excel":
                sheet = open_sheet(place, only_sheet(place, inner), self.header)
                yield from (dict(zip(sheet.names, record, strict=True)) for record in sheet.records())
            case "json lines":
                with open_text(place, newline="\n") as file:
                    yield from (checked_object(place, *row) for row in json_objects(place, file))
            case "parquet":
                yield from parquet_rows(place)
            case "text":
                with open_text(place, newline="\n") as file:
                    yield from ({"text": line.rstrip("\r\n") or None} for line in file)
            case "labelled lines" if isinstance(self.header, list):
                yield from (dict(zip(self.header, line, strict=True)) for line in labelled_lines(place))
            case "json":
                yield from rows_of(read_json(place, inner)[0])
            case "conll":
                yield from rows_of(read_conll(place)[0])

    def form(self, place: Path) -> str:
        """Return the format of the file with the rows.

        Raises:
            UserError: it is empty, or none that is read.
        """
        if is_empty(place):
            raise UserError(f"{place} is empty (0 bytes); give a file with rows")
        refuse_foreign(place)
        found = form_of_packed(place) or format_of(place)
        if found == "text":
            found = None  # a text may be anything
        if found == "zip":
            raise UserError(f"{place} is an archive in an archive; unpack it, and give that one")
        return found or self.read_as or ("parquet" if is_parquet(place) else form_of_text(place) or "text")

    def check_header(self) -> None:
        """Check the first line of a csv or tsv file, or of a sheet, as a training does, by the rows below it.

        Raises:
            UserError: it looks like data and was taken for names, or the other way round.
        """
        if self.path.is_dir():
            return
        place, inner = self.place()
        try:
            with file_errors(place):
                found = self.form(place)
                if found == "excel":
                    check_first_row(open_sheet(place, only_sheet(place, inner), self.header), self.header)
                elif found in ("csv", "tsv"):
                    check_first_line(open_separated(place, found, self.header), self.header)
        except SeveralTablesError:
            raise
        except UserError as error:
            raise UserError(
                *(re.sub(r"(--)?data\.header", "--header", problem) for problem in error.problems)
            ) from None

    def schema(self) -> Any:
        """Return the types of the columns where the file itself has them, as `pyarrow.Schema`, or else None."""
        if not self.path.is_dir() and is_parquet(place := self.place()[0]):
            import pyarrow.parquet as parquet

            return parquet.ParquetFile(source(place)).schema_arrow
        return None


def files_in(folder: Path) -> list[Path]:
    """Return the images in a folder and those below it, sorted, or else the texts (.txt); hidden ones are left out.

    Raises:
        UserError: there is none.
    """
    found = sorted(path for path in files_below(folder) if path.suffix.lower() in IMAGES or is_text(path))
    images = [path for path in found if not is_text(path)]
    if not found:
        raise UserError(
            f"{folder} is a folder without an image ({', '.join(IMAGES)}) or a text (.txt); give a file of rows"
        )
    return images or found


def is_text(path: Path) -> bool:
    """Tell whether a file of a folder is a text."""
    return path.suffix.lower() == ".txt"


def text_of_file(path: Path) -> str | None:
    """Return a file that is one text, None where it is empty.

    Raises:
        UserError: it can't be read.
    """
    with file_errors(path), open_text(path, newline="") as file:
        return file.read() or None


def rows_of(table: Any) -> Iterator[dict[str, Any]]:
    """Yield the rows of an Arrow table, few of them in memory at once."""
    for batch in table.to_batches(ROWS_AT_ONCE):
        yield from batch.to_pylist()


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
        for batch in parquet.ParquetFile(source(path)).iter_batches(ROWS_AT_ONCE):
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
    if infers:
        check_parquet(schema, file)
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
        raise UserError(f"a column holds values of several types ({error}), {AS_LINES}") from None
    except OverflowError:
        raise UserError(f"a column holds a whole number beyond 64 bits, {AS_LINES}") from None


def check_parquet(schema: Any, file: InputFile) -> None:
    """Raise UserError if parquet can't keep a column, or can't keep a value in the type that all rows of it have."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    for field in schema:
        try:
            parquet.ParquetWriter(io.BytesIO(), pa.schema([field])).close()
        except pa.ArrowException as error:
            raise UserError(f"the column {field.name!r} holds {field.type} ({error}), {AS_LINES}") from None
    if all(pa.types.is_string(field.type) or pa.types.is_null(field.type) for field in schema):
        return
    # A second time through the file, as one value may not fit the type that later rows give its column.
    for block in file.blocks():
        try:
            pa.Table.from_pylist([dict(row) for row in block], schema)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise UserError(f"a column holds values of several types ({error}), {AS_LINES}") from None
