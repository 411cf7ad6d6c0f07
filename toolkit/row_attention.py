"""Attention inside rows that lie end to end: each token sees those of its own row, and no padding is computed.

Rows of equal length that follow each other, a run, are computed together. Where the weights of attention are dropped
out, all runs are one operation for autograd (`RunsAttend`): as parts of a graph, the small operations of every run
would take longer than their arithmetic.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from inspect import signature
from typing import Any

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from toolkit.batch_layout import EndToEnd
from toolkit.dropout import dropped, in_groups, kept, kept_of, one_more, scale_of

Run = tuple[int, int]
"""How many rows, and their length."""
PAIRS_AT_ONCE = 2**18
"""Weights of attention whose dropout is hashed at once, without regard to runs, two at a time: of more, the arithmetic
takes longer than the operations, and an index of them would take memory."""


@dataclass(frozen=True)
class WeightDropout:
    """What is dropped out of the weights of attention, in one layer."""

    hashes: torch.Tensor
    """For each row and head, int32 (rows, heads)."""
    rate: float

    def __call__(self, weights: torch.Tensor) -> torch.Tensor:
        """Return weights of all rows, (rows, heads, tokens, tokens), without what is dropped out."""
        return dropped(weights, one_more(self.hashes, weights.shape[-2]), self.rate)

    def of_runs(self, placed: EndToEnd, kind: torch.dtype) -> list[torch.Tensor]:
        """Return what the weights of each run are multiplied by, (rows * heads, tokens, tokens)."""
        heads, device = self.hashes.shape[1], self.hashes.device
        pairs = sum(count * heads * length * -(-length // 2) for count, length in placed.runs)
        if device.type == "cpu" and pairs <= PAIRS_AT_ONCE:
            queries = in_groups(self.hashes.flatten(), placed.order(heads).tokens)
            halves = in_groups(queries, placed.pairs(heads)).view(torch.int16)
            every, start, found = kept_of(halves, self.rate).to(kind) * scale_of(self.rate), 0, []
            for count, length in placed.runs:
                width = length + length % 2
                end = start + count * heads * length * width
                found.append(every[start:end].view(count * heads, length, width)[..., :length])
                start = end
            return found
        first, found = 0, []
        for count, length in placed.runs:
            each = one_more(self.hashes[first : first + count].flatten(), length)
            if device.type == "cpu":
                found.append(kept(each, length, self.rate).to(kind) * scale_of(self.rate))
            else:
                found.append(dropped(torch.ones(*each.shape, length, dtype=kind, device=device), each, self.rate))
            first += count
        return found


def inside_rows(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    placed: EndToEnd,
    scaling: float | None,
    causal: bool,
    window: int | None,
    drop: WeightDropout | None,
) -> torch.Tensor:
    """Return what attention makes of rows that lie end to end.

    On a GPU and in 16 bits torch has a kernel for rows of different lengths (FlashAttention), which drops nothing out.

    Args:
        query, key, value: (1, heads, all tokens, features).
        placed: which rows there are.
        scaling: what the products of queries and keys are multiplied by; None for one over the root of the features.
        causal: whether a token sees those before it alone, and itself.
        window: how far a token looks, itself included; None for as far as its row goes.
        drop: what is dropped out of the weights; None drops nothing.

    Returns:
        (1, all tokens, heads, features), as Transformers wants it.
    """
    device, heads = query.device, query.shape[1]
    kernel = variable_length() if device.type == "cuda" and query.dtype.itemsize == 2 else None
    if kernel is not None and drop is None and (window is None or causal):
        longest = max(length for _, length in placed.runs)
        rows = (tensor.squeeze(0).transpose(0, 1) for tensor in (query, key, value))
        back = -1 if window is None else window - 1
        options = {"scale": scaling, "window_size": (back, 0) if causal else (-1, -1)}
        found: torch.Tensor = kernel(*rows, placed.starts, placed.starts, longest, longest, **options)
        return found.unsqueeze(0)
    if drop is not None:
        # In memory tokens come first and heads second.
        given = (tensor.squeeze(0).transpose(0, 1).flatten(0, 1) for tensor in (query, key, value))
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        hidden = [unseen(length, causal, window, device) for _, length in placed.runs]
        times = drop.of_runs(placed, value.dtype)
        out: torch.Tensor = RunsAttend.apply(*given, placed, heads, scale, hidden, times)  # type: ignore[no-untyped-call]
        return out.view(1, placed.tokens, heads, -1)
    sizes = [count * length for count, length in placed.runs]
    parts = []
    # Parts of a split put their gradients together once; each slice would fill a tensor of all tokens.
    split = (torch.split(tensor, sizes, dim=2) for tensor in (query, key, value))
    for (count, length), *tensors in zip(placed.runs, *split, strict=True):
        q, k, v = (tensor.squeeze(0).unflatten(1, (count, length)).transpose(0, 1) for tensor in tensors)
        is_causal = causal and length > 1
        mask = None
        if window is not None and window < length:
            mask, is_causal = within(length, window, causal, device), False
        part = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scaling, is_causal=is_causal)
        parts.append(part.transpose(1, 2).flatten(0, 1))
    return torch.cat(parts).unsqueeze(0)


def unseen(length: int, causal: bool, window: int | None, device: torch.device) -> torch.Tensor | None:
    """Return which tokens do not see which, bool (length, length); None where all see all."""
    if window is not None and window < length:
        return ~within(length, window, causal, device)
    return torch.ones(length, length, dtype=torch.bool, device=device).triu(1) if causal and length > 1 else None


class RunsAttend(torch.autograd.Function):
    """Attention of all runs, with what their weights are multiplied by; forward and backward by hand."""

    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        placed: EndToEnd,
        heads: int,
        scale: float,
        hidden: Sequence[torch.Tensor | None],
        multipliers: Sequence[torch.Tensor],
    ) -> torch.Tensor:
        """Return the states, as `query` lies.

        Args:
            ctx: of autograd.
            query, key, value: for each token its heads, (tokens * heads, features), of one type.
            placed: which rows there are.
            heads: how many each token has.
            scale: what the products of queries and keys are multiplied by.
            hidden: for each run which tokens a token does not see, bool (tokens, tokens); None hides nothing.
            multipliers: for each run what its weights are multiplied by, (rows * heads, tokens, tokens).
        """
        order = placed.order(heads)
        # Each row of a head becomes a matrix.
        query, key, value = (tensor.index_select(0, order.source) for tensor in (query, key, value))
        out, kept_weights = torch.empty_like(value), []
        precise = torch.float32 if query.dtype.itemsize < 4 else query.dtype
        with torch.autocast(query.device.type, enabled=False):
            for place, unseen, times in zip(matrices_of(placed.runs, heads), hidden, multipliers, strict=True):
                q, k, v, o = (matrices(tensor, place) for tensor in (query, key, value, out))
                weights = torch.bmm(q, k.mT).mul_(scale)
                if unseen is not None:
                    weights.masked_fill_(unseen, float("-inf"))
                weights = weights.softmax(-1, dtype=precise)
                torch.bmm(weights.to(v.dtype) * times, v, out=o)
                kept_weights.append(weights)
        ctx.save_for_backward(query, key, value, *kept_weights, *multipliers)
        ctx.placed, ctx.heads, ctx.scale = placed, heads, scale
        return out.index_select(0, order.back)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Return the gradients of queries, keys and values."""
        query, key, value, *more = ctx.saved_tensors
        order = ctx.placed.order(ctx.heads)
        gradient = gradient.index_select(0, order.source)
        of_query, of_key, of_value = (torch.empty_like(tensor) for tensor in (query, key, value))
        every = (query, key, value, gradient, of_query, of_key, of_value)
        places, count = matrices_of(ctx.placed.runs, ctx.heads), len(ctx.placed.runs)
        with torch.autocast(query.device.type, enabled=False):
            for place, weights, times in zip(places, more[:count], more[count:], strict=True):
                q, k, v, g, to_query, to_key, to_value = (matrices(tensor, place) for tensor in every)
                torch.bmm((weights.to(v.dtype) * times).mT, g, out=to_value)
                of_weights = torch.bmm(g, v.mT).mul_(times).to(weights.dtype)
                # The gradient of a softmax.
                of_scores = of_weights.sub_((of_weights * weights).sum(-1, keepdim=True)).mul_(weights).mul_(ctx.scale)
                of_scores = of_scores.to(q.dtype)
                torch.bmm(of_scores, k, out=to_query)
                torch.bmm(of_scores.mT, q, out=to_key)
        found = [tensor.index_select(0, order.back) for tensor in (of_query, of_key, of_value)]
        return *found, None, None, None, None, None


Place = tuple[int, int, int]
"""Where the matrices of a run begin and end, and how many tokens each has."""


def matrices_of(runs: Sequence[Run], heads: int) -> list[Place]:
    """Return the place of each run among all tokens of all heads."""
    found, start = [], 0
    for count, length in runs:
        end = start + count * heads * length
        found.append((start, end, length))
        start = end
    return found


def matrices(tensor: torch.Tensor, place: Place) -> torch.Tensor:
    """Return the matrices of a run, (rows * heads, tokens, features), a view."""
    start, end, length = place
    return tensor[start:end].view(-1, length, tensor.shape[-1])


def within(length: int, window: int, causal: bool, device: torch.device) -> torch.Tensor:
    """Return which tokens see which, bool (length, length), where each looks less than `window` tokens far."""
    place = torch.arange(length, device=device)
    distance = place[:, None] - place
    return (distance.abs() < window) & ((distance >= 0) | (not causal))


@cache
def variable_length() -> Callable[..., Any] | None:
    """Return torch's attention for rows of different lengths, if this version has it in a known shape."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    known = signature(varlen_attn).parameters
    if "window_size" in known and "scale" in known:
        return varlen_attn
    return None
