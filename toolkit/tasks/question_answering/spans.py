"""Answers as spans of tokens: their loss, and the best one of a window.

A window's candidates are the tokens of its context, and its first token, which stands for "the answer is not in here". All
other tokens (question, separators, padding) are left out before the softmax, so the probabilities of all windows of a
question can be compared: where the answer is elsewhere, the first token takes them away from the context.
"""

import torch
import torch.nn.functional as F

from toolkit.losses import full_precision, output_of
from toolkit.task import Batch

OWN = ("context", "first", "labels")
"""What a batch holds beside the model's inputs: `context`, bool (windows, tokens), the tokens of the context; `first`, int64
(windows), the place of the first token; `labels`, int64 (windows, 2), the first and the last token of the answer."""


def log_probabilities(model: torch.nn.Module, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the logarithms of the probabilities that the answer starts, and ends, at each token: (windows, tokens)."""
    output = output_of(model, batch, *OWN)
    candidates = batch["context"].scatter(1, batch["first"].unsqueeze(1), True)
    start, end = (
        full_precision(logits).masked_fill(~candidates, float("-inf")).log_softmax(-1)
        for logits in (output.start_logits, output.end_logits)
    )
    return start, end


def span_loss(model: torch.nn.Module, batch: Batch) -> torch.Tensor:
    """Return the cross-entropy of the first and of the last token of the answer, added up, summed over the windows."""
    start, end = log_probabilities(model, batch)
    return F.nll_loss(start, batch["labels"][:, 0], reduction="sum") + F.nll_loss(
        end, batch["labels"][:, 1], reduction="sum"
    )


def best_spans(model: torch.nn.Module, batch: Batch, longest: int) -> torch.Tensor:
    """Return for each window its best span of at most `longest` tokens: (windows, 4).

    The four are the first and the last token of the span, counted from the first token of the window; the logarithm of its
    probability; and that of "not in here". Memory: windows x tokens x `longest` numbers, or tokens where they are fewer.
    """
    start, end = log_probabilities(model, batch)
    first = batch["first"].unsqueeze(1)
    nothing = (start + end).gather(1, first).squeeze(1)
    inside = batch["context"]
    starts, ends = (values.masked_fill(~inside, float("-inf")) for values in (start, end))
    longest = min(longest, ends.shape[1])
    # Row t of the reach holds the ends t, t + 1, ..., t + longest - 1: a span never ends before it starts.
    reach = F.pad(ends, (0, longest - 1), value=float("-inf")).unfold(1, longest, 1)
    score, place = (starts.unsqueeze(-1) + reach).flatten(1).max(1)
    begin = place.div(longest, rounding_mode="floor")
    span = torch.stack([begin, begin + place % longest], 1) - first
    return torch.cat([span.to(score.dtype), score.unsqueeze(1), nothing.unsqueeze(1)], 1)
