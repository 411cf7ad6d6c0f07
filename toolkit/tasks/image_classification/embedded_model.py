"""The embedded image model: a small ConvNeXt with new weights, and the preparation of its images."""

from typing import Any

COARSE, FINE = 32, 16
"""Images of fewer pixels a side are cut into smaller patches, so that something is left to convolve."""


def image_classifier(size: int, **settings: Any) -> Any:
    """Return the Transformers configuration of a ConvNeXt for images of `size` x `size` pixels (arXiv 2201.03545).

    It has neither dropout nor batch norm, so that its numbers are the same on any topology.
    """
    from transformers import ConvNextConfig

    small = size < COARSE
    sizes = {
        "image_size": size,
        "patch_size": 1 if size < FINE else 2 if small else 4,
        "num_stages": 2 if small else 3,
        "hidden_sizes": [32, 64] if small else [32, 64, 128],
        "depths": [1, 1] if small else [2, 2, 2],
        # The usual 1e-6 is meant for deep networks and long training: with it the blocks of this one barely begin to learn.
        "layer_scale_init_value": 1.0,
    }
    return ConvNextConfig(**{**sizes, **settings})


def image_processor(size: int) -> Any:
    """Return what prepares images for it: the shorter side to `size`, the centre cut out, values from -1 to 1."""
    from transformers.models.convnext.image_processing_pil_convnext import ConvNextImageProcessorPil

    half = [0.5, 0.5, 0.5]
    return ConvNextImageProcessorPil(size={"shortest_edge": size}, crop_pct=1.0, image_mean=half, image_std=half)
