"""What is random about a training image: which part of it is seen, whether it is mirrored, its colours."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from PIL import Image

    from toolkit.data.labels import Array

STRETCH = 4 / 3
"""A part is at most so much wider or narrower than the model's image, and stretched to it."""
GREY = (0.299, 0.587, 0.114)
"""How bright red, green and blue look (ITU-R BT.601)."""


@dataclass(frozen=True)
class AugmentConfig:
    """The `augment` section of a recipe that trains on images."""

    crop: float = 0.7
    """Train on a random part of each image, at least this share of its area;
    1 takes the whole image, as evaluation does."""
    flip: bool = False
    """Mirror half of the images, left to right;
    not for letters, digits, signs, or whatever else changes its meaning."""
    colour: float = 0.2
    """Change brightness, contrast and saturation, each by a factor of up to 1 plus or minus this;
    0 leaves them alone."""

    def problems(self) -> Iterator[str]:
        """Yield what is wrong with the values, a sentence each."""
        if not 0 < self.crop <= 1:
            yield f"augment.crop is {self.crop}; it must be greater than 0, and at most 1, which takes the whole image"
        if not 0 <= self.colour < 1:
            yield f"augment.colour is {self.colour}; it must be at least 0 and below 1"

    @property
    def changes_nothing(self) -> bool:
        """Whether training images are seen as evaluation sees them."""
        return self.crop == 1 and not self.flip and self.colour == 0

    @property
    def described(self) -> str:
        """What is done to an image, for the plan."""
        done = []
        if self.crop < 1:
            done.append(f"a random part of at least {self.crop:.0%} of each training image")
        if self.flip:
            done.append("half of them mirrored")
        if self.colour:
            done.append(f"brightness, contrast and saturation changed by up to {self.colour:.0%}")
        return ", ".join(done) or "nothing: training images are seen as evaluation sees them"


@dataclass(frozen=True)
class Draw:
    """What was drawn for one image. Everything is always drawn, so that no setting changes what another one draws."""

    area: float
    stretch: float
    across: float
    down: float
    mirrored: bool
    factors: tuple[float, float, float]


def draw(config: AugmentConfig, random: np.random.Generator) -> Draw:
    """Draw the changes of one image from its own generator."""
    area, stretch, across, down, mirror, *factors = random.random(8).tolist()
    return Draw(
        config.crop + (1 - config.crop) * area,
        STRETCH ** (2 * stretch - 1),
        across,
        down,
        config.flip and mirror < 0.5,
        (
            1 + config.colour * (2 * factors[0] - 1),
            1 + config.colour * (2 * factors[1] - 1),
            1 + config.colour * (2 * factors[2] - 1),
        ),
    )


def part(drawn: Draw, image: "Image.Image", size: tuple[int, int], resample: int) -> "Array":
    """Return the drawn part of an image, resized to (height, width): uint8 (height, width, 3).

    A part that would be wider or higher than the image is made smaller in proportion.
    """
    height, width = size
    ratio = drawn.stretch * width / height
    wide = (drawn.area * image.width * image.height * ratio) ** 0.5
    high = wide / ratio
    shrink = min(1.0, image.width / wide, image.height / high)
    wide, high = wide * shrink, high * shrink
    # The box may cross an edge by a rounding error, which Pillow would refuse.
    left, top = drawn.across * max(0.0, image.width - wide), drawn.down * max(0.0, image.height - high)
    box = (left, top, min(left + wide, image.width), min(top + high, image.height))
    return np.asarray(image.resize((width, height), resample, box=box))


def recoloured(drawn: Draw, pixels: "Array") -> "Array":
    """Return an image, uint8 (height, width, 3), with the drawn orientation, brightness, contrast and saturation."""
    if drawn.mirrored:
        pixels = pixels[:, ::-1]
    brightness, contrast, saturation = drawn.factors
    if all(factor == 1 for factor in drawn.factors):
        return pixels
    values = pixels.astype(np.float32) * np.float32(brightness)
    # Written out: a product of matrices would round in another way with another number of threads.
    red, green, blue = (np.float32(weight) for weight in GREY)
    grey = red * values[..., 0] + green * values[..., 1] + blue * values[..., 2]
    # Saturation draws each pixel away from its own grey, contrast all of them from the grey of the image.
    values = grey[..., None] + (values - grey[..., None]) * np.float32(saturation)
    values = grey.mean() + (values - grey.mean()) * np.float32(contrast)
    changed: Array = np.clip(values.round(), 0, 255).astype(np.uint8)
    return changed
