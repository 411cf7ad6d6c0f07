"""How sure a model is of a sample, for whoever reads predictions.jsonl: see `Task.scores`."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from toolkit.losses import NOT_COUNTED, full_precision

MOST_NAMED = 10
"""Of more labels than this the likeliest are named."""


def class_probabilities(names: Sequence[str], logits: torch.Tensor, several: bool = False) -> list[dict[str, float]]:
    """Return for each sample the probability of each label, the likeliest first; of many labels the likeliest ten.

    Args:
        names: the name of each label id.
        logits: (samples, labels).
        several: a sample may have several labels, each of its own probability; otherwise they add up to 1.
    """
    logits = full_precision(logits)
    likely, ids = (logits.sigmoid() if several else logits.softmax(-1)).topk(min(MOST_NAMED, logits.shape[-1]), dim=-1)
    return [
        {names[label]: probability for label, probability in zip(labels, probabilities, strict=True)}
        for labels, probabilities in zip(ids.tolist(), likely.tolist(), strict=True)
    ]


def reference_losses(logits: torch.Tensor, labels: torch.Tensor) -> list[dict[str, float]]:
    """Return for each sample the mean loss of its reference, in nats per token.

    Args:
        logits: (samples, tokens, vocabulary).
        labels: (samples, tokens), `NOT_COUNTED` where a token carries no loss.
    """
    losses = F.cross_entropy(
        full_precision(logits).flatten(0, 1), labels.flatten(), ignore_index=NOT_COUNTED, reduction="none"
    )
    counts = (labels != NOT_COUNTED).sum(1).clamp(min=1)
    return [{"loss": loss} for loss in (losses.view_as(labels).sum(1) / counts).tolist()]
