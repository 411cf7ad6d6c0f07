"""Files of rows as Arrow tables, exactly as written: no text is guessed to be a null, a date or a truth value."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.data.columns import shortened
from toolkit.data.formats.conll import read_conll
from toolkit.data.formats.content import form_of_text, is_parquet, refuse_foreign, what_to_do_with
from toolkit.data.formats.csv import number_types, read_separated, with_types
from toolkit.data.formats.header import Header
from toolkit.data.formats.json import read_json, read_json_lines
from toolkit.data.formats.parquet import read_parquet
from toolkit.data.formats.text import file_errors, read_text
from toolkit.errors import UserError

if TYPE_CHECKING:
    import pyarrow

FORMATS = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".json": "json",
    ".jsonl": "json lines",
    ".ndjson": "json lines",
    ".parquet": "parquet",
    ".conll": "conll",
    ".bio": "conll",
    ".iob": "conll",
    ".iob2": "conll",
    ".txt": "text",
}
"""What is read, by the ending of the file, also compressed with gzip (.csv.gz) unless it is BINARY.

In a folder that has other files, texts (.txt) are taken for notes. A file that is named and has another ending is read
by its content. A new format is a module in `formats/`, and a line here and in READERS.
"""

READERS: dict[str, Callable[[Path], "pyarrow.Table"]] = {
    "json": read_json,
    "json lines": read_json_lines,
    "parquet": read_parquet,
    "conll": read_conll,
    "text": read_text,
}
"""What reads a format; csv and tsv, whose columns have no types and perhaps no names, are read by `read_separated`."""

BINARY = {"parquet"}
ENDINGS = f"{', '.join(FORMATS)}, and these but {', '.join(BINARY)} with .gz"
"""The endings that are read, for messages."""
NOTES = {"tsv": "read as a table separated by tabs", "text": "read as a text"}
PACKED = {".zip", ".zst", ".bz2", ".xz", ".lz4", ".tar", ".tgz", ".7z"}


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
            raise UserError(f"data.header is given, but {what}; leave it out: it speaks of csv and tsv files alone")


@dataclass(frozen=True)
class FileTable:
    """The rows of one file."""

    table: "pyarrow.Table"
    """At least one row."""
    texts_only: bool
    """Whether every column is text because the format, csv or tsv, knows nothing else."""
    note: str
    """What the plan should say about how the file was read, if anything."""


def format_of(path: Path) -> str | None:
    """Return the format that the ending of `path` stands for, or None if such files are not read."""
    endings = [ending.lower() for ending in path.suffixes[-2:]]
    if endings and endings[-1] == ".gz":
        found = FORMATS.get(endings[0]) if len(endings) == 2 else None
        return None if found in BINARY else found
    return FORMATS.get(endings[-1]) if endings else None


def read_file(path: Path, options: FileOptions) -> FileTable:
    """Read a file of a known format, or one whose content says what it is.

    Raises UserError, naming the file and where possible the line, for whatever is wrong with it.
    """
    found = format_of(path)
    if found is None and (ending := path.suffix.lower()) in PACKED:
        raise UserError(f"{path} is packed ({ending}); unpack it (only gzip is read as it is, such as .csv.gz)")
    notes = []
    with file_errors(path):
        if path.stat().st_size == 0:
            raise UserError(f"{path} is empty (0 bytes); give a file with rows")
        refuse_foreign(path)
        if found is None or (found == "text" and not options.documents):
            found = _format_by_content(path, options)
            notes = [NOTES.get(found, f"read as {found}")]
        if found in READERS:
            table = READERS[found](path)
        else:
            table, note = read_separated(path, found, options.header)
            notes += [note] if note else []
    texts_only = found not in READERS
    if table.num_columns == 0:
        raise UserError(f"{path} has no rows, or only empty ones; give one with rows")
    if table.num_rows == 0:
        raise UserError(f"{path} has no rows" + (", only a header" if texts_only else "") + "; give one with rows")
    if named := [name for name in table.column_names if "\0" in name]:
        raise UserError(f"{path}: the name of the column {named[0]!r} has a null character in it; give it another name")
    return FileTable(table, texts_only, ", ".join(notes))


def _format_by_content(path: Path, options: FileOptions) -> str:
    if is_parquet(path):
        return "parquet"
    found = form_of_text(path)
    if options.documents:  # which may have a tab or a bracket in its first line
        return "json lines" if found == "json lines" else "text"
    if found:
        return found
    if format_of(path) == "text":
        raise UserError(f"{path} is a text without tabs, so it has no columns; {what_to_do_with(path)}")
    ending = path.name.partition(".")[2] if path.suffix.lower() == ".gz" else path.suffix.lower()
    raise UserError(f"{path} has the ending {ending or '(none)'}; read are {ENDINGS}; {what_to_do_with(path)}")


def read_files(groups: Sequence[Sequence[Path]], options: FileOptions) -> tuple[list["pyarrow.Table"], str]:
    """Read groups of files, one table for each group, and what the plan should say about how they were read.

    A column of csv files becomes whole or floating-point numbers only if every field of it, in all groups, is written
    as one: labels of training and evaluation always have one type, and "007", "true" or a date stay texts.
    """
    read = [[(path, read_file(path, options)) for path in group] for group in groups]
    texts = [one.table for group in read for _, one in group if one.texts_only]
    if not texts:
        options.no_header_in("no csv or tsv file was read")
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
