"""Images as the loop fetches them: their files are read when they are needed, and decoded one at a time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from toolkit.data.cache import digest_of
from toolkit.data.labels import Array, Labels
from toolkit.errors import UserError

ROWS_AT_ONCE = 1000
"""Rows of a table that are looked at at once; where the table holds the images, so many are in memory."""


class Stored(NamedTuple):
    """Where an image is."""

    path: str | None
    content: bytes | None

    def read(self) -> bytes:
        """Return the bytes of its file; raises OSError."""
        return Path(self.path or "").read_bytes() if self.content is None else self.content


def stored(images: Any, rows: Sequence[int]) -> list[Stored]:
    """Return where some images are, of a `datasets.Dataset` of one column: texts (paths), bytes, or both as the hub has it."""
    column = images.with_format("arrow")[list(rows)].column(0)
    return [_stored(value) for value in column.to_pylist()]


def all_stored(images: Any) -> Iterator[list[Stored]]:
    """Yield where all images are; few are in memory at once."""
    for batch in images.with_format("arrow").iter(ROWS_AT_ONCE):
        yield [_stored(value) for value in batch.column(0).to_pylist()]


def _stored(value: Any) -> Stored:
    match value:
        case str():
            return Stored(value, None)
        case bytes():
            return Stored(None, value)
        case {"bytes": content, "path": path}:
            return Stored(path, content)
    return Stored(None, None)


@dataclass(frozen=True)
class ImageSource:
    """A `Source` of images with labels; a sample is the content of an image file, not decoded yet."""

    images: Any
    """A `datasets.Dataset` of one column that `stored` reads."""
    labels: Labels
    digests: Array
    """The hash of each image's content: (images, 16) bytes."""
    name: str
    """What the images are, for messages."""

    def __len__(self) -> int:
        return len(self.digests)

    def fetch(self, ids: Sequence[int]) -> list[dict[str, Any]]:
        """Return samples: "content" (the bytes of the file), "name" and "label" (an id).

        Raises:
            UserError: a file that was there at the start is gone.
        """
        samples = []
        numbers = np.asarray(ids, dtype=np.int64).tolist()
        for number, place in zip(numbers, stored(self.images, numbers) if numbers else [], strict=True):
            name = place.path or f"number {number + 1:,} of the {self.name}"
            try:
                content = place.read()
            except OSError as error:
                raise UserError(
                    f"the image {name} can't be read any more ({error.strerror or error}); put it back, and start the "
                    "same command again"
                ) from None
            samples.append({"content": content, "name": name, "label": self.labels.target(number)})
        return samples

    def fingerprints(self, ids: Sequence[int]) -> list[bytes]:
        """Return the hash of each image's content, which is known without reading it."""
        return [self.digests[number].tobytes() for number in ids]

    def lengths(self, ids: Array) -> None:
        """Return None: every image costs a model the same."""

    def digest(self) -> str:
        """Return a hash of the content of all files and of the labels."""
        return digest_of(self.digests, self.labels.names, self.labels.values)
