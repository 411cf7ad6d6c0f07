"""What a file is by its content, where its name does not say it, or says something else."""

import json
import re
import zipfile
from pathlib import Path

from toolkit.data.formats.archive import ZIP, whole
from toolkit.data.formats.labelled_lines import looks_labelled
from toolkit.data.formats.text import LINES_LOOKED_AT, first_bytes, first_lines
from toolkit.errors import UserError

SHOWN = 60
"""Characters of a line that a message shows."""
PARQUET = b"PAR1"
SAVE_AS_CSV = 'open it in Excel or LibreOffice and save the sheet as "CSV UTF-8"'
FOREIGN = {
    b"\xd0\xcf\x11\xe0": (
        "an Excel workbook, or another document, of an older Microsoft Office or with a password; "
        'open it in Excel or LibreOffice and save it as ".xlsx", without a password'
    ),
    b"version https://git-lfs": "not the data but its pointer in Git LFS; fetch the data with: git lfs pull",
}
"""Files that are often given, by their first bytes: what they are, and what to do."""


def refuse_foreign(path: Path) -> None:
    """Raise UserError for a document or a pointer, whatever its name is: to a decoder it is bad text."""
    begin = first_bytes(path, 64)
    for first, what in FOREIGN.items():
        if begin.startswith(first):
            raise UserError(f"{path} is {what}")


def refuse_packed(path: Path) -> None:
    """Raise UserError also for a workbook and an archive, where a text is to be read.

    Raises:
        UserError: it is one.
    """
    refuse_foreign(path)
    if packed := form_of_packed(path):
        what = "an Excel workbook" if packed == "excel" else "a zip archive; name the file in it that is meant"
        raise UserError(f"{path} is {what}; give a text file")


def form_of_packed(path: Path) -> str | None:
    """Return "excel" for a workbook, "zip" for any other archive, whatever its name is, and None for anything else.

    Raises:
        UserError: it is a document of another kind.
    """
    if first_bytes(path, 4) not in ZIP:
        return None
    try:
        with whole(path) as file, zipfile.ZipFile(file) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, OSError):
        return "zip"
    if "xl/workbook.bin" in names:
        raise UserError(f"{path} is a binary Excel workbook; open it in Excel and save it as .xlsx")
    if any(name.startswith("xl/") for name in names):
        return "excel"
    if "content.xml" in names:
        raise UserError(f"{path} is an OpenDocument file; {SAVE_AS_CSV}")
    return "zip"


def is_parquet(path: Path) -> bool:
    """Tell whether a file begins as parquet files do."""
    return first_bytes(path, 4) == PARQUET


def form_of_text(path: Path) -> str | None:
    """Return "json", "json lines" or "tsv" if a text file begins as such a file does, or else None."""
    first, *second = [line.strip("\r\n") for line in first_lines(path, 2, newline="\n")] or [""]
    try:
        if isinstance(json.loads(first), dict):
            return "json lines" if second else "json"
    except (ValueError, RecursionError):
        pass
    if re.fullmatch(r"\s*([\[{]|\[\s*\{.*)\s*", first):
        return "json"
    return "tsv" if "\t" in first else None


def what_to_do_with(path: Path) -> str:
    """Return how a text that is no table can be given, as the end of a sentence."""
    lines = [line.rstrip() for line in first_lines(path, LINES_LOOKED_AT, newline="\n")]
    if not lines:
        return "it holds nothing but blank lines"
    first = lines[0] if len(lines[0]) <= SHOWN else lines[0][: SHOWN - 3] + "..."
    advice = (
        f"its first line is {first!r}: if that is a table, give the file the ending that says how it is separated "
        f"(a link will do: ln -s {path.name} {path.name}.csv)"
    )
    if looks_labelled(path):
        advice += '; if each line is a label, a space and a text, say so with --data.header "[label, text]"'
    return advice
