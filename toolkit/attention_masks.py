"""Attention masks that nobody looks at on the host.

Transformers leaves a mask out where it hides nothing, so that attention can take a faster kernel. To find out it reads the mask
from the device, in every forward pass (`masking_utils._ignore_causal_mask_sdpa` and its like), and the host waits until the device
has done everything that was started before. Whoever made the batch knows the answer already: it is told here.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any, NamedTuple

import torch

UNPADDED = "unpadded"
"""What a batch has, an empty tensor, beside an attention mask that hides nothing."""
IMPLEMENTATIONS = ("sdpa", "eager", "flash_attention_2")


class Known(NamedTuple):
    """What is known of the attention mask of a batch."""

    shape: torch.Size
    padded: bool
    """Whether it hides anything."""
    on_the_right: bool
    """Whether all of that stands to the right of what counts: what sees nothing to its right needs no mask of it."""


known: ContextVar[Known | None] = ContextVar("known", default=None)


def note_padding(lengths: Sequence[int]) -> dict[str, torch.Tensor]:
    """Return what a collate function adds to a batch of rows of these lengths: `UNPADDED` where none is padded."""
    return {UNPADDED: torch.empty(0)} if min(lengths) == max(lengths) else {}


@contextmanager
def padding_known(batch: Mapping[str, torch.Tensor], on_the_right: bool = False) -> Iterator[None]:
    """Run a model of Transformers in this block on a batch, without a look at its attention mask.

    `on_the_right`: that is where its padding stands, and nothing is asked of what the model makes of it.
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
    """Have Transformers make its masks, from here on, by functions that take the answer where it is known."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

    for name in IMPLEMENTATIONS:
        ALL_MASK_ATTENTION_FUNCTIONS[name] = without_looking(ALL_MASK_ATTENTION_FUNCTIONS[name])


def without_looking(make: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that makes masks as `make` does, one of those of Transformers, but for the look where it is superfluous.

    A mask that hides nothing never comes as far as `make`; one that hides something is written out, unless causality alone hides it
    too. (Transformers allows its causal skip where a mask is causal and nothing else.) A mask of another shape is not the batch's.
    """

    def made(*args: Any, attention_mask: torch.Tensor | None = None, **options: Any) -> Any:
        told = known.get()
        if told is not None and attention_mask is not None and attention_mask.shape == told.shape:
            if not told.padded or (told.on_the_right and options.get("allow_is_causal_skip")):
                attention_mask = None
            else:
                options |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
        return make(*args, attention_mask=attention_mask, **options)

    return made
