"""Which format a file has, by the ending of its name."""

from collections.abc import Sequence
from pathlib import Path

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
    ".xlsx": "excel",
    ".xlsm": "excel",
    ".zip": "zip",
}
"""What is read, by the ending of the file, also compressed with gzip (.csv.gz) unless it is BINARY.

In a folder that has other files, those of the formats in ASIDE are taken for notes or copies. A file that is named and
has another ending is read by its content. A new format is a module in `formats/`, and a line here and in READERS.
"""
ASIDE = ("text", "excel", "zip")
"""What the data of a folder are only where there is nothing else, and nothing of the formats before it in this list."""
BINARY = ("parquet", "excel", "zip")
ENDINGS = f"{', '.join(FORMATS)}, and these but {', '.join(BINARY)} with .gz"
"""The endings that are read, for messages."""
PACKED = {".zst", ".bz2", ".xz", ".lz4", ".tar", ".tgz", ".7z"}
DESCRIPTIONS = {"dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json"}
"""Files that describe the data next to them, in folders that `datasets` wrote."""


def format_of(path: Path) -> str | None:
    """Return the format that the ending of `path` stands for, or None if such files are not read."""
    endings = [ending.lower() for ending in path.suffixes[-2:]]
    if endings and endings[-1] == ".gz":
        found = FORMATS.get(endings[0]) if len(endings) == 2 else None
        return None if found in BINARY else found
    return FORMATS.get(endings[-1]) if endings else None


def packed_ending(path: Path) -> str | None:
    """Return the ending of an archive or a packed file that is not read, or None."""
    endings = [ending.lower() for ending in path.suffixes[-2:]]
    if endings == [".tar", ".gz"]:
        return ".tar.gz"
    return endings[-1] if endings and endings[-1] in PACKED else None


def data_of_folder(paths: Sequence[Path]) -> list[Path]:
    """Return those files that are the data of a folder: tables, or else texts, workbooks or archives."""
    known = [path for path in paths if format_of(path) and path.name not in DESCRIPTIONS]
    for form in (None, *ASIDE):
        chosen = [path for path in known if (format_of(path) not in ASIDE if form is None else format_of(path) == form)]
        if chosen:
            return chosen
    return []
