"""Attention of Transformers' models for batches whose layout is known (`toolkit.batch_layout`).

Where a mask hides nothing, Transformers leaves it out, so that attention can take a faster kernel. To find out it reads
the mask from the device in every forward pass (`_ignore_causal_mask_sdpa` and others in its `masking_utils`): the host
waits until the device has done all that was started before. The collate function, which made the mask on the host,
knows the answer. Rows that lie end to end need no mask at all: attention is computed for each by itself. And where the
weights of attention are dropped out, they are computed in plain sight, since no fused kernel takes a mask for them.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F

from toolkit.batch_layout import LENGTHS, UNPADDED, Layout, layout, using
from toolkit.dropout import NUMBER, by_row, one_more
from toolkit.row_attention import WeightDropout, inside_rows

IMPLEMENTATIONS = ("sdpa", "eager", "flash_attention_2")
"""Kinds of attention of which Transformers asks the masks here."""
Attended = tuple[torch.Tensor, torch.Tensor | None]


torch_attention = F.scaled_dot_product_attention


@cache
def watch_attention() -> None:
    """Have torch's own attention ask for the samples, where a module that calls it is known to be running."""
    F.scaled_dot_product_attention = function


def function(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Stand in for `torch.nn.functional.scaled_dot_product_attention`."""
    own = layout()
    known = dropout_p > 0 and own.keys is not None and query.ndim == 4 and len(query) == own.rows and not enable_gqa
    if own.trial is not None and known and own.trial.running:
        own.trial.note(own.trial.running[-1], query)
        own.trial.callers.add(own.trial.running[-1])
        dropout_p = 0.0
    if own.trial is not None or not known or not own.callers:
        options: Any = {"dropout_p": dropout_p, "is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa}
        return torch_attention(query, key, value, attn_mask, **options)
    drop = drop_of(own.callers[-1], dropout_p, own, query)
    return in_plain_sight(query, key, value, scale, is_causal, attn_mask, None, drop)


@cache
def answer_for_transformers() -> None:
    """Replace the functions by which Transformers makes masks and attends; where nothing is known they do what they did
    before."""
    from transformers import masking_utils
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    for name in IMPLEMENTATIONS:
        ALL_MASK_ATTENTION_FUNCTIONS[name] = without_looking(ALL_MASK_ATTENTION_FUNCTIONS[name])
    ALL_ATTENTION_FUNCTIONS["sdpa"] = of_samples(ALL_ATTENTION_FUNCTIONS["sdpa"])
    find = masking_utils.find_packed_sequence_indices
    # It would look at the positions, to make a mask that rows end to end do without.
    masking_utils.find_packed_sequence_indices = lambda ids: None if layout().end_to_end is not None else find(ids)


@contextmanager
def padding_known(batch: Mapping[str, torch.Tensor], on_the_right: bool = False) -> Iterator[None]:
    """Run a model of Transformers on a batch in this block, without a look at the batch's attention mask.

    `on_the_right` says that all padding is there, and that nobody uses what the model returns for it. Where the batch
    does not say how long its rows are, a block around this one may have said it.
    """
    answer_for_transformers()
    now = layout()
    mask = batch.get("attention_mask")
    if mask is None:
        with using(replace(now, shape=None, lengths=None, hashes={})):
            yield
        return
    lengths = tuple(batch[LENGTHS].tolist()) if LENGTHS in batch else None
    if lengths is None and now.shape == mask.shape:
        lengths = now.lengths
    padded = UNPADDED not in batch and (lengths is None or min(lengths) < mask.shape[1])
    known = replace(now, shape=mask.shape, padded=padded, on_the_right=on_the_right, lengths=lengths, hashes={})
    with using(known):
        yield


def without_looking(make: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that makes masks as `make` of Transformers does, but without a look at known ones.

    A mask that hides nothing is left out, and so is padding on the right where causality hides it anyway. (Transformers
    allows its causal skip only where a mask is causal and nothing else.) Every other mask is written out. A mask of
    another shape than the batch's is some other mask.
    """

    def made(*args: Any, attention_mask: torch.Tensor | None = None, **options: Any) -> Any:
        own = layout()
        if own.end_to_end is not None:
            return None
        if own.shape is not None and attention_mask is not None and attention_mask.shape == own.shape:
            if not own.padded or (own.on_the_right and options.get("allow_is_causal_skip")):
                attention_mask = None
            else:
                options |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
        return make(*args, attention_mask=attention_mask, **options)

    return made


def of_samples(attend: Callable[..., Attended]) -> Callable[..., Attended]:
    """Return `attend` of Transformers for rows that lie end to end, and with dropout that knows the samples."""

    def attended(
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        dropout: float = 0.0,
        scaling: float | None = None,
        is_causal: bool | None = None,
        **options: Any,
    ) -> Attended:
        own = layout()
        drops = dropout > 0 and own.keys is not None and len(query) in (own.rows, 1) and hasattr(module, NUMBER)
        if own.end_to_end is None:
            if not drops or len(query) != own.rows or options.get("softcap") is not None:
                given: Any = {"dropout": dropout, "scaling": scaling, "is_causal": is_causal, **options}
                return attend(module, query, key, value, attention_mask, **given)
            causal = attention_mask is None and query.shape[2] > 1 and asks_causal(module, is_causal)
            bias = options.get("position_bias")
            drop = drop_of(module, dropout, own, query)
            out = in_plain_sight(query, *repeated(module, key, value), scaling, causal, attention_mask, bias, drop)
            return out.transpose(1, 2), None
        causal, window = asks_causal(module, is_causal), options.get("sliding_window")
        inside = drop_of(module, dropout, own, query) if drops else None
        return inside_rows(query, *repeated(module, key, value), own.end_to_end, scaling, causal, window, inside), None

    return attended


def asks_causal(module: torch.nn.Module, given: bool | None) -> bool:
    """Return whether attention looks backwards alone, as Transformers says it."""
    return bool(getattr(module, "is_causal", True) if given is None else given)


def repeated(module: Any, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return keys and values with a head for each head of the queries."""
    groups = getattr(module, "num_key_value_groups", 1)
    if groups == 1:
        return key, value
    return key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)


def drop_of(module: Any, rate: float, own: Layout, query: torch.Tensor) -> WeightDropout:
    """Return what drops out the weights of a module's attention, given queries of (rows, heads, tokens, features).

    The heads are counted over all processes that share a layer.
    """
    heads = query.shape[1]
    all_heads = getattr(getattr(module, "config", None), "num_attention_heads", heads)
    first = own.part * heads if heads < all_heads else 0
    return WeightDropout(one_more(by_row(own, getattr(module, NUMBER), query.device), heads, first), rate)


def in_plain_sight(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scaling: float | None,
    causal: bool,
    mask: torch.Tensor | None,
    bias: torch.Tensor | None,
    drop: Callable[[torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    """Return what attention makes of (rows, heads, tokens, features), its weights dropped out by `drop`."""
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    weights = (query * scale) @ key.mT
    if bias is not None:
        weights = weights + bias
    # Not minus infinity: a token of the padding may see nothing at all, and would become NaN.
    hidden = torch.finfo(weights.dtype).min
    if mask is not None:
        weights = weights.masked_fill(~mask, hidden) if mask.dtype == torch.bool else weights + mask
    elif causal:
        shape = weights.shape[-2:]
        weights = weights.masked_fill(torch.ones(shape, dtype=torch.bool, device=key.device).triu(1), hidden)
    precise = torch.float32 if weights.dtype.itemsize < 4 else weights.dtype
    return drop(weights.softmax(-1, dtype=precise).to(value.dtype)) @ value
