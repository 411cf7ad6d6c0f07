"""Excel workbooks (.xlsx, .xlsm): the cells of a sheet as the texts that a csv file of it would have.

Numbers keep all their digits, dates are written as 2026-01-31, truth values as TRUE and FALSE, and a formula is the
value that was saved with it. The sheet of a workbook has a path that goes on behind that of the file: book.xlsx/Sheet1.
"""

import datetime
import re
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree.ElementTree import ParseError

from toolkit.data.formats.archive import check_size, whole
from toolkit.data.formats.csv import texts_table
from toolkit.data.formats.header import Header, check_header, column_names, has_names, shown
from toolkit.data.formats.inside import SeveralTablesError
from toolkit.data.formats.text import LINES_LOOKED_AT
from toolkit.errors import UserError, require

if TYPE_CHECKING:
    import pyarrow

Cells = list[str | None]
ESCAPED = re.compile("_x((?![Dd][89A-Fa-f])[0-9A-Fa-f]{4})_")
"""How these files have a character that XML can't hold, such as a carriage return (_x000D_), and the underscore of a
text that looks like that (_x005F_). Halves of a character stay as they are."""
ERROR = "e"
FORMULA = re.compile(rb"<(\w{1,16}:)?f[\s/>]")
FORMULA_BYTES = 20
DAMAGED = (ParseError, zipfile.BadZipFile, zlib.error, EOFError)


@dataclass(frozen=True)
class Sheet:
    """How a sheet is read."""

    file: Path
    """The workbook."""
    title: str
    named: bool
    """Whether the first row names the columns."""
    row: int
    """The number of the first row."""
    first: list[str]
    """The cells of it, of the columns that are used."""
    names: list[str]
    places: list[int]
    """Where these columns are, counted from 0; those without a name and a value are left out."""
    left_out: int
    """Empty rows between others."""

    def __str__(self) -> str:
        return str(self.file / self.title)

    def records(self) -> Iterator[Cells]:
        """Yield the cells of each row that is not empty, null where a cell is."""
        with _opened(self.file) as book:
            rows = _rows(self.file, book[self.title])
            if self.named:
                next(rows)
            for _, cells in rows:
                yield [cells[place] if place < len(cells) else None for place in self.places]


def sheets_in(path: Path) -> list[str]:
    """Return the titles of the sheets that are shown and have a cell with a value."""
    with _opened(path) as book:
        return [sheet.title for sheet in book.worksheets if sheet.sheet_state == "visible" and _has_value(sheet)]


def all_sheets(path: Path) -> list[str]:
    """Return the titles of all sheets with cells, hidden and empty ones too."""
    with _opened(path) as book:
        return [sheet.title for sheet in book.worksheets]


def only_sheet(path: Path, inner: str | None) -> str:
    """Return the sheet of a workbook that is meant: the one with a name, or the only one with cells that is shown.

    Raises:
        SeveralTablesError: there are several.
        UserError: there is none, or none with this name.
    """
    if inner is not None:
        titles = all_sheets(path)
        if inner in titles:
            return inner
        raise UserError(f"{path} has no sheet {inner!r}; there are: {', '.join(map(repr, titles))}")
    titles = sheets_in(path)
    if len(titles) > 1:
        raise SeveralTablesError(path, titles, "sheets")
    if not titles:
        raise UserError(f"{path} has no sheet with a value in it; give a workbook with rows")
    return titles[0]


def open_sheet(path: Path, title: str, header: Header = None) -> Sheet:
    """Return how a sheet is read, after a look at all of it; `header` is data.header.

    Raises:
        UserError: it has no cells, a row is longer than the first, the first can't be names, or a cell is an error or
            a formula that was saved without its value.
    """
    with _opened(path) as book:
        if _has_formulas(path):
            _check_formulas(path, book[title])
        rows = _rows(path, book[title])
        number, first = next(rows, (0, []))
        if not number:
            raise UserError(f"{path / title} has no cell with a value; give a sheet with rows")
        used = [False] * len(first)
        last, left_out = number, 0
        for at, cells in rows:
            if any(cell is not None for cell in cells[len(first) :]):
                raise UserError(
                    f"{path / title}, row {at}: {len(cells)} cells, but row {number}, the first with a value, has "
                    f"{len(first)} ({shown([cell or '' for cell in first])}); the first row has to name every column, "
                    "or be as long as those below it: remove titles above the table and notes beside it"
                )
            for place, cell in enumerate(cells):
                used[place] = used[place] or cell is not None
            left_out += at - last - 1
            last = at
    places = [place for place, cell in enumerate(first) if cell is not None or used[place]]
    kept = [first[place] or "" for place in places]
    names = column_names(header, f"{path / title}, row {number}", kept)
    return Sheet(path, title, has_names(header), number, kept, names, places, left_out)


def check_first_row(sheet: Sheet, header: Header, table: "pyarrow.Table | None" = None) -> None:
    """Hold the first row against `header`, by the `table` of all rows, or else by the first ones; see `check_header`.

    Raises:
        UserError: it contradicts that.
    """
    if table is None:
        table = texts_table(islice(sheet.records(), LINES_LOOKED_AT), sheet.names)
    check_header(header, f"{sheet}, row {sheet.row}", sheet.first, table if sheet.named else table.slice(1))


def read_sheet(path: Path, inner: str | None, header: Header = None) -> tuple["pyarrow.Table", str]:
    """Return a sheet as texts, and what the plan should say about how it was read.

    `inner` is the title of the sheet, and null where there is one alone; `header` is data.header.
    """
    sheet = open_sheet(path, only_sheet(path, inner), header)
    table = texts_table(sheet.records(), sheet.names)
    check_first_row(sheet, header, table)
    notes = {
        f"the sheet {sheet.title!r}": inner is None,
        "without a header": not sheet.named,
        f"{sheet.left_out:,} empty row{'s' * (sheet.left_out > 1)} left out": sheet.left_out > 0,
    }
    return table, ", ".join(note for note, holds in notes.items() if holds)


@contextmanager
def _opened(path: Path, formulas: bool = False) -> Iterator[Any]:
    """Open a workbook, row by row, its `formulas` or their values.

    All formats of cells, and what openpyxl can't keep, are of no matter here.
    """
    openpyxl = require("openpyxl", "excel", f"reading the Excel workbook {path}")
    with whole(path) as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with zipfile.ZipFile(file) as archive:
            for entry in archive.infolist():
                check_size(path, entry)
        file.seek(0)
        try:
            book = openpyxl.load_workbook(file, read_only=True, data_only=not formulas)
        except (KeyError, ValueError, TypeError, AttributeError, OSError, *DAMAGED) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise UserError(f"{path} is no readable Excel workbook ({error}); save it again as .xlsx") from error
        try:
            yield book
        except DAMAGED as error:
            raise UserError(f"{path} is no whole Excel workbook ({error}); save it again as .xlsx") from error
        finally:
            book.close()


def _cells(sheet: Any) -> Iterator[Sequence[Any]]:
    """Yield the cells of each row."""
    # What a file says of its own size may be wrong, and rows behind it would be lost.
    sheet.reset_dimensions()
    yield from sheet.iter_rows()


def _has_value(sheet: Any) -> bool:
    return any(cell.value not in (None, "") for row in _cells(sheet) for cell in row)


def _rows(path: Path, sheet: Any) -> Iterator[tuple[int, Cells]]:
    """Yield the rows of a sheet that are not empty, each with its number, up to their last cell with a value."""
    for number, row in enumerate(_cells(sheet), start=1):
        cells = [_text(cell.value) for cell in row]
        for cell in row:
            if cell.data_type == ERROR:
                raise UserError(
                    f"{path / sheet.title}, cell {cell.coordinate}: the error {cell.value}, and no value; correct it "
                    "in the workbook, or empty the cell"
                )
        while cells and cells[-1] is None:
            cells.pop()
        if cells:
            yield number, cells


def _has_formulas(path: Path) -> bool:
    """Tell whether a workbook has a formula: one look at its bytes takes a hundredth of reading its cells."""
    with whole(path) as file, zipfile.ZipFile(file) as archive:
        for name in archive.namelist():
            if name.startswith("xl/worksheets/"):
                with archive.open(name) as sheet:
                    end = b""
                    while block := sheet.read(1 << 20):
                        if FORMULA.search(end + block):
                            return True
                        end = block[-FORMULA_BYTES:]
    return False


def _check_formulas(path: Path, sheet: Any) -> None:
    """Raise UserError for formulas without a value: programs that write a workbook, and can't calculate, save none."""
    with _opened(path, formulas=True) as book:
        found = [
            formula.coordinate
            for row, formulas in zip(_cells(sheet), _cells(book[sheet.title]), strict=True)
            for cell, formula in zip(row, formulas, strict=True)
            # The value of a formula that gives an empty text is none either, but has the type of texts.
            if formula.data_type == "f" and cell.value is None and cell.data_type == "n"
        ]
    if found:
        more = f", and {len(found) - 1:,} more like it" if len(found) > 1 else ""
        raise UserError(
            f"{path / sheet.title}, cell {found[0]}: a formula that was saved without its value{more}; open the "
            "workbook in Excel or LibreOffice and save it, which calculates them"
        )


def _text(value: Any) -> str | None:
    """Return a cell as a csv file has it; None where it is empty."""
    match value:
        case None | "":
            return None
        case str():
            return ESCAPED.sub(lambda found: chr(int(found[1], 16)), value) if "_x" in value else value
        case bool():
            return str(value).upper()
        case float():
            return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
        case datetime.datetime() if value.time() == datetime.time():
            return value.date().isoformat()
        case datetime.datetime():
            return value.isoformat(" ")
        case _:
            return str(value)
