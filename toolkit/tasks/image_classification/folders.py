"""Folders of images: a folder for each label, maybe within folders for training and evaluation."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.data.class_folders import ClassFolders, beside, files_below, folders_in, in_folder, labelled
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
    if name is None and evaluate is not None:
        return _read(beside(first, evaluate))
    return _read(in_folder(first, train if name is not None else None, evaluate, _is_image))


def _read(found: ClassFolders) -> ImageFiles:
    problems: list[str] = []
    tables: list[datasets.Dataset] = []
    left_out = 0
    for folder in (found.train, found.evaluate):
        if folder is None:
            continue
        paths, labels, others = labelled(folder, _is_image)
        left_out += others
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
    splits = Splits(tables[0], tables[1] if len(tables) > 1 else None, f"the image folder {found.origin}")
    return ImageFiles(splits, left_out)


def _table(paths: list[Path], labels: list[str]) -> "datasets.Dataset":
    import datasets
    import pyarrow as pa

    # Absolute: the run may be resumed, and its workers started, from elsewhere.
    columns = {"image": pa.array([str(path.absolute()) for path in paths], pa.string()), "label": pa.array(labels)}
    return datasets.Dataset(pa.table(columns))


def _has_table(folder: Path) -> bool:
    """Return whether a table next to the images is meant: it describes them, or the folders do not label them."""
    tables = [path for path in sorted(folder.iterdir()) if path.is_file() and format_of(path) not in (None, *ASIDE)]
    tables += [path for name in folders_in(folder) for path in sorted((folder / name).glob(f"{DESCRIBED}.*"))]
    if any(path.name.lower().startswith(f"{DESCRIBED}.") and format_of(path) for path in tables):
        return True
    labelled = [name for name in folders_in(folder) if next(_images(folder / name), None) is not None]
    return bool(tables) and len(labelled) < 2


def _refuse_archives(folder: Path) -> None:
    packed = [path.name for path in sorted(folder.iterdir()) if path.name.lower().endswith(PACKED)]
    tables = any(format_of(path) not in (None, *ASIDE) for path in folder.rglob("*"))
    if packed and not tables:
        raise UserError(
            f"the folder {folder} holds an archive ({packed[0]}) and no images; unpack it and give the folder"
        )


def _images(folder: Path) -> Iterator[Path]:
    return (path for path in files_below(folder) if _is_image(path))


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in ENDINGS and not path.name.startswith(".") and not path.is_dir()
