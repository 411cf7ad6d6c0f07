"""Two files that belong together line by line, such as train.en and train.de: their endings name the columns."""

import re
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from toolkit.data.config import DataConfig
from toolkit.data.discovery import TRAIN, conventional, kind_of, named_files, path_of
from toolkit.data.endings import ASIDE, format_of
from toolkit.data.formats.archive import archive_of, is_file, names_in
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
    given = data.name or data.train
    place = path_of(given) if given and not (data.name and data.train) else None
    if place is not None and (place.is_dir() or (is_file(place) and format_of(place) == "zip")):
        train, held = _conventional(place, endings, data.name is not None)
        evaluate = held if data.eval is None else evaluate
    if train is None or not is_file(train) or format_of(train) not in (None, "text"):
        return None
    if format_of(train) == "text" and has_columns(train):
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
    """Return the ending of a file's name without its dot; those of gzip and of texts may stand behind it."""
    return Path(_bare(path)).suffix.removeprefix(".")


def has_columns(path: Path) -> bool:
    """Tell whether a text begins as a table does."""
    with file_errors(path):
        return form_of_text(path) is not None


def _bare(path: Path) -> str:
    return path.name.removesuffix(".gz").removesuffix(".txt")


def _conventional(place: Path, endings: Sequence[str], named: bool) -> tuple[Path | None, Path | None]:
    """Return the files to train and to evaluate on, one of each two, that their names say in a folder or an archive.

    None if there are tables, or no such files.

    Raises:
        UserError: there are several, and their names do not say what for.
    """
    with file_errors(place):
        paths = [*map(place.joinpath, names_in(place))] if is_file(place) else sorted(place.rglob("*"))
    if any(format_of(path) not in (None, *ASIDE) for path in paths):
        return None, None
    found = [path for path in paths if ending_of(path) == endings[0] and is_file(path)]
    kinds = {path: kind_of(path.relative_to(place).with_name(_bare(path))) for path in found}
    train = [path for path in found if kinds[path] in TRAIN] or [path for path in found if kinds[path] is None]
    evaluate, _ = conventional([path for path in found if path not in train], kinds.__getitem__)
    for flag, paths in (("--data.train", train), ("--data.eval", evaluate)):
        if len(paths) > 1:
            listed = ", ".join(str(path.relative_to(place)) for path in paths[:5]) + (", ..." if len(paths) > 5 else "")
            first = quote(str(paths[0].relative_to(place) if named else paths[0]))
            raise UserError(
                f"{place} has {len(paths):,} files that end with .{endings[0]} ({listed}); name the one that is meant, "
                f"such as {flag} {first}"
            )
    return (train[0] if train else None), (evaluate[0] if evaluate else None)


def _suggest(path: Path, flags: str) -> None:
    """Raise UserError if next to a file that is no table there is one of another ending, and no flag names these."""
    ending = ending_of(path)
    stem = _bare(path).removesuffix(ending)
    with file_errors(path):
        if not LANGUAGE.fullmatch(ending) or is_parquet(path) or form_of_text(path):
            return
        inside = archive_of(path)
        beside = path.parent.iterdir() if inside is None else [inside[0] / name for name in names_in(inside[0])]
        others = sorted(other for other in beside if other.name.startswith(stem) and is_file(other))
    for other in others:
        if LANGUAGE.fullmatch(ending_of(other)) and ending_of(other) != ending and format_of(other) in (None, "text"):
            raise UserError(
                f"{path} and {other.name} may be two files that belong together line by line; if they are, say which "
                f"is the source and which the target, such as {flags.format(ending, ending_of(other))}"
            )


def _partner(path: Path, ending: str) -> Path:
    if ending_of(path) == ending:
        return path
    bare = _bare(path)
    name = bare.removesuffix(ending_of(path)) + ending + path.name.removesuffix(".gz").removeprefix(bare)
    packed, plain = path.with_name(name + ".gz"), path.with_name(name)
    for other in (packed, plain) if path.suffix == ".gz" else (plain, packed):
        if is_file(other):
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
