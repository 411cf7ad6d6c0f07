"""Folders of images: a folder for each label, maybe within folders for training and evaluation."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.data.discovery import TEST, TRAIN, VALIDATION, conventional, near
from toolkit.data.endings import ASIDE, format_of
from toolkit.data.sources import Splits
from toolkit.errors import UserError

if TYPE_CHECKING:
    import datasets

ENDINGS = {".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".jp2", ".avif"}
"""Files with these endings, in small or capital letters, are images."""
PACKED = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst", ".7z", ".rar")
DESCRIBED = "metadata"
"""A table of this name next to images says more of them than the folders do; image folders of the hub have one."""


@dataclass(frozen=True)
class ImageFiles:
    """Images and labels found in folders."""

    splits: Splits
    """Tables with the columns "image" (a path) and "label"."""
    left_out: int
    """Files in these folders that are no images."""


def find_image_folders(name: str | None, train: str | None, evaluate: str | None) -> ImageFiles | None:
    """Return the images in the folders that data.name, data.train and data.eval name, or None if those are tables.

    Raises:
        UserError: an archive, images without a label folder, or a folder for evaluation that does not exist.
    """
    given = [
        Path(os.path.expanduser(place))  # noqa: PTH111 (Path.expanduser fails on ~unknown)
        for place in (name, train, evaluate)
        if place
    ]
    for place in given:
        if place.is_file() and place.name.lower().endswith(PACKED):
            raise UserError(f"{place} is an archive; unpack it and give the folder")
        if place.is_file() and place.suffix.lower() in ENDINGS:
            raise UserError(
                f"{place} is a single image; give a folder with a folder of images for each label, or a table"
            )
    first = given[0] if given else None
    if first is None or not first.is_dir():
        return None
    if next(_images(first), None) is None:
        _refuse_archives(first)
        return None
    if _has_table(first):
        return None
    if name is not None:
        return _in_folder(first, train, evaluate)
    if evaluate is None:
        return _in_folder(first, None, None)
    other = given[1]
    if not other.is_dir():
        raise UserError(
            f"data.eval is {evaluate!r}, but there is no such folder{near(other.name, _names(other.parent))}"
        )
    return _read(first, other, f"the image folder {first}; evaluation: {other}")


def _in_folder(folder: Path, train: str | None, evaluate: str | None) -> ImageFiles:
    root = folder
    names = _names(root)
    # A folder that holds nothing but another one is its wrapping.
    while len(names) == 1 and not any(_is_image(entry) for entry in root.iterdir()) and train is None:
        root = root / names[0]
        names = _names(root)
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
        return _read(root, None, f"the image folder {root}")
    if evaluate is None:
        found, remark = conventional([name for name in kinds if name != chosen], lambda name: kinds[name])
        evaluate = found[0] if found else None
    origin = f"the image folder {root}: {chosen}" + (f"; evaluation: {evaluate}{remark}" if evaluate else "")
    return _read(root / chosen, None if evaluate is None else root / evaluate, origin)


def _read(train: Path, evaluate: Path | None, origin: str) -> ImageFiles:
    problems: list[str] = []
    tables: list[datasets.Dataset] = []
    left_out = 0
    for folder in (train, evaluate):
        if folder is None:
            continue
        paths, labels = [], []
        for name in _names(folder):
            found = list(_files(folder / name))
            images = [path for path in found if _is_image(path)]
            left_out += len(found) - len(images)
            paths += images
            labels += [name] * len(images)
        loose = [path.name for path in sorted(folder.iterdir()) if _is_image(path)]
        if loose:
            problems.append(
                f"the folder {folder} has images that are in no label's folder ({', '.join(loose[:3])}"
                f"{', ...' if len(loose) > 3 else ''}, {len(loose):,} in all); move each into a folder of its label's "
                "name, or give a table with their paths and labels"
            )
        elif not paths:
            problems.append(f"the folder {folder} has no images; put a folder of images for each label there")
        else:
            tables.append(_table(paths, labels))
    if problems:
        raise UserError(*problems)
    return ImageFiles(Splits(tables[0], tables[1] if len(tables) > 1 else None, origin), left_out)


def _table(paths: list[Path], labels: list[str]) -> "datasets.Dataset":
    import datasets
    import pyarrow as pa

    # Absolute: the run may be resumed, and its workers started, from elsewhere.
    columns = {"image": pa.array([str(path.absolute()) for path in paths], pa.string()), "label": pa.array(labels)}
    return datasets.Dataset(pa.table(columns))


def _has_table(folder: Path) -> bool:
    """Return whether a table next to the images is meant: it describes them, or the folders do not label them."""
    tables = [path for path in sorted(folder.iterdir()) if path.is_file() and format_of(path) not in (None, *ASIDE)]
    tables += [path for name in _names(folder) for path in sorted((folder / name).glob(f"{DESCRIBED}.*"))]
    if any(path.name.lower().startswith(f"{DESCRIBED}.") and format_of(path) for path in tables):
        return True
    labelled = [name for name in _names(folder) if next(_images(folder / name), None) is not None]
    return bool(tables) and len(labelled) < 2


def _refuse_archives(folder: Path) -> None:
    packed = [path.name for path in sorted(folder.iterdir()) if path.name.lower().endswith(PACKED)]
    tables = any(format_of(path) not in (None, *ASIDE) for path in folder.rglob("*"))
    if packed and not tables:
        raise UserError(
            f"the folder {folder} holds an archive ({packed[0]}) and no images; unpack it and give the folder"
        )


def _names(folder: Path) -> list[str]:
    """Return the names of the folders in a folder."""
    try:
        return sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith((".", "__")))
    except OSError:
        return []


def _images(folder: Path) -> Iterator[Path]:
    return (path for path in _files(folder) if _is_image(path))


def _files(folder: Path) -> Iterator[Path]:
    """Yield all files in a folder and below, sorted within each; links to folders are followed."""
    for place, folders, files in os.walk(folder, followlinks=True):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "__")))
        for name in sorted(files):
            if not name.startswith("."):
                yield Path(place) / name


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in ENDINGS and not path.name.startswith(".") and not path.is_dir()
