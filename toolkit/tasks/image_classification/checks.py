"""Every image is looked at once, before anything is trained, and all that is wrong is reported together."""

import json
import os
from collections import defaultdict
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from toolkit.data.cache import digest_of, once_per_machine
from toolkit.data.labels import Array
from toolkit.data.reading import SHOWN
from toolkit.tasks.image_classification.reading import Header, ImageError, inspect
from toolkit.tasks.image_classification.source import Stored, all_stored

FORMAT = 1
"""Part of every key in the cache: to be raised when other things are checked."""
NO_IMAGE = "is missing (the field is empty)"


@dataclass(frozen=True)
class ImageChecks:
    """What was found out about the images of a table, row by row."""

    digests: Array
    """(rows, 16) bytes: the hash of each file's content."""
    headers: Array
    """(rows, 5): a `Header` each; 0 where there is a problem."""
    problems: dict[int, tuple[str, str]]
    """What is wrong, by row: reason and detail of an `ImageError`."""

    @property
    def valid(self) -> Array:
        """Which images can be used (bool)."""
        valid = np.ones(len(self.digests), dtype=bool)
        valid[list(self.problems)] = False
        return valid


def check_images(images: Any, most_pixels: int) -> ImageChecks:
    """Look at all images of a `datasets.Dataset` of one column: the header of each, and the hash of its content.

    The first time it reads every file (about 0.2 ms for a small one); after that only the size and date of each.
    """
    key = digest_of(FORMAT, most_pixels, [_identity(place) for places in all_stored(images) for place in places])
    folder = once_per_machine("images", key, lambda empty: _look(images, most_pixels, empty))
    problems = json.loads((folder / "problems.json").read_text(encoding="utf-8"))
    return ImageChecks(
        np.load(folder / "digests.npy"),
        np.load(folder / "headers.npy"),
        {int(row): (reason, detail) for row, (reason, detail) in problems.items()},
    )


def problem_lines(name: str, images: Any, checked: ImageChecks, in_table: bool) -> list[str]:
    """Return what is wrong with the images of `name`, a sentence for each kind of problem.

    Images of a table are named by their rows, counted from 1, the others by their files.
    """
    kinds: dict[str, list[int]] = defaultdict(list)
    for row, (reason, _) in sorted(checked.problems.items()):
        kinds[reason].append(row)
    lines = []
    for reason, rows in kinds.items():
        shown = [_named(images, row, in_table, checked.problems[row][1]) for row in rows[:SHOWN]]
        more = f", ... ({len(rows):,} in all)" if len(rows) > SHOWN else ""
        what = "an image" if len(rows) == 1 else f"{len(rows):,} images, each of which"
        lines.append(f"{name}: {what} {reason}: {', '.join(shown)}{more}")
    return lines


def _named(images: Any, row: int, in_table: bool, detail: str) -> str:
    (value,) = images.with_format("arrow")[[row]].column(0).to_pylist()
    path = value if isinstance(value, str) else value.get("path") if isinstance(value, dict) else None
    known = [part for part in (path, detail) if part]
    if in_table:
        return f"row {row + 1}" + (f" ({', '.join(known)})" if known else "")
    return f"{path} ({detail})" if detail else str(path)


def _identity(place: Stored) -> tuple[Any, ...]:
    """Return what changes when the image does: the content, or the file's path, size and time."""
    if place.content is not None:
        return (blake2b(place.content, digest_size=16).digest(),)
    try:
        found = os.stat(place.path or "")  # noqa: PTH116 (a million times, and a Path costs more than the call)
    except OSError:
        return (place.path,)
    return (place.path, found.st_size, found.st_mtime_ns)


def _look(images: Any, most_pixels: int, folder: Path) -> None:
    digests: list[bytes] = []
    headers: list[Header] = []
    problems: dict[int, tuple[str, str]] = {}
    nothing = Header(0, 0, False, False, False)
    for places in all_stored(images):
        for place in places:
            content, header = b"", nothing
            try:
                content = _content(place)
                header = inspect(content, most_pixels)
            except ImageError as error:
                problems[len(headers)] = (error.reason, error.detail)
            digests.append(blake2b(content, digest_size=16).digest())
            headers.append(header)
    np.save(folder / "digests.npy", np.frombuffer(b"".join(digests), dtype=np.uint8).reshape(-1, 16))
    np.save(folder / "headers.npy", np.array(headers, dtype=np.int64).reshape(-1, len(nothing)))
    (folder / "problems.json").write_text(json.dumps(problems), encoding="utf-8")


def _content(place: Stored) -> bytes:
    if place.path is None and place.content is None:
        raise ImageError(NO_IMAGE)
    if place.content is None and "://" in (place.path or ""):
        raise ImageError("is an address, and addresses are not read: download it and name the file")
    try:
        return place.read()
    except OSError as error:
        if isinstance(error, FileNotFoundError):
            raise ImageError("does not exist") from None
        raise ImageError("can't be read", error.strerror or "") from None
    except ValueError:  # a path with a null character
        raise ImageError("has a path that no file can have") from None
