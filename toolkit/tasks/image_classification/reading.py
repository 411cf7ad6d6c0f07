"""One image, from the bytes of its file to red, green and blue of eight bits each.

A photograph is turned as its file says, a transparent image is laid on a colour, of an animation the first picture is
taken, and of sixteen bits the upper eight are kept.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from PIL import Image

Colour = tuple[int, int, int]
WHITE: Colour = (255, 255, 255)
ORIENTATION = 0x0112
"""The EXIF tag that says how a photograph is to be turned."""
JPEG, END_OF_JPEG, SEARCHED = ("JPEG", "MPO"), b"\xff\xd9", 1024
"""The last bytes of a whole JPEG, and how many bytes are searched for them: some programs write a little after them."""


class ImageError(Exception):
    """An image can't be used."""

    def __init__(self, reason: str, detail: str = "") -> None:
        self.reason = reason
        """Why: it goes on from "the image", and is the same for all images of one kind of problem."""
        self.detail = detail
        """What is this image's own."""
        super().__init__(reason + (f" ({detail})" if detail else ""))


class Header(NamedTuple):
    """What is known of an image before it is decoded."""

    width: int
    height: int
    transparent: bool
    turned: bool
    """Whether its file says that it is to be turned or mirrored."""
    animated: bool


def inspect(content: bytes, most_pixels: int) -> Header:
    """Check an image by its header and what tells cheaply whether its file is whole, in about 0.1 ms.

    Of a PNG that are its check sums, of a JPEG its last bytes; anything else is decoded.

    Raises:
        ImageError: it is no image, has more than `most_pixels`, is not whole, or its pixels have no known range.
    """
    from PIL import Image

    if not content:
        raise ImageError("is empty (0 bytes)")
    with _reasons(), Image.open(BytesIO(content)) as image:
        width, height = image.size
        if width * height > most_pixels:
            raise ImageError(f"has more than {most_pixels:,} pixels (data.max_pixels)", f"{width} x {height}")
        _check_mode(image)
        header = Header(
            width,
            height,
            is_transparent(image),
            # In a PNG what stands before the pixels: to look behind them is to decode it.
            (image.format != "PNG" or "exif" in image.info) and image.getexif().get(ORIENTATION, 1) in range(2, 9),
            bool(getattr(image, "is_animated", False)),
        )
        form = image.format
        if form == "PNG":
            image.verify()
    if form != "PNG" and (form not in JPEG or END_OF_JPEG not in content[-SEARCHED:]):
        decode(content)
    return header


def decode(content: bytes, background: Colour = WHITE, smallest: tuple[int, int] | None = None) -> "Image.Image":
    """Return an image in mode RGB.

    Args:
        content: the bytes of its file.
        background: what a transparent image is laid on.
        smallest: so many pixels (width, height) are enough: a larger JPEG is decoded at a half, a quarter or an eighth,
            which takes a fraction of the time and the memory.

    Raises:
        ImageError: it is broken.
    """
    from PIL import Image, ImageOps

    with _reasons(), Image.open(BytesIO(content)) as image:
        if smallest is not None:
            image.draft(None, smallest)
        image.load()
        return _as_rgb(ImageOps.exif_transpose(image), background)


def is_transparent(image: "Image.Image") -> bool:
    """Return whether some of an image may be transparent: by a channel, or by a colour that stands for it."""
    return image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info


def _as_rgb(image: "Image.Image", background: Colour) -> "Image.Image":
    import numpy as np
    from PIL import Image

    _check_mode(image)
    if image.mode.startswith("I"):
        # `convert` would turn everything above 255 to white. A color with the mode I is what a file of 16 bits becomes.
        pixels = np.clip(np.asarray(image).astype(np.int64), 0, 65535) >> 8
        image = Image.fromarray(pixels.astype(np.uint8))
    if is_transparent(image):
        below = Image.new("RGBA", image.size, (*background, 255))
        image = Image.alpha_composite(below, image.convert("RGBA"))
    return image.convert("RGB")


def _check_mode(image: "Image.Image") -> None:
    if image.mode == "F":
        raise ImageError("has floating-point pixels, whose range is not known; save it with 8 or 16 bits")


@contextmanager
def _reasons() -> Iterator[None]:
    """Turn what Pillow raises into an `ImageError`, and silence its warnings, whose causes are checked here."""
    from PIL import Image, UnidentifiedImageError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except (ImageError, MemoryError):
        raise
    except UnidentifiedImageError:
        raise ImageError("is in no format that is known here") from None
    except Image.DecompressionBombError:
        raise ImageError("has more pixels than Pillow reads (178,956,970)") from None
    except Exception as error:  # a decoder that meets broken bytes may raise anything
        reason = str(error).partition("(")[0].strip() or type(error).__name__
        raise ImageError("is broken", reason) from None
