"""Folders with a folder for each label, maybe within folders for training and evaluation."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from toolkit.data.discovery import TEST, TRAIN, VALIDATION, conventional, near
from toolkit.errors import UserError


@dataclass(frozen=True)
class ClassFolders:
    """The folders of labels to train and to evaluate on."""

    train: Path
    evaluate: Path | None
    origin: str
    """What was found, for the plan: the folder, and which folders in it."""


def in_folder(folder: Path, train: str | None, evaluate: str | None, is_sample: Callable[[Path], bool]) -> ClassFolders:
    """Return the folders in a folder that are named, in data.train and data.eval or as usual, or the folder itself.

    A folder that holds nothing but another one is its wrapping. `is_sample` tells which files are samples.

    Raises:
        UserError: there is no such folder.
    """
    root = folder
    names = folders_in(root)
    while len(names) == 1 and not any(is_sample(entry) for entry in root.iterdir()) and train is None:
        root = root / names[0]
        names = folders_in(root)
    kinds = {name: name.lower() for name in names if name.lower() in (*TRAIN, *VALIDATION, *TEST)}
    chosen, remark = train, ""
    if chosen is None:
        chosen = next((name for name, kind in kinds.items() if kind in TRAIN), None)
    for field, wanted in (("data.train", train), ("data.eval", evaluate)):
        if wanted is not None and wanted not in names:
            raise UserError(f"{field} is {wanted!r}, but the folder {root} has no such folder{near(wanted, names)}")
    if chosen is None:
        if evaluate is not None:
            raise UserError(
                f"data.eval is {evaluate!r}, but which folder in {root} to train on is not known; name it with "
                "data.train"
            )
        return ClassFolders(root, None, str(root))
    if evaluate is None:
        found, remark = conventional([name for name in kinds if name != chosen], lambda name: kinds[name])
        evaluate = found[0] if found else None
    origin = f"{root}: {chosen}" + (f"; evaluation: {evaluate}{remark}" if evaluate else "")
    return ClassFolders(root / chosen, None if evaluate is None else root / evaluate, origin)


def beside(train: Path, evaluate: str) -> ClassFolders:
    """Return two folders that data.train and data.eval name on their own.

    Raises:
        UserError: the second is none.
    """
    other = Path(os.path.expanduser(evaluate))  # noqa: PTH111 (Path.expanduser fails on ~unknown)
    if not other.is_dir():
        hint = near(other.name, folders_in(other.parent))
        raise UserError(f"data.eval is {evaluate!r}, but there is no such folder{hint}")
    return ClassFolders(train, other, f"{train}; evaluation: {other}")


def labelled(folder: Path, is_sample: Callable[[Path], bool]) -> tuple[list[Path], list[str], int]:
    """Return the samples in the folders of a folder, the label of each, and how many other files there are.

    Raises:
        UserError: a link leads to a folder that is gone through anyway, maybe for another label.
    """
    paths: list[Path] = []
    labels: list[str] = []
    others = 0
    known = {os.path.realpath(folder): folder, **_above(folder)}
    for name in folders_in(folder):
        found: list[Path] = []
        for place, same, files in _walk(folder / name, known):
            if same is not None:
                raise UserError(
                    f"{place} and {same} are the same folder, by a link: its files would be read more than once, and "
                    "maybe with a label that they don't have; remove the link"
                )
            found += files
        samples = [path for path in found if is_sample(path)]
        others += len(found) - len(samples)
        paths += samples
        labels += [name] * len(samples)
    return paths, labels, others


def folders_in(folder: Path) -> list[str]:
    """Return the names of the folders in a folder."""
    try:
        return sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith((".", "__")))
    except OSError:
        return []


def files_below(folder: Path) -> Iterator[Path]:
    """Yield all files in a folder and below, sorted within each; links to folders are followed, but into none twice."""
    for _, _, files in _walk(folder, _above(folder)):
        yield from files


def _walk(folder: Path, known: dict[str, Path]) -> Iterator[tuple[Path, Path | None, list[Path]]]:
    """Yield a folder and those below it: its path, that of the same folder if it is `known`, or else its files.

    `known` has folders by their real paths and gets those that are found.
    """
    for place, folders, names in os.walk(folder, followlinks=True):
        here = Path(place)
        same = known.setdefault(os.path.realpath(place), here)
        if same is not here:
            folders.clear()
            yield here, same, []
            continue
        folders[:] = sorted(name for name in folders if not name.startswith((".", "__")))
        yield here, None, [here / name for name in sorted(names) if not name.startswith(".")]


def _above(folder: Path) -> dict[str, Path]:
    """Return the folders that a folder lies in, by their real paths."""
    return {str(place): place for place in Path(os.path.realpath(folder)).parents}
