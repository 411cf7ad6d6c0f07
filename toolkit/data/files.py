"""Files of rows as Arrow tables, exactly as written: no text is guessed to be a null, a date or a truth value."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from toolkit.data.archives import only_member
from toolkit.data.columns import shortened
from toolkit.data.endings import ENDINGS, format_of, packed_ending
from toolkit.data.formats.archive import archive_of
from toolkit.data.formats.conll import read_conll
from toolkit.data.formats.content import form_of_packed, form_of_text, is_parquet, refuse_foreign, what_to_do_with
from toolkit.data.formats.csv import number_types, read_separated, with_types
from toolkit.data.formats.excel import read_sheet
from toolkit.data.formats.header import Header
from toolkit.data.formats.inside import divided
from toolkit.data.formats.json import read_json, read_json_lines
from toolkit.data.formats.labelled_lines import looks_labelled, read_labelled_lines
from toolkit.data.formats.parquet import read_parquet
from toolkit.data.formats.text import file_errors, is_empty, read_text
from toolkit.errors import UserError

if TYPE_CHECKING:
    import pyarrow

READERS: dict[str, Callable[[Path], "pyarrow.Table"]] = {
    "json lines": read_json_lines,
    "parquet": read_parquet,
    "text": read_text,
}
"""What reads a format, where nothing but the file says how. Of csv, tsv and excel the columns have no types and perhaps
no names; excel, json and zip may hold several tables."""
TEXTS_ONLY = ("csv", "tsv", "excel", "labelled lines")

NOTES = {
    "tsv": "read as a table separated by tabs",
    "text": "read as a text",
    "labelled lines": "each line divided at its first space",
    "excel": "read as an Excel workbook",
    "zip": "read as a zip archive",
}


@dataclass(frozen=True)
class FileOptions:
    """What a recipe and its user say about how files are read."""

    header: Header = None
    """data.header: whether csv and tsv name their columns, or the names."""
    documents: bool = False
    """Whether a text file is a document, a row; otherwise it is a table, or refused."""

    def no_header_in(self, what: str) -> None:
        """Raise UserError if data.header is given, for data that has no header; `what` is that, as a clause."""
        if self.header is not None:
            raise UserError(
                f"data.header is given, but {what}; leave it out: it speaks of csv, tsv and Excel files alone"
            )


@dataclass(frozen=True)
class FileTable:
    """The rows of one file."""

    table: "pyarrow.Table"
    """At least one row."""
    texts_only: bool
    """Whether every column is text because the format, csv or tsv, knows nothing else."""
    note: str
    """What the plan should say about how the file was read, if anything."""


def read_file(path: Path, options: FileOptions) -> FileTable:
    """Read a file of a known format, or one whose content says what it is, or the table that a path leads to inside.

    Raises:
        SeveralTablesError: it holds several tables.
        UserError: whatever else is wrong with it; the message names the file and where possible the line.
    """
    place, inner = divided(path)
    if packed := packed_ending(place):
        how = f" with: tar -xf {quote(str(place))}" if packed.startswith(".t") else ""
        raise UserError(
            f"{place} is packed ({packed}); unpack it{how} (only zip and gzip are read as they are, such as .csv.gz)"
        )
    with file_errors(place):
        form, note = form_of(place, options)
        if form == "zip" and archive_of(place):
            raise UserError(f"{place} is an archive in an archive; unpack it, and give that one")
        if form == "zip":
            member = only_member(place, inner)
            read = read_file(member, options)
            inside = "" if inner is not None else f"the file {member.relative_to(place).as_posix()} in it"
            return replace(read, note=", ".join(part for part in (inside, read.note) if part))
        if inner is not None and form not in ("excel", "json"):
            raise UserError(f"{path}: {place} is a file without parts that have names; give {place}")
        table, how = _read(place, inner, form, options)
    texts_only = form in TEXTS_ONLY
    if table.num_columns == 0:
        raise UserError(f"{path} has no rows, or only empty ones; give one with rows")
    if table.num_rows == 0:
        raise UserError(f"{path} has no rows" + (", only a header" if texts_only else "") + "; give one with rows")
    if named := [name for name in table.column_names if "\0" in name]:
        raise UserError(f"{path}: the name of the column {named[0]!r} has a null character in it; give it another name")
    return FileTable(table, texts_only, ", ".join(part for part in (note, how) if part))


def form_of(path: Path, options: FileOptions) -> tuple[str, str]:
    """Return the format of a file, by its content where its name does not say it, and what the plan should say of that.

    Raises:
        UserError: it is empty or none that is read.
    """
    if is_empty(path):
        raise UserError(f"{path} is empty (0 bytes); give a file with rows")
    refuse_foreign(path)
    found, note = format_of(path), ""
    if packed := form_of_packed(path):
        return packed, "" if packed == found else NOTES[packed]
    if found in ("excel", "zip"):
        raise UserError(f"{path} is no {found} file, by its content; give it the ending that says what it is")
    if found is None or (found == "text" and not options.documents):
        found = _format_by_content(path, options)
        note = NOTES.get(found, f"read as {found}")
    return found, note


def _read(path: Path, inner: str | None, form: str, options: FileOptions) -> tuple["pyarrow.Table", str]:
    """Return the table of a file, or the one inside of it that has a name, and how it was read."""
    if form == "excel":
        return read_sheet(path, inner, options.header)
    if form == "json":
        return read_json(path, inner)
    if form == "conll":
        return read_conll(path)
    if form in READERS:
        return READERS[form](path), ""
    if form == "labelled lines":
        assert isinstance(options.header, list)
        return read_labelled_lines(path, options.header), ""
    return read_separated(path, form, options.header)


def _format_by_content(path: Path, options: FileOptions) -> str:
    if is_parquet(path):
        return "parquet"
    found = form_of_text(path)
    if options.documents:  # which may have a tab or a bracket in its first line
        return "json lines" if found == "json lines" else "text"
    if found:
        return found
    if isinstance(options.header, list) and len(options.header) == 2 and looks_labelled(path):
        return "labelled lines"
    if format_of(path) == "text":
        raise UserError(f"{path} is a text without tabs, so it has no columns; {what_to_do_with(path)}")
    ending = path.name.partition(".")[2] if path.suffix.lower() == ".gz" else path.suffix.lower()
    raise UserError(f"{path} has the ending {ending or '(none)'}; read are {ENDINGS}; {what_to_do_with(path)}")


def read_files(groups: Sequence[Sequence[Path]], options: FileOptions) -> tuple[list["pyarrow.Table"], str]:
    """Read groups of files, one table for each group, and what the plan should say about how they were read.

    A column of csv, tsv or Excel files becomes whole or floating-point numbers only if every field of it, in all
    groups, is written as one: labels of training and evaluation always have one type, and "007", "true" or a date stay
    texts.
    """
    read = [[(path, read_file(path, options)) for path in group] for group in groups]
    texts = [one.table for group in read for _, one in group if one.texts_only]
    if not texts:
        options.no_header_in("no csv, tsv or Excel file was read")
    types = number_types(texts)
    tables = [
        _joined([(path, with_types(one.table, types) if one.texts_only else one.table) for path, one in group])
        for group in read
    ]
    return tables, "; ".join(sorted({one.note for group in read for _, one in group if one.note}))


def _joined(parts: Sequence[tuple[Path, "pyarrow.Table"]]) -> "pyarrow.Table":
    import pyarrow as pa

    (first, table), *others = parts
    for path, other in others:
        if missing := set(table.column_names) ^ set(other.column_names):
            raise UserError(
                f"{first} and {path} do not have the same columns: only one of them has "
                f"{', '.join(repr(shortened(name)) for name in sorted(missing))}; give one of the files or make "
                "them alike"
            )
    try:
        return pa.concat_tables(
            [table, *(other.select(table.column_names) for _, other in others)], promote_options="permissive"
        )
    except pa.ArrowException as error:
        raise UserError(
            f"{first} and the files next to it have columns of different types ({error}); make them alike"
        ) from error
