"""Tables with a column of images, or of the paths of their files."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from toolkit.data.label_reading import is_text
from toolkit.data.reading import SHOWN, listed
from toolkit.errors import UserError

IMAGE_NAMES = (
    ("image", "img", "picture", "photo"),
    ("image_path", "img_path", "image_file", "file_name", "filename", "filepath", "file_path", "path", "file"),
    ("images", "image_name", "photo_path", "picture_path", "image_bytes", "bytes"),
)
"""Usual names of the column, in tiers for `find_column`."""


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
            f"{name}: the image column {image!r} holds {type_}; give one with paths of image files, with their bytes, or "
            f"with images as the hub stores them, with --data.image (the columns are {listed(table.column_names)})"
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
