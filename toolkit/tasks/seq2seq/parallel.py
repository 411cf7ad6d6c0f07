"""Two files that belong together line by line, such as train.en and train.de: their endings name the columns."""

import re
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.data.config import DataConfig
from toolkit.data.discovery import named_files
from toolkit.data.endings import format_of
from toolkit.data.formats.archive import is_file
from toolkit.data.formats.content import form_of_text, is_parquet, refuse_packed
from toolkit.data.formats.text import ROWS_AT_ONCE, file_errors, open_text
from toolkit.errors import UserError

if TYPE_CHECKING:
    import datasets
    import pyarrow

    from toolkit.data.sources import Splits

LANGUAGE = re.compile("[a-z]{2,3}([-_][A-Za-z]{2,4})?|source|target")
"""Endings that such files usually have."""


def parallel_splits(data: DataConfig, endings: Sequence[str], flags: str) -> "Splits | None":
    """Return the lines of two files for training, and of two for evaluation if named, or None if other data is meant.

    Args:
        data: names one file of each two; the other one stands next to it, packed with gzip or not.
        endings: of the two files, and the names of their columns.
        flags: how the endings are given, for messages.

    Raises:
        UserError: a file is missing, or the two have different numbers of lines.
    """
    from toolkit.data.sources import Splits

    train, evaluate = named_files(data.name, data.train, data.eval)
    if train is None or not is_file(train) or format_of(train) is not None:
        return None
    if ending_of(train) not in endings:
        _suggest(train, flags)
        return None
    if data.config is not None:
        raise UserError(f"data.config is {data.config!r}, but the data are files, which have none; leave it out")
    if evaluate is not None and (not is_file(evaluate) or ending_of(evaluate) not in endings):
        raise UserError(
            f"data.train is {data.train or data.name!r}, one of two files that belong together line by line, but "
            f"data.eval {data.eval!r} is no file that ends with .{' or .'.join(endings)}; give one of two such files"
        )
    data.file_options.no_header_in(f"{train} is read line by line")
    groups = [[_partner(path, ending) for ending in endings] for path in (train, evaluate) if path is not None]
    tables = [_lines(files, endings) for files in groups]
    told_of = [f"{first} and {second.name}, line by line" for first, second in groups]
    files = tuple(file for group in groups for file in group)
    return Splits(tables[0], tables[1] if len(tables) > 1 else None, "; evaluation: ".join(told_of), files)


def ending_of(path: Path) -> str:
    """Return the ending of a file's name without its dot, that of gzip aside."""
    return Path(path.name.removesuffix(".gz")).suffix.removeprefix(".")


def _suggest(path: Path, flags: str) -> None:
    """Raise UserError if next to a file that is no table there is one of another ending, and no flag names these."""
    ending = ending_of(path)
    stem = path.name.removesuffix(".gz").removesuffix(ending)
    with file_errors(path):
        if not LANGUAGE.fullmatch(ending) or is_parquet(path) or form_of_text(path):
            return
        others = sorted(other for other in path.parent.iterdir() if other.name.startswith(stem) and is_file(other))
    for other in others:
        if LANGUAGE.fullmatch(ending_of(other)) and ending_of(other) != ending and format_of(other) is None:
            raise UserError(
                f"{path} and {other.name} may be two files that belong together line by line; if they are, say which "
                f"is the source and which the target, such as {flags.format(ending, ending_of(other))}"
            )


def _partner(path: Path, ending: str) -> Path:
    if ending_of(path) == ending:
        return path
    name = path.name.removesuffix(".gz").removesuffix(ending_of(path)) + ending
    packed, plain = path.with_name(name + ".gz"), path.with_name(name)
    for other in (packed, plain) if path.suffix == ".gz" else (plain, packed):
        if other.is_file():
            return other
    raise UserError(f"{path} holds one side of the pairs, but beside it there is no {plain.name} and no {packed.name}")


def _lines(files: Sequence[Path], names: Sequence[str]) -> "datasets.Dataset":
    import datasets
    import pyarrow as pa

    columns = [_texts(path) for path in files]
    counts = [len(column) for column in columns]
    if counts[0] != counts[1]:
        raise UserError(
            f"{files[0]} has {counts[0]:,} lines and {files[1]} has {counts[1]:,}; give two files that belong together "
            "line by line"
        )
    if not counts[0]:
        raise UserError(f"{files[0]} and {files[1]} are empty; give files with a text on each line")
    return datasets.Dataset(pa.table(columns, names=list(names)))


def _texts(path: Path) -> "pyarrow.ChunkedArray":
    import pyarrow as pa

    parts = []
    with file_errors(path):
        refuse_packed(path)
        with open_text(path, newline="\n") as file:
            while lines := [line.rstrip("\r\n") for line in islice(file, ROWS_AT_ONCE)]:
                parts.append(pa.array(lines, pa.string()))
    return pa.chunked_array(parts, pa.string())
