"""The smallest run of the image recipe that still has everything: a folder of small images of different shapes."""

from pathlib import Path

import numpy as np
from PIL import Image

COLOURS = {"blue": (40, 60, 200), "green": (60, 180, 60), "red": (200, 50, 40)}


def write_images(folder: Path, count: int, first: int = 0) -> list[Path]:
    """Write so many noisy images of three colours into <folder>/<colour>/<number>.png; no two are alike."""
    paths = []
    for number in range(first, first + count):
        random = np.random.default_rng(number)
        label = sorted(COLOURS)[number % len(COLOURS)]
        height, width = random.integers(9, 16, 2)
        pixels = np.clip(random.normal(COLOURS[label], 50, (height, width, 3)), 0, 255).astype(np.uint8)
        path = folder / label / f"{number:03}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
        paths.append(path)
    return paths


def arguments(folder: Path) -> list[str]:
    """Write images into the folder, and return the flags of a run of six steps on them in float64."""
    write_images(folder / "train", 37)
    write_images(folder / "val", 11, first=1000)
    return [
        *("--data.name", str(folder), "--data.size", "8", "--augment.flip", "true"),
        *("--model.dtype", "float64", "--epochs", "null", "--steps", "6", "--batch.size", "8"),
        *("--evaluate.every", "3", "--batch.eval", "4"),
    ]
