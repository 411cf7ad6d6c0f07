"""Classes for images without labels: in a folder, or named by the rows of a table."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from toolkit.config.model import ModelConfig
from toolkit.losses import full_precision, logits_of
from toolkit.models.load import IMAGE_CLASSIFIER, load_model, model_settings
from toolkit.models.tiny import image_classifier
from toolkit.predictor import EMPTY, Encoded, Predictor, Request, Row, rounded
from toolkit.task import Batch
from toolkit.tasks.image_classification.augmentation import AugmentConfig
from toolkit.tasks.image_classification.data import LabelledImages
from toolkit.tasks.image_classification.processor import Preparation, processor_of
from toolkit.tasks.image_classification.reading import ImageError, inspect
from toolkit.tasks.image_classification.source import IMAGE_NAMES, Stored, stored_in


def predictor(config: ModelConfig, request: Request, folder: Path) -> Predictor:
    """Return what puts the images of a file into classes; relative paths in it begin in `folder`.

    Raises:
        UserError: the model can't be loaded, or it can't be told which column holds the images.
    """
    column = request.column("image", IMAGE_NAMES)
    labels = [name for _, name in sorted((model_settings(config).id2label or {}).items())]
    data = LabelledImages()
    background = tuple(request.setting("data", "background", data.background))
    preparation = Preparation(
        processor_of(config, 0), AugmentConfig(crop=1.0, flip=False, colour=0.0), background, None
    )
    model = load_model(config, IMAGE_CLASSIFIER, partial(image_classifier, 0), trained=True)
    return Predictor(
        model.eval(),
        {"prediction": "text", "score": "number", **({"scores": "scores"} if request.scores else {})},
        ("image",),
        partial(encode, column, folder, request.setting("data", "max_pixels", data.max_pixels)),
        partial(collate, preparation, getattr(torch, config.dtype)),
        probabilities,
        partial(decode, labels, request.scores),
        {"image": repr(column), **{name: text for name, text in preparation.summary.items() if name == "prepared"}},
    )


def encode(column: str, folder: Path, most_pixels: int, rows: Sequence[Row]) -> Encoded:
    """Return where the images are; they are decoded batch by batch."""
    samples, owners = [], []
    remarks: dict[str, list[int]] = {}
    for place, row in enumerate(rows):
        image = stored_in(row.get(column))
        if image.path is None and image.content is None:
            remarks.setdefault(f"without an image: {EMPTY}", []).append(place)
            continue
        if image.content is None:
            image = Stored(str(folder / str(image.path)), None)
        try:
            inspect(image.read(), most_pixels)
        except OSError as error:
            remarks.setdefault(f"whose image can't be read ({error.strerror}): {EMPTY}", []).append(place)
            continue
        except ImageError as error:
            remarks.setdefault(f"whose image {error}: {EMPTY}", []).append(place)
            continue
        samples.append(image)
        owners.append(place)
    return Encoded(samples, owners, [1] * len(samples), remarks)


def collate(preparation: Preparation, dtype: torch.dtype, samples: Sequence[Stored]) -> Batch:
    """Return the pixels of some images, (images, 3, height, width), as the evaluation prepares them."""
    random = np.random.default_rng(0)  # nothing is drawn
    read = ({"content": one.read(), "name": one.path or "of the file", "label": 0} for one in samples)
    pixels = np.stack([preparation.plain(sample, random)["pixels"] for sample in read])
    return {"pixel_values": torch.from_numpy(pixels).to(dtype)}


def probabilities(model: torch.nn.Module, batch: Batch) -> list[list[float]]:
    """Return the probability of each class for each image."""
    found: list[list[float]] = full_precision(logits_of(model, batch)).softmax(-1).cpu().tolist()
    return found


def decode(
    labels: Sequence[str], scores: bool, rows: Sequence[Row], encoded: Encoded, found: Sequence[list[float]]
) -> Mapping[int, Mapping[str, Any]]:
    """Return label and score of each image."""
    made: dict[int, dict[str, Any]] = {}
    for place, values in zip(encoded.owners, found, strict=True):
        best = int(np.argmax(values))
        made[place] = {"prediction": labels[best], "score": rounded(values[best])}
        if scores:
            made[place]["scores"] = {name: rounded(value) for name, value in zip(labels, values, strict=True)}
    return made
