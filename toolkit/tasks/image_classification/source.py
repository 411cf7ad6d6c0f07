"""Images in tables, as paths, as bytes or as the hub stores them; and how the loop fetches them, one file at a time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from toolkit.data.cache import digest_of
from toolkit.data.label_reading import is_text
from toolkit.data.labelled_rows import LabelledRows
from toolkit.data.labels import Array
from toolkit.data.reading import SHOWN, listed
from toolkit.errors import UserError

ROWS_AT_ONCE = 1000
"""Rows of a table that are looked at at once; where the table holds the images, so many are in memory."""
IMAGE_NAMES = (
    ("image", "img", "picture", "photo"),
    ("image_path", "img_path", "image_file", "file_name", "filename", "filepath", "file_path", "path", "file"),
    ("images", "image_name", "photo_path", "picture_path", "image_bytes", "bytes"),
)
"""Usual names of the column, in tiers for `find_column`."""


class Stored(NamedTuple):
    """Where an image is."""

    path: str | None
    content: bytes | None

    def read(self) -> bytes:
        """Return the bytes of its file; raises OSError."""
        return Path(self.path or "").read_bytes() if self.content is None else self.content


def stored(images: Any, rows: Sequence[int]) -> list[Stored]:
    """Return where some images are.

    `images` is a `datasets.Dataset` of one column: paths, bytes, or both, as the hub stores images.
    """
    column = images.with_format("arrow")[list(rows)].column(0)
    return [stored_in(value) for value in column.to_pylist()]


def all_stored(images: Any) -> Iterator[list[Stored]]:
    """Yield where all images are; few are in memory at once."""
    for batch in images.with_format("arrow").iter(ROWS_AT_ONCE):
        yield [stored_in(value) for value in batch.column(0).to_pylist()]


def stored_in(value: Any) -> Stored:
    match value:
        case str():
            return Stored(value, None)
        case bytes():
            return Stored(None, value)
        case {"bytes": content, "path": path}:
            return Stored(path, content)
    return Stored(None, None)


def check_image_column(name: str, table: Any, image: str, label: str) -> None:
    """Raise UserError if a column is not in a table, or the image column holds neither images nor paths."""
    missing = [column for column in (image, label) if column not in table.column_names]
    if missing:
        raise UserError(
            f"{name}: no column {listed(missing)}, which the training data has; the columns here are "
            f"{listed(table.column_names)}: name them alike in both"
        )
    type_ = table.data.schema.field(image).type
    if not is_text(type_) and not _holds_bytes(type_):
        raise UserError(
            f"{name}: the image column {image!r} holds {type_}; give one with paths of image files, with their bytes, "
            f"or with images as the hub stores them, with --data.image (the columns are {listed(table.column_names)})"
        )


def with_paths(name: str, images: Any, files: Sequence[Path]) -> Any:
    """Return a data set of one column whose paths are absolute; those in a table are relative to the table's folder.

    Raises:
        UserError: several tables are read, from several folders, and more than one of these has such a file.
    """
    import datasets
    import pyarrow as pa

    column = images.column_names[0]
    if not is_text(images.data.schema.field(column).type):
        return images
    folders = list(dict.fromkeys(file.parent.absolute() for file in files)) or [Path().absolute()]
    paths: list[str | None] = []
    unclear: list[str] = []
    for batch in images.with_format("arrow").iter(10_000):
        for given in batch.column(0).to_pylist():
            if not (given or "").strip() or "://" in given:
                paths.append((given or "").strip() or None)
                continue
            # An absolute path stays what it is.
            places = [folder / given for folder in folders]
            found = [place for place in places if place.is_file()] if len(folders) > 1 else places
            if len(set(found)) > 1:
                unclear.append(given)
            paths.append(str((found or places)[0]))
    if unclear:
        more = f", ... ({len(unclear):,} in all)" if len(unclear) > SHOWN else ""
        raise UserError(
            f"{name}: more than one of the folders {', '.join(map(str, folders))} has the file "
            f"{', '.join(unclear[:SHOWN])}{more}; put both tables into one folder, or give absolute paths"
        )
    return datasets.Dataset(pa.table({column: pa.array(paths, pa.string())}))


def _holds_bytes(type_: Any) -> bool:
    import pyarrow as pa

    if pa.types.is_struct(type_):
        return {"bytes", "path"} <= {type_.field(place).name for place in range(type_.num_fields)}
    return bool(pa.types.is_binary(type_) or pa.types.is_large_binary(type_))


@dataclass(frozen=True)
class ImageRows(LabelledRows):
    """Rows with an image, in a table of one column that `stored` reads, and a label."""

    digests: Array
    """The hash of each image's content: (images, 16) bytes."""
    headers: Array
    """(images, 5): a `Header` each."""

    def take(self, rows: Array, name: str | None = None) -> Self:
        """Return these rows, in this order, under another name if one is given."""
        return replace(super().take(rows, name), digests=self.digests[rows], headers=self.headers[rows])


@dataclass(frozen=True)
class ImageSource:
    """A `Source` of images with labels; a sample is the content of an image file, not decoded yet."""

    rows: ImageRows

    def __len__(self) -> int:
        return len(self.rows)

    def fetch(self, ids: Sequence[int]) -> list[dict[str, Any]]:
        """Return samples: "content" (the bytes of the file), "name" and "label" (an id).

        Raises:
            UserError: a file that was there at the start is gone.
        """
        samples = []
        numbers = np.asarray(ids, dtype=np.int64).tolist()
        for number, place in zip(numbers, stored(self.rows.table, numbers) if numbers else [], strict=True):
            name = place.path or f"number {number + 1:,} of the {self.rows.name}"
            try:
                content = place.read()
            except OSError as error:
                raise UserError(
                    f"the image {name} can't be read any more ({error.strerror or error}); put it back, and start the "
                    "same command again"
                ) from None
            samples.append({"content": content, "name": name, "label": self.rows.labels.target(number)})
        return samples

    def fingerprints(self, ids: Sequence[int]) -> list[bytes]:
        """Return the hash of each image's content, which is known without reading it."""
        return [self.rows.digests[number].tobytes() for number in ids]

    def lengths(self, ids: Array) -> None:
        """Return None: every image costs a model the same."""

    def digest(self) -> str:
        """Return a hash of the content of all files and of the labels."""
        return digest_of(self.rows.digests, self.rows.labels.names, self.rows.labels.values)
