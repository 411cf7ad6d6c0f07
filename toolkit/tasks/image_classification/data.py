"""Images with labels: where they come from, which columns they are in, and every way in which they can be wrong."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from toolkit.config.fields import at_least, locates
from toolkit.data.columns import LABEL_NAMES, find_column
from toolkit.data.config import DataConfig, embedded_splits
from toolkit.data.label_reading import kind_of, read_labels
from toolkit.data.labelled_rows import LabelledData, labels_line, number_rows
from toolkit.data.reading import Checked, counts_line, row_numbers
from toolkit.data.sources import Splits
from toolkit.errors import UserError, require
from toolkit.sample_data.digits import SIZE, digits
from toolkit.tasks.image_classification.checks import check_images, problem_lines
from toolkit.tasks.image_classification.folders import find_image_folders
from toolkit.tasks.image_classification.reading import WHITE, Colour
from toolkit.tasks.image_classification.source import (
    IMAGE_NAMES,
    ImageRows,
    ImageSource,
    check_image_column,
    stored,
    with_paths,
)

OWN_SIZE = 64
"""Pixels of a side that the embedded model takes of images that are not the embedded ones."""
MOST_OF_PILLOW = 178_956_970


@dataclass(frozen=True)
class LabelledImages(DataConfig):
    """The `data` section of a recipe that puts images into classes."""

    image: str | None = locates(None)
    """The column with the image, or with the path of its file; null finds it by its name."""
    label: str | None = locates(None)
    """The column with the label; null finds it by its name."""
    size: int | None = None
    """Pixels of each side that the embedded model takes; null means 8 for the embedded digits and 64 for other images.
    Any other model brings its own."""
    background: Colour = WHITE
    """Red, green and blue (0 to 255) of what transparent images are laid on."""
    max_pixels: int = 100_000_000
    """Refuse images of more pixels than this: a few bytes can claim to be an image that fills the memory."""
    drop_invalid: bool = False
    """Leave out images that can't be read, and rows without a label, instead of refusing them; the plan counts them."""

    def problems(self) -> Iterator[str]:
        """Yield what is wrong with the values, a sentence each."""
        yield from super().problems()
        if self.size is not None:
            yield from at_least(4, "data.size", self.size)
        if any(not 0 <= value <= 255 for value in self.background):
            yield f"data.background is {list(self.background)}; give red, green and blue from 0 to 255"
        if not 1 <= self.max_pixels <= MOST_OF_PILLOW:
            most = f"{MOST_OF_PILLOW}, the most that Pillow reads"
            yield f"data.max_pixels is {self.max_pixels}; it must be from 1 to {most}"

    @property
    def embedded_size(self) -> int:
        """Pixels of each side that the embedded model takes."""
        return self.size or (SIZE if self.embedded else OWN_SIZE)

    def read(self, known_labels: Sequence[str] | None = None) -> "Images":
        """Read the data, look at every image, and number the labels.

        `known_labels` are those of a saved model, in the order of their ids; null or none numbers what is found: in the
        order that the data brings, or sorted. Raises UserError with everything that is wrong.
        """
        require("PIL", "images", "reading images")
        folders = None if self.embedded else find_image_folders(self.name, self.train, self.eval)
        if folders is None:
            read = self.tables(_embedded)
            image = find_column(read.train.column_names, "image", self.image, IMAGE_NAMES, "the image")
            label = find_column(read.train.column_names, "label", self.label, LABEL_NAMES, "the label")
            summary = {"data": read.origin, "columns": f"image {image!r}, label {label!r}"}
        else:
            self._refuse_settings_of_tables()
            read, image, label = self.each_set(in_folders), "image", "label"
            summary = {"data": read.origin}
            if folders.left_out:
                summary["left out"] = f"{folders.left_out:,} files beside the images that are none"
        for name, table in read.tables.items():
            check_image_column(name, table, image, label)
            kind, problem = kind_of(table, label, "auto", None)
            if kind != "single":
                what = problem or f"the label column {label!r} makes the task {kind}, but each image has one class here"
                raise UserError(f"{name}: {what}; give the column of its class with --data.label")
        rows = number_rows(
            [
                self._checked(name, table, image, label, read.files, folders is None)
                for name, table in read.tables.items()
            ],
            "single",
            self.held_out,
            known_labels,
            what="images",
            drop_invalid=self.drop_invalid,
            a_row="image that can be read and has a label",
            invalid="images that can't be read or have no label",
            remedy="replace them, or leave them out with --data.drop_invalid true",
        )
        summary |= {**rows.summary, **described(rows.train, rows.evaluate, self.background)}
        return Images(
            "single",
            rows.labels,
            rows.train,
            rows.evaluate,
            summary=summary,
            files=read.files,
            workers=self.workers,
            inputs={"image": image},
            groups=self.groups_of(read, rows.evaluate.rows),
        )

    def _refuse_settings_of_tables(self) -> None:
        self.file_options.no_header_in("the images are in folders of their labels, without a table")
        if named := [f"data.{flag}" for flag in ("image", "label") if getattr(self, flag) is not None]:
            raise UserError(
                f"{' and '.join(named)} {'name' if len(named) > 1 else 'names'} a column, but the images are in "
                "folders of their labels, without a table; leave it out, or give a table with the paths of the images"
            )

    def _checked(
        self, name: str, table: Any, image: str, label: str, files: Sequence[Path], in_table: bool
    ) -> Checked[ImageRows]:
        labels = read_labels(table, label, "single", None)
        images = with_paths(name, table.select_columns([image]), files if in_table else ())
        checks = check_images(images, self.max_pixels)
        problems = problem_lines(name, images, checks, in_table)
        if labels.empty.any():
            problems.append(f"{name}: no label in column {label!r} in {row_numbers(np.flatnonzero(labels.empty))}")
        whole = ImageRows(name, images, np.arange(len(labels)), labels, checks.digests, checks.headers)
        valid = np.flatnonzero(checks.valid & ~labels.empty)
        return Checked(whole.take(valid), problems, len(whole) - len(valid))


@dataclass(frozen=True)
class Images(LabelledData):
    """Training and evaluation images with numbered labels."""

    train: ImageRows
    evaluate: ImageRows

    def sources(self) -> tuple[ImageSource, ImageSource]:
        """Return the training and the evaluation samples."""
        return ImageSource(self.train), ImageSource(self.evaluate)

    def show(self, number: int, prediction: Any, reference: Any) -> dict[str, Any]:
        """Return what a reader sees of an evaluated image: its file, or its row if it has none; see `Task.show`."""
        (place,) = stored(self.evaluate.table, [number])
        image = {"image": place.path} if place.path else {"row": int(self.evaluate.rows[number]) + 1}
        return {**image, "prediction": self.labels[int(prediction)], "reference": self.labels[int(reference)]}


def in_folders(data: DataConfig) -> "Splits":
    """Return the images in the folders that a data section names.

    Raises:
        UserError: one of its evaluation sets is no folder of images, while the others are.
    """
    found = find_image_folders(data.name, data.train, data.eval)
    if found is None:
        raise UserError(f"data.eval_sets names {data.eval!r}, a table, and the training data are folders; give folders")
    return found.splits


def described(train: ImageRows, evaluate: ImageRows, background: Colour) -> dict[str, str]:
    """Return lines for the plan on how many images there are, of which sizes and kinds."""
    width, height, transparent, turned, animated = np.concatenate([train.headers, evaluate.headers]).T
    order = np.argsort(width * height, kind="stable")
    middle, most = (f"{width[row]}x{height[row]}" for row in (order[len(order) // 2], order[-1]))
    lines = {
        "images": f"{counts_line(train, evaluate)}; {middle} pixels in the middle, {most} at most",
        "labels": labels_line(train.labels, "images"),
    }
    kinds = []
    if transparent.any():
        kinds.append(f"{transparent.sum():,} transparent ones are laid on the colour {', '.join(map(str, background))}")
    if turned.any():
        kinds.append(f"{turned.sum():,} are turned as their files say")
    if animated.any():
        kinds.append(f"of {animated.sum():,} with several pictures the first is taken")
    if kinds:
        lines["kinds"] = "; ".join(kinds)
    seen, asked = (np.ascontiguousarray(rows.digests).view("V16").ravel() for rows in (train, evaluate))
    if repeated := int(np.isin(asked, seen).sum()):
        lines["repeated"] = f"{repeated:,} evaluation images stand in the training data too, byte for byte"
    return lines


def _embedded() -> Splits:
    return embedded_splits("handwritten digits of 8x8 pixels, from scikit-learn; the label is the digit", digits())
