"""The embedded images: 1,797 handwritten digits of 8x8 pixels, which scikit-learn carries in its own package.

They are the test part of "Optical Recognition of Handwritten Digits" (E. Alpaydin, C. Kaynak, UCI, 1998; CC BY 4.0).
"""

from io import BytesIO
from typing import Any

SIZE = 8
"""Pixels of each side."""
MOST = 16
"""The digits are drawn in 0 (black) to 16 (white)."""


def digits() -> list[dict[str, Any]]:
    """Return rows of "image" (a grey PNG, as the hub stores images) and "label", always in the same order."""
    import numpy as np
    from PIL import Image
    from sklearn.datasets import load_digits

    read = load_digits()
    rows = []
    for drawn, label in zip(read.images, read.target.tolist(), strict=True):
        file = BytesIO()
        Image.fromarray((drawn * (255 / MOST)).round().astype(np.uint8)).save(file, "PNG")
        rows.append({"image": {"bytes": file.getvalue(), "path": None}, "label": label})
    return rows
