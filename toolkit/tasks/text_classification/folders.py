"""Folders of texts: a folder for each label with a file for each text."""

from collections import Counter
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.data.class_folders import ClassFolders, beside, files_below, folders_in, in_folder, labelled
from toolkit.data.config import DataConfig
from toolkit.data.discovery import kind_of, path_of
from toolkit.data.endings import format_of
from toolkit.data.formats.archive import is_file
from toolkit.data.formats.text import file_errors, open_text
from toolkit.data.hub import is_saved
from toolkit.errors import UserError

if TYPE_CHECKING:
    import datasets

    from toolkit.data.sources import Splits

ENDINGS = ("", ".txt", ".text")
"""Of files that are texts; old corpora give theirs no ending."""
AT_ONCE = 1000
"""Texts that are Python objects at one time."""
NAMED = 3


def text_folders(data: DataConfig) -> "Splits | None":
    """Return the texts in the folders that a data section names, or None if it names something else.

    Raises:
        UserError: a folder for evaluation does not exist or has no texts, or a setting is given that is for tables.
    """
    from toolkit.data.sources import Splits

    given = data.name or data.train
    place = path_of(given) if given else None
    if place is None or not place.is_dir() or is_saved(place) or any(map(_is_table, files_below(place))):
        return None
    if data.name is None and data.eval is not None:
        if not path_of(data.eval).is_dir():
            return None
        found = beside(place, data.eval)
    else:
        named = [one for one in (data.train, data.eval) if one and data.name is not None]
        if any(sign in one for one in named for sign in "*?[") or any(is_file(place / one) for one in named):
            return None
        if not _has_labels(in_folder(place, None, None, is_text).train):
            return None
        found = in_folder(place, data.train if data.name is not None else None, data.eval, is_text)
    if not _has_labels(found.train):
        return None
    if data.config is not None:
        raise UserError(f"data.config is {data.config!r}, but the data are texts in folders; leave it out")
    data.file_options.no_header_in("the texts are in folders")
    tables, notes = [], []
    for folder in (found.train, found.evaluate):
        if folder is not None:
            table, left_out = _read(folder)
            tables.append(table)
            notes += left_out
    origin = f"the texts in the folders of {found.origin}; the label is the folder's name"
    notes += _differences(found)
    evaluate = tables[1] if len(tables) > 1 else None
    return Splits(tables[0], evaluate, "; ".join([origin, *notes]))


def is_text(path: Path) -> bool:
    """Tell whether a file is one of the texts."""
    return path.suffix.lower() in ENDINGS or path.suffix[1:].isdigit()


def _has_labels(folder: Path) -> bool:
    """Tell whether there are texts in two folders of a folder, and no name of these says what its files are for."""
    names = [name for name in folders_in(folder) if any(map(is_text, files_below(folder / name)))]
    return len(names) > 1 and not any(map(kind_of, names))


def _is_table(path: Path) -> bool:
    return format_of(path) not in (None, "text")


def _read(folder: Path) -> tuple["datasets.Dataset", list[str]]:
    """Return the texts of a folder with their labels, and what was left out."""
    import datasets
    import pyarrow as pa

    paths, labels, others = labelled(folder, is_text)
    if not paths:
        raise UserError(f"the folder {folder} has no texts; put a folder of texts for each label there")
    loose = [path.name for path in sorted(folder.iterdir()) if path.is_file() and not path.name.startswith(".")]
    parts = []
    rows = iter(zip(paths, labels, strict=True))
    while some := [*islice(rows, AT_ONCE)]:
        columns = [pa.array([_text(path) for path, _ in some], pa.string()), pa.array([label for _, label in some])]
        parts.append(pa.table(columns, ["text", "label"]))
    notes = []
    if loose:
        more = ", ..." if len(loose) > NAMED else ""
        notes.append(f"left out in {folder}: {len(loose):,} in no label's folder ({_shown(loose)}{more})")
    if others:
        notes.append(f"left out below {folder}: {others:,} with other endings than texts have")
    return datasets.Dataset(pa.concat_tables(parts)), notes


def _text(path: Path) -> str:
    with file_errors(path), open_text(path, newline="") as file:
        return file.read()


def _differences(found: ClassFolders) -> list[str]:
    """Return which labels are in one of the two folders alone: a folder of texts without labels may be among them."""
    if found.evaluate is None:
        return []
    sides = [Counter(folders_in(folder)) for folder in (found.train, found.evaluate)]
    only = sorted((sides[0] - sides[1]).keys())
    return [f"{found.evaluate} has no folder {_shown(only)}"] if only else []


def _shown(names: Sequence[str]) -> str:
    return ", ".join(names[:NAMED])
