"""Attention masks whose values the host does not have to look at.

Where a mask hides nothing, Transformers leaves it out, so that attention can take a faster kernel. To find out it reads
the mask from the device in every forward pass (`_ignore_causal_mask_sdpa` and others in its `masking_utils`): the host
waits until the device has done all that was started before. The collate function, which made the mask on the host,
knows the answer.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any, NamedTuple

import torch

UNPADDED = "unpadded"
"""The name of an empty tensor that a batch has where its attention mask hides nothing."""
IMPLEMENTATIONS = ("sdpa", "eager", "flash_attention_2")


class Known(NamedTuple):
    """What is known of the attention mask of a batch."""

    shape: torch.Size
    padded: bool
    """Whether it hides anything."""
    on_the_right: bool
    """Whether what it hides is on the right, where no token of a causal model looks."""


known: ContextVar[Known | None] = ContextVar("known", default=None)


def note_padding(lengths: Sequence[int]) -> dict[str, torch.Tensor]:
    """Return what a collate function adds to a batch of rows of these lengths: `UNPADDED` if all are equal."""
    return {UNPADDED: torch.empty(0)} if min(lengths) == max(lengths) else {}


@contextmanager
def padding_known(batch: Mapping[str, torch.Tensor], on_the_right: bool = False) -> Iterator[None]:
    """Run a model of Transformers on a batch in this block, without a look at the batch's attention mask.

    `on_the_right` says that all padding is there, and that nobody uses what the model returns for it.
    """
    answer_for_transformers()
    mask = batch.get("attention_mask")
    before = known.set(None if mask is None else Known(mask.shape, UNPADDED not in batch, on_the_right))
    try:
        yield
    finally:
        known.reset(before)


@cache
def answer_for_transformers() -> None:
    """Replace the functions by which Transformers makes masks; where nothing is known they do what they did before."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

    for name in IMPLEMENTATIONS:
        ALL_MASK_ATTENTION_FUNCTIONS[name] = without_looking(ALL_MASK_ATTENTION_FUNCTIONS[name])


def without_looking(make: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that makes masks as `make` of Transformers does, but without a look at known ones.

    A mask that hides nothing is left out, and so is padding on the right where causality hides it anyway. (Transformers
    allows its causal skip only where a mask is causal and nothing else.) Every other mask is written out. A mask of
    another shape than the batch's is some other mask.
    """

    def made(*args: Any, attention_mask: torch.Tensor | None = None, **options: Any) -> Any:
        noted = known.get()
        if noted is not None and attention_mask is not None and attention_mask.shape == noted.shape:
            if not noted.padded or (noted.on_the_right and options.get("allow_is_causal_skip")):
                attention_mask = None
            else:
                options |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
        return make(*args, attention_mask=attention_mask, **options)

    return made
