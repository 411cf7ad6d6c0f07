"""Helpers for losses that are sums over units."""

import torch


def full_precision(values: torch.Tensor) -> torch.Tensor:
    """Return logits in float32 or better: a softmax in 16 bits loses what the loss is made of."""
    return values.float() if values.dtype.itemsize < 4 else values
