"""From images to what a model takes: exactly as its own image processor does it, and augmented for training."""

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from toolkit.config.model import ModelConfig
from toolkit.data.labels import Array
from toolkit.errors import UserError
from toolkit.models.errors import cannot_load
from toolkit.models.load import model_settings
from toolkit.tasks.image_classification.augmentation import AugmentConfig, draw, part, recoloured
from toolkit.tasks.image_classification.reading import Colour, ImageError, decode

if TYPE_CHECKING:
    import torch
    from PIL import Image

Sample = dict[str, Any]
ENOUGH = 2
"""A large JPEG is decoded for training at so many times the model's size at least: a crop is then still reduced, not
enlarged."""
COLOURS = 3
VALUES = 256
SQUARE = 16
"""An image with so many pixels a side has one of each value."""


def processor_of(config: ModelConfig, size: int) -> Any:
    """Return the image processor of a model, or, for the embedded model, one for images of `size` pixels a side.

    It computes with Pillow and numpy, wherever it was saved: no torchvision is needed, and none changes a number.

    Raises:
        UserError: the folder or id has none.
    """
    if config.name is None:
        return embedded_processor(size)
    from transformers import AutoImageProcessor

    colours = getattr(model_settings(config), "num_channels", COLOURS)
    if colours != COLOURS:
        raise UserError(
            f"model.name is {config.name!r}, a model for images of {colours} channel(s); images are read with red, "
            "green and blue here: give a model for 3"
        )
    try:
        return AutoImageProcessor.from_pretrained(config.name, revision=config.revision, backend="pil")
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise UserError(cannot_load("image processor", config, error)) from None


def embedded_processor(size: int) -> Any:
    """Return the image processor of the embedded model.

    It resizes the shorter side to `size`, keeps the centre, and scales values to -1 to 1.
    """
    from transformers.models.convnext.image_processing_pil_convnext import ConvNextImageProcessorPil

    half = [0.5, 0.5, 0.5]
    return ConvNextImageProcessorPil(size={"shortest_edge": size}, crop_pct=1.0, image_mean=half, image_std=half)


class Preparation:
    """Makes samples for `collate` of samples of an `ImageSource`; its two methods are a task's transforms."""

    def __init__(self, processor: Any, augment: AugmentConfig, background: Colour, asked: int | None) -> None:
        """Prepare with an image processor of Transformers.

        Raises:
            UserError: it makes something else of an image than one tensor of a fixed size, or of another one than was
                `asked` for, or can't be augmented for.
        """
        self.processor = processor
        self.augment = augment
        self.background = background
        self.size = self._size()
        """Height and width of what the model gets."""
        if asked is not None and self.size != (asked, asked):
            raise UserError(
                f"data.size is {asked}, but the model's own image processor makes {self.size[0]} x {self.size[1]} "
                "pixels; leave data.size out, or change the model's preprocessor_config.json"
            )
        if not augment.changes_nothing:
            self.values  # noqa: B018 (whether there is such a table is known now, not in the first step)

    def plain(self, sample: Sample, random: np.random.Generator) -> Sample:
        """Return an image as the processor makes it, float32 (3, height, width), and its label: about 0.5 ms."""
        return {"pixels": self._processed(self.image(sample)), "label": sample["label"]}

    def augmented(self, sample: Sample, random: np.random.Generator) -> Sample:
        """Return a training image with what is drawn for it, in the same form."""
        if self.augment.changes_nothing:
            return self.plain(sample, random)
        drawn = draw(self.augment, random)
        height, width = self.size
        if self.augment.crop < 1:
            image = self.image(sample, (ENOUGH * width, ENOUGH * height))
            pixels = part(drawn, image, self.size, int(self.processor.resample or 0))
        else:
            shaped = self._processed(self.image(sample), do_rescale=False, do_normalize=False)
            pixels = np.moveaxis(shaped.round().astype(np.uint8), 0, -1)
        pixels = recoloured(drawn, pixels)
        return {"pixels": np.stack([self.values[c][pixels[..., c]] for c in range(3)]), "label": sample["label"]}

    @property
    def summary(self) -> dict[str, str]:
        """Lines for the plan."""
        return {
            "prepared": f"{self.size[1]}x{self.size[0]} pixels by {type(self.processor).__name__}",
            "augmented": self.augment.described,
        }

    def image(self, sample: Sample, smallest: tuple[int, int] | None = None) -> "Image.Image":
        """Return the decoded image of a sample.

        Raises:
            UserError: it is broken in a way that its header did not show.
        """
        try:
            return decode(sample["content"], self.background, smallest)
        except ImageError as error:
            raise UserError(
                f"the image {sample['name']} {error}, which shows only when it is decoded; replace it or remove it"
            ) from None

    @cached_property
    def values(self) -> Array:
        """What the processor makes of each of the 256 values of each colour: float32 (3, 256).

        To look values up costs a hundredth of calling the processor, and gives the same bits.
        """
        from PIL import Image

        pixels = np.repeat(np.arange(VALUES, dtype=np.uint8).reshape(SQUARE, SQUARE, 1), 3, axis=2)
        others = np.random.default_rng(0).integers(0, VALUES, pixels.shape, dtype=np.uint8)
        try:
            table, probe = (
                self._processed(Image.fromarray(image), do_resize=False, do_center_crop=False)
                for image in (pixels, others)
            )
        except (TypeError, ValueError, KeyError, AttributeError):
            table = probe = np.zeros(0)
        table = table.reshape(3, -1)
        if table.shape[1] != VALUES or not all((table[c][others[..., c]] == probe[c]).all() for c in range(3)):
            raise UserError(
                f"the image processor of the model ({type(self.processor).__name__}) does more to pixels than to "
                "resize and scale them, which augmentation can't follow; give --augment.crop 1 --augment.colour 0 and "
                "no flip"
            )
        return table

    def _size(self) -> tuple[int, int]:
        from PIL import Image

        random = np.random.default_rng(0)
        shapes = set()
        for height, width in ((96, 64), (64, 160)):
            noise = random.integers(0, VALUES, (height, width, 3), dtype=np.uint8)
            shapes.add(self._processed(Image.fromarray(noise)).shape)
        if len(shapes) > 1 or len(next(iter(shapes))) != 3 or next(iter(shapes))[0] != 3:
            found = " and ".join(" x ".join(map(str, shape)) for shape in sorted(shapes))
            raise UserError(
                f"the image processor of the model ({type(self.processor).__name__}) makes tensors of {found} of "
                "images of different shape, which can't stand in one batch; give a model whose images all have one "
                "size and 3 colours"
            )
        _, height, width = next(iter(shapes))
        return int(height), int(width)

    def _processed(self, image: "Image.Image", **options: bool) -> Array:
        made = self.processor(images=image, return_tensors="np", **options)
        if set(made) != {"pixel_values"}:
            raise UserError(
                f"the image processor of the model ({type(self.processor).__name__}) makes {', '.join(sorted(made))} "
                "of an image; only models that take pixel_values alone are trained here: give another one"
            )
        return np.asarray(made["pixel_values"][0], dtype=np.float32)


def stack_images(dtype: str) -> "Callable[[list[Sample]], dict[str, torch.Tensor]]":
    """Return a collate function.

    It makes "pixel_values" of the type `dtype`, (images, 3, height, width), and "labels", int64 (images).
    """
    import torch

    def collate(samples: list[Sample]) -> dict[str, torch.Tensor]:
        pixels = torch.from_numpy(np.stack([sample["pixels"] for sample in samples]))
        labels = torch.tensor([sample["label"] for sample in samples], dtype=torch.int64)
        return {"pixel_values": pixels.to(getattr(torch, dtype)), "labels": labels}

    return collate
