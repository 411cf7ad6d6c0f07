"""Losses that are sums over units, and how sure a model is of a single sample (see `Task.scores`)."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from toolkit.attention import padding_known
from toolkit.batch_layout import NOTES

NOT_COUNTED = -100
"""The label of a token that carries no loss: torch's own default, which Transformers follows."""
SAMPLE_WEIGHTS = "sample_weights"
"""The name of a tensor that a batch has where some samples count more than others: (samples,)."""
MOST_NAMED = 10
"""Of more labels than this the likeliest are named."""


def full_precision(values: torch.Tensor) -> torch.Tensor:
    """Return logits in float32 or better: a softmax in 16 bits loses what the loss is made of."""
    return values.float() if values.dtype.itemsize < 4 else values


def inputs_of(batch: Mapping[str, torch.Tensor], *without: str) -> dict[str, torch.Tensor]:
    """Return the entries of a batch that are for a model of Transformers, which are all but those `without`."""
    return {name: values for name, values in batch.items() if name not in (*without, *NOTES)}


def output_of(model: torch.nn.Module, batch: Mapping[str, torch.Tensor], *without: str) -> Any:
    """Return the output of a model of Transformers for a batch, without the entries that are not for the model."""
    with padding_known(batch):
        return model(**inputs_of(batch, *without))


def logits_of(model: torch.nn.Module, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return the logits of a model of Transformers; given the labels too, it would compute a loss of its own."""
    return full_precision(output_of(model, batch, "labels", SAMPLE_WEIGHTS).logits)


def causal_logits(model: torch.nn.Module, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return the logits of a causal model in the model's own precision: (rows, tokens, vocabulary).

    Over a large vocabulary these are the largest tensor of a batch; `toolkit.vocabulary_loss` does without.

    Args:
        model: of Transformers.
        batch: "input_ids" and "attention_mask", padded on the right.
    """
    with padding_known(batch, on_the_right=True):
        # A cache would keep the keys and values of all layers for a next token, which nobody asks for.
        output = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], use_cache=False)
    logits: torch.Tensor = output.logits
    return logits


def summed_cross_entropy(
    logits: torch.Tensor, labels: torch.Tensor, label_smoothing: float | None = None
) -> torch.Tensor:
    """Return the cross-entropy summed over all labels but those that are `NOT_COUNTED`.

    Args:
        logits: (..., classes).
        labels: class ids, the shape of `logits` without the last dimension.
        label_smoothing: the share of a target's probability that all classes get alike.
    """
    flat = full_precision(logits).reshape(-1, logits.shape[-1])
    return F.cross_entropy(
        flat, labels.reshape(-1), ignore_index=NOT_COUNTED, reduction="sum", label_smoothing=label_smoothing or 0.0
    )


class LabelLoss:
    """The loss of samples, or tokens, with labels as a sum, and the sum of the weights that divides it.

    One label each (single) has the cross-entropy. Of several (multi) each is a problem of two classes, without it and
    with it: the binary cross-entropy. A number (regression) has the squared error.

    The loss at one label y, with p_k the probability of class k and w_k its weight:

        -sum over k of q_k w_k (1 - p_k)^focal log p_k,   q_k = (1 - smoothing) [k = y] + smoothing / classes

    is the focal loss (Lin et al., arXiv 1708.02002) of a smoothed target. It counts as w_y units, so that the mean is
    that of torch's `cross_entropy` with `weight` and `label_smoothing`. Where a batch has `SAMPLE_WEIGHTS`, the loss
    and the units of a sample are both multiplied by its weight.
    """

    def __init__(
        self, kind: str, weights: Sequence[Sequence[float]] | None = None, smoothing: float = 0.0, focal: float = 0.0
    ) -> None:
        """Take the settings of a loss.

        Args:
            kind: single, multi or regression.
            weights: a row with one for each class; for multi a row for each label: [without it, with it].
            smoothing: the share of a target's probability that all classes get alike, at least 0 and below 1.
            focal: the exponent, at least 0.
        """
        self.kind = kind
        self.weights = None if weights is None else torch.tensor(weights, dtype=torch.float64)
        self.smoothing = smoothing
        self.focal = focal
        self._placed: dict[tuple[torch.device, torch.dtype], torch.Tensor] = {}

    def __call__(self, logits: torch.Tensor, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the loss of a batch, a scalar.

        Args:
            logits: (..., classes), (..., labels) for multi, (..., 1) for regression; in float32 or better.
            batch: "labels" of the shape of the logits, for single and regression without their last dimension; and
                `SAMPLE_WEIGHTS` if there are any.
        """
        labels, own = batch["labels"], batch.get(SAMPLE_WEIGHTS)
        if self.kind == "regression":
            losses = F.mse_loss(logits.squeeze(-1), labels.to(logits.dtype), reduction="none")
        elif own is not None or self.weights is not None or self.smoothing or self.focal:
            losses = self.of_classes(logits, labels)
        elif self.kind == "multi":
            return F.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype), reduction="sum")
        else:
            return summed_cross_entropy(logits, labels)
        return losses.sum() if own is None else (losses * beside(own, losses)).sum()

    def of_classes(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the loss at each label, in the shape of the labels; 0 where one is `NOT_COUNTED`."""
        if self.kind == "multi":
            logits, labels = torch.stack([torch.zeros_like(logits), logits], -1), labels.long()
        logs = F.log_softmax(logits, -1)
        terms = -logs
        if self.focal:
            # Of a class that is certain 1 - p is 0, where a power below 1 has no slope.
            unsure = (-torch.expm1(logs)).clamp(min=torch.finfo(logs.dtype).tiny)
            terms = terms * unsure**self.focal
        if self.weights is not None:
            terms = terms * self.weights_beside(logits)
        losses = at_labels(terms, labels)
        if self.smoothing:
            losses = (1 - self.smoothing) * losses + self.smoothing * terms.mean(-1)
        return losses.masked_fill(labels == NOT_COUNTED, 0.0)

    def units(self, batch: Mapping[str, torch.Tensor]) -> float:
        """Return the sum of the weights of a batch, on the host: the number of labels where all count alike."""
        labels, own = batch["labels"], batch.get(SAMPLE_WEIGHTS)
        if self.weights is None and own is None:
            return counted(labels) if self.kind == "single" else labels.numel()
        weights = (labels != NOT_COUNTED).double()
        if self.weights is not None:
            table = self.weights.expand(*labels.shape, self.weights.shape[-1])
            weights = weights * at_labels(table, labels.long())
        return float((weights if own is None else weights * beside(own, weights)).sum())

    def weights_beside(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the weights of the classes on the device of the logits, where the first trial of a batch puts them."""
        assert self.weights is not None
        place = logits.device, logits.dtype
        if place not in self._placed:
            self._placed[place] = self.weights.to(logits.dtype).to(logits.device)
        return self._placed[place]


def at_labels(values: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the value of each label's class, anything where it is `NOT_COUNTED`: (..., classes) and (...) to (...)."""
    return values.gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)


def beside(own: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Return a number for each sample in the type of values of shape (samples, ...), to be multiplied with these."""
    return own.to(values.dtype).view(-1, *[1] * (values.ndim - 1))


def counted(labels: torch.Tensor) -> int:
    """Return how many labels are not `NOT_COUNTED`: the units of a loss over tokens."""
    return int((labels != NOT_COUNTED).sum())


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
    return mean_losses(losses.view_as(labels), labels)


def mean_losses(losses: torch.Tensor, labels: torch.Tensor) -> list[dict[str, float]]:
    """Return for each sample the mean of its losses, in nats per token.

    Args:
        losses: (samples, tokens), 0 where a token carries no loss.
        labels: the same shape, `NOT_COUNTED` there.
    """
    counts = (labels != NOT_COUNTED).sum(1).clamp(min=1)
    return [{"loss": loss} for loss in (losses.sum(1) / counts).tolist()]
