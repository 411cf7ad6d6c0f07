"""What is minimised when texts become vectors: pairs with scores, and positives among the other samples of the step.

Vectors have length 1, so that their product is the cosine. Each function returns a sum over the pairs.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields

import torch
import torch.nn.functional as F


@dataclass(frozen=True)
class ContrastConfig:
    """The `contrast` section of a recipe that learns from positives."""

    scale: float = 20.0
    """What cosines are multiplied with before the softmax over the candidates (one divided by the temperature)."""
    symmetric: bool = False
    """Also let each positive find its anchor among all anchors, and take the mean of both losses."""

    def problems(self) -> Iterator[str]:
        """Yield what is wrong with the values, a sentence each."""
        if not self.scale > 0:
            yield f"contrast.scale is {self.scale}; it must be greater than 0"

    def unused(self) -> Iterator[str]:
        """Yield a sentence for each setting that was changed; where the data has scores, none of them has an effect."""
        for setting in fields(self):
            value = getattr(self, setting.name)
            if value != setting.default:
                yield (
                    f"contrast.{setting.name} is {str(value).lower()}, but pairs with scores are learned one by one, "
                    "so that it changes nothing; leave it out, or give --data.kind positives if all of these pairs "
                    "belong together"
                )


def cosine_error(vectors: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """Return the summed squared error of the cosines of pairs.

    Args:
        vectors: of shape (pairs, 2, dimension), of length 1.
        scores: what the cosines are to be, shape (pairs,).
    """
    cosines = (vectors[:, 0] * vectors[:, 1]).sum(-1)
    return F.mse_loss(cosines, scores.to(cosines.dtype), reduction="sum")


def in_batch_loss(
    vectors: torch.Tensor, identities: torch.Tensor, scale: float = 20.0, symmetric: bool = False
) -> torch.Tensor:
    """Return the summed cross-entropy of finding each anchor's positive among all positives and negatives of the batch.

    It is also known as InfoNCE (arXiv 1807.03748) and as multiple negatives ranking (arXiv 1705.00652).

    Args:
        vectors: of shape (samples, sides, dimension), of length 1; the sides are anchor, positive and, where the data
            has some, a negative.
        identities: what tells texts apart, shape (samples, sides): a hash of the text, or its label. Two samples that
            share one among anchor and positive are never each other's negatives.
        scale: what cosines are multiplied with.
        symmetric: also let positives find their anchors.
    """
    anchors, positives = vectors[:, 0], vectors[:, 1]
    own = identities[:, :2]
    related = shared(own, own) & ~torch.eye(len(own), dtype=torch.bool, device=own.device)
    near = scale * anchors @ positives.T
    targets = torch.arange(len(near), device=near.device)
    logits = near.masked_fill(related, -torch.inf)
    if vectors.shape[1] > 2:
        far = scale * anchors @ vectors[:, 2].T
        logits = torch.cat([logits, far.masked_fill(shared(own, identities[:, 2:]), -torch.inf)], dim=1)
    loss = F.cross_entropy(logits, targets, reduction="sum")
    if symmetric:
        loss = (loss + F.cross_entropy(near.T.masked_fill(related, -torch.inf), targets, reduction="sum")) / 2
    return loss


def shared(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return which rows of two matrices of identities have any in common, shape (rows of one, rows of other)."""
    return (one[:, None, :, None] == other[None, :, None, :]).any(dim=(2, 3))
