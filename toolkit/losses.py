"""Helpers for losses that are sums over units."""

from collections.abc import Mapping

import torch
import torch.nn.functional as F

NOT_COUNTED = -100
"""The label of a token that carries no loss: torch's own default, which Transformers follows."""


def full_precision(values: torch.Tensor) -> torch.Tensor:
    """Return logits in float32 or better: a softmax in 16 bits loses what the loss is made of."""
    return values.float() if values.dtype.itemsize < 4 else values


def logits_of(model: torch.nn.Module, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return what a model of Transformers makes of a batch; given the labels too, it would compute a loss of its own."""
    inputs = {name: values for name, values in batch.items() if name != "labels"}
    return full_precision(model(**inputs).logits)


def summed_cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the cross-entropy summed over all labels but those that are `NOT_COUNTED`.

    Args:
        logits: (..., classes).
        labels: class ids, the shape of `logits` without the last dimension.
    """
    flat = full_precision(logits).reshape(-1, logits.shape[-1])
    return F.cross_entropy(flat, labels.reshape(-1), ignore_index=NOT_COUNTED, reduction="sum")


def counted(labels: torch.Tensor) -> int:
    """Return how many labels are not `NOT_COUNTED`: the units of a loss over tokens."""
    return int((labels != NOT_COUNTED).sum())
