"""Which files are meant: by path, by name or pattern in a folder, or by the names that people give to splits."""

import os
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TypeVar

from toolkit.data.endings import ENDINGS, data_of_folder, format_of
from toolkit.data.formats.archive import archive_of, is_file
from toolkit.data.formats.content import form_of_packed
from toolkit.data.formats.inside import divided
from toolkit.errors import UserError

Named = TypeVar("Named")
Meant = TypeVar("Meant")
TRAIN = ("train", "training")
VALIDATION = ("validation", "valid", "val", "dev", "eval", "evaluation")
TEST = ("test", "testing")

IMAGES = {".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp", ".tif", ".tiff"}


@dataclass(frozen=True)
class Found:
    """The files of a run's rows."""

    train: list[Path]
    """At least one, all of one format."""
    evaluate: list[Path]
    """All of one format; none if there is nothing to evaluate on."""
    origin: str
    """What was found, for the plan."""


def named_files(name: str | None, train: str | None, evaluate: str | None) -> tuple[Path | None, Path | None]:
    """Return where the training and the evaluation data would lie if data.name, data.train and data.eval name files."""
    folder = path_of(name) if name else Path()
    if name and is_file(folder) and not train:
        neighbour = folder.parent / evaluate if evaluate else None
        return folder, neighbour if neighbour is None or is_file(neighbour) else Path(str(evaluate))
    first, second = (None if given is None else folder / path_of(given) for given in (train, evaluate))
    return first, second


def path_of(given: str) -> Path:
    """Return the path that a setting gives; "~" is the user's home."""
    return Path(os.path.expanduser(given))  # noqa: PTH111 (Path.expanduser fails on ~unknown)


def for_both(find: Callable[[str, str | None], Meant], train: str | None, evaluate: str | None) -> tuple[Meant, Meant]:
    """Return what `find` returns for data.train and for data.eval, given the setting's name and its value.

    Raises UserError, with all problems of both.
    """
    found: list[Meant] = []
    problems: list[str] = []
    for field, wanted in (("data.train", train), ("data.eval", evaluate)):
        try:
            found.append(find(field, wanted))
        except UserError as error:
            problems += error.problems
    if problems:
        raise UserError(*problems)
    return found[0], found[1]


def find_files(folder: Path, config: str | None, train: str | None, evaluate: str | None) -> Found:
    """Return the files in `folder` that `train` and `evaluate` name or match, or, where null, the conventional ones.

    Raises UserError, with all problems of both.
    """
    root = folder if config is None else _subfolder(folder, config)
    available = data_files(root)
    found = _find(root, available, train, evaluate)
    return replace(found, origin=f"folder {folder}" + (f" (config {config})" if config else "") + f": {found.origin}")


def find_inside(file: Path, tables: Sequence[Path], train: str | None, evaluate: str | None) -> Found:
    """Return the `tables` in a file that `train` and `evaluate` name or match, or, where null, the conventional ones.

    Raises:
        UserError: with all problems of both.
    """
    found = _find(file, tables, train, evaluate)
    return replace(found, origin=f"{file}: {found.origin}")


def _find(root: Path, available: Sequence[Path], train: str | None, evaluate: str | None) -> Found:
    to_train, to_evaluate = for_both(
        lambda field, wanted: _matching(root, available, field, wanted) if wanted else [], train, evaluate
    )
    remark = ""
    if not to_train:
        to_train = _unambiguous(root, _training_files(root, [path for path in available if path not in to_evaluate]))
    if not to_evaluate:
        left = [path for path in available if path not in to_train]
        to_evaluate, remark = conventional(left, lambda path: kind_of(path.relative_to(root)))
        to_evaluate = _unambiguous(root, to_evaluate)
    for files in (to_train, to_evaluate):
        one_format(files)
    origin = listing(root, to_train)
    if to_evaluate:
        origin += f"; evaluation: {listing(root, to_evaluate)}{remark}"
    return Found(to_train, to_evaluate, origin)


def conventional(left: Sequence[Named], kind: Callable[[Named], str | None]) -> tuple[list[Named], str]:
    """Return what is there for validation, or else for tests, and a remark that says so in the second case."""
    for words, remark in ((VALIDATION, ""), (TEST, ", named a test set: there is none for validation")):
        if chosen := [one for one in left if kind(one) in words]:
            return chosen, remark
    return [], ""


def kind_of(path: Path | str) -> str | None:
    """Return the word in a file's name, or else in those of its folders, that says what it is for: train, val, ..."""
    for part in reversed(Path(path).parts):
        for word in re.split(r"[^a-z]+", part.lower()):
            if word in TRAIN + VALIDATION + TEST:
                return word
    return None


def data_files(folder: Path) -> list[Path]:
    """Return the files in a folder and below that can be read, sorted; raises UserError if there are none."""
    if not os.access(folder, os.R_OK | os.X_OK):
        raise UserError(f"the folder {folder} may not be read by this user (permission denied); change its permissions")
    files = [
        path
        for path in sorted(folder.rglob("*"))
        if format_of(path)
        and not any(part.startswith((".", "__")) for part in path.relative_to(folder).parts)
        and path.is_file()
    ]
    files = data_of_folder(files)
    if not files:
        image = next((path for path in folder.rglob("*") if path.suffix.lower() in IMAGES), None)
        hint = f"; it has images, which recipes/classify_images.py takes with --data.name {folder}" if image else ""
        raise UserError(f"the folder {folder} has no data files; read are {ENDINGS}{hint}")
    return files


def one_format(files: Sequence[Path]) -> None:
    """Raise UserError unless all files have one format."""
    by_format: dict[str | None, Path] = {}
    for path in files:
        by_format.setdefault(format_of(path), path)
    if len(by_format) > 1:
        raise UserError(
            "files of several formats would be mixed: "
            + ", ".join(f"{path} ({form or 'not read'})" for form, path in by_format.items())
            + "; name the ones to use with data.train and data.eval (a pattern such as *.csv is fine)"
        )


def listing(root: Path, files: Sequence[Path]) -> str:
    """Return the first file's name below `root` and how many more there are."""
    first = files[0].relative_to(root) if files[0].is_relative_to(root) else files[0]
    return str(first) + (f" and {len(files) - 1} more" if len(files) > 1 else "")


def near(name: str, names: Iterable[str]) -> str:
    """Return a hint at the names that `name` may be a slip of, or else at those that exist; empty if there are none."""
    known = sorted(set(names))
    if close := get_close_matches(name, known, n=3):
        return f"; did you mean {' or '.join(close)}?"
    shown = ", ".join(known[:10]) + (f" and {len(known) - 10} more" if len(known) > 10 else "")
    return f"; there are: {shown}" if known else ""


def _training_files(root: Path, available: Sequence[Path]) -> list[Path]:
    kinds = {path: kind_of(path.relative_to(root)) for path in available}
    if len(available) == 1:
        return list(available)
    for words in (TRAIN, (None,)):
        if chosen := [path for path in available if kinds[path] in words]:
            return chosen
    names = ", ".join(str(path.relative_to(root)) for path in available)
    place = root if is_file(root) else f"the folder {root}"
    raise UserError(
        f"{place} has nothing to train on, only {names or 'what data.eval names'}; name a file in it with data.train"
    )


def _matching(root: Path, available: Sequence[Path], field: str, wanted: str) -> list[Path]:
    path = root / wanted
    if path in available or is_file(path):
        return [path]
    if path.is_dir():
        return data_files(path)
    inside = is_file(root)
    if inside and (matches := [one for one in available if path in one.parents]):
        return matches  # a folder in an archive
    if inside and (matches := matching_names(available, root, wanted)):
        return matches
    if any(sign in wanted for sign in "*?["):
        with suppress(ValueError, NotImplementedError):  # no pattern after all: below, a name that does not exist
            matched = set(root.glob(wanted))
            if matches := [one for one in available if one in matched]:
                return matches
    if matches := [one for one in available if kind_of(one.relative_to(root)) == wanted]:
        return _unambiguous(root, matches)
    if inside and (form_of_packed(root) != "zip" or archive_of(divided(path)[0]) is not None):
        return [path]  # a sheet or a key in it: whoever reads it says which there are
    raise UserError(
        f"{field} is {wanted!r}, but {'' if inside else 'the folder '}{root} has no such {'part' if inside else 'file'}"
        + near(wanted, (str(one.relative_to(root)) for one in available))
    )


def matching_names(tables: Sequence[Path], file: Path, pattern: str) -> list[Path]:
    """Return the tables inside of a file whose names a pattern matches, such as *.csv."""
    return [one for one in tables if fnmatchcase(one.relative_to(file).as_posix(), pattern)]


def _unambiguous(root: Path, files: list[Path]) -> list[Path]:
    """Refuse to mix what lies in several sub-folders, such as one for each language."""
    places: set[str] = set()
    for path in files:
        folders = path.relative_to(root).parts[:-1]
        places.add("/".join(part for part in folders if part != "data" and kind_of(part) is None) or ".")
    if len(places) > 1:
        shown = ", ".join(sorted(places)[:5]) + (", ..." if len(places) > 5 else "")
        raise UserError(
            f"the folder {root} has such files in several sub-folders ({shown}); "
            "name one with data.config, or the files with data.train and data.eval (**/*.csv takes all)"
        )
    return files


def _subfolder(folder: Path, config: str) -> Path:
    for place in (folder / config, folder / "data" / config):
        if place.is_dir():
            return place
    names = [path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")]
    raise UserError(f"data.config is {config!r}, but the folder {folder} has no such sub-folder{near(config, names)}")
