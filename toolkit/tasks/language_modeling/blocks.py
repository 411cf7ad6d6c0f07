"""Blocks of running text as samples: parts of a stream of tokens, for predicting the next token or hidden ones."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from toolkit.data.cache import digest_of
from toolkit.data.collate import pad
from toolkit.data.text_columns import length_limit
from toolkit.data.tokenized import settings_kept
from toolkit.errors import UserError
from toolkit.losses import NOT_COUNTED
from toolkit.tasks.language_modeling.models import Objective
from toolkit.tasks.language_modeling.stream import Stream

Ids = np.ndarray[Any, np.dtype[np.int64]]


class Blocks(ABC):
    """A `Source` of parts of a stream, of `size` tokens each; the last one is shorter.

    The end-of-text token that the stream begins with is predicted in no block; every token after it in exactly one.
    """

    added = 0
    """Tokens of a block that are not of the stream."""

    def __init__(self, stream: Stream, size: int) -> None:
        self.stream = stream
        self.size = size

    def __len__(self) -> int:
        return (len(self.stream) + self.size - 2) // self.size

    def lengths(self, ids: Ids) -> Ids:
        """Return the number of tokens that the model reads of each block."""
        return np.minimum(self.size, len(self.stream) - 1 - np.asarray(ids) * self.size) + self.added

    def fetch(self, ids: Sequence[int]) -> list[dict[str, Ids]]:
        """Return the samples. About 5 us each."""
        starts = (number * self.size for number in ids)
        return [self.sample(self.stream.tokens[start : start + self.size + 1].astype(np.int64)) for start in starts]

    @abstractmethod
    def sample(self, tokens: Ids) -> dict[str, Ids]:
        """Return the sample of a block, given its tokens and, first of all, the one before them."""

    @abstractmethod
    def digest(self) -> str:
        """Return a hash of the tokens and of how they are divided."""


class CausalBlocks(Blocks):
    """Blocks in which each token is followed by the one to predict.

    "labels" are "input_ids" one place further in the stream. So neighbours share one token: the last label of the one
    is the first input of the other.
    """

    def sample(self, tokens: Ids) -> dict[str, Ids]:
        return {"input_ids": tokens[:-1], "labels": tokens[1:]}

    def digest(self) -> str:
        return digest_of("causal", self.stream.digest, self.size)


class WholeBlocks(Blocks):
    """Blocks that are read as a whole, each framed as the tokenizer frames a text ([CLS] ... [SEP]).

    The frame counts as part of the block's length. Samples have "input_ids" alone: see `Masking` for the labels.
    """

    def __init__(self, stream: Stream, block: int, before: Sequence[int], after: Sequence[int]) -> None:
        self.before = np.array(before, dtype=np.int64)
        self.after = np.array(after, dtype=np.int64)
        self.added = len(before) + len(after)
        super().__init__(stream, block - self.added)

    def sample(self, tokens: Ids) -> dict[str, Ids]:
        return {"input_ids": np.concatenate([self.before, tokens[1:], self.after])}

    def digest(self) -> str:
        return digest_of("whole", self.stream.digest, self.size, self.before, self.after)


def make_blocks(stream: Stream, tokenizer: Any, objective: Objective, block: int) -> Blocks:
    """Return the blocks of a stream; `block` is data.block.

    Raises:
        UserError: the block is longer than what the model takes, or the tokenizer's frame leaves nothing of it.
    """
    limit = length_limit(tokenizer)
    if limit is not None and block > limit:
        raise UserError(
            f"data.block is {block}, but the model takes at most {limit} tokens; give {limit} or less, or another model"
        )
    if objective == "causal":
        return CausalBlocks(stream, block)
    before, after = frame(tokenizer)
    added = len(before) + len(after)
    if block <= added:
        raise UserError(
            f"data.block is {block}, and the tokenizer adds {added} tokens of its own to each block, so that nothing "
            f"of the text would be left; give at least {added + 1}"
        )
    return WholeBlocks(stream, block, before, after)


def frame(tokenizer: Any) -> tuple[list[int], list[int]]:
    """Return the tokens that a tokenizer puts before and after a text."""
    with settings_kept(tokenizer):
        framed, plain = (tokenizer("a", add_special_tokens=add, truncation=False)["input_ids"] for add in (True, False))
    place = next(start for start in range(len(framed)) if framed[start : start + len(plain)] == plain)
    return framed[:place], framed[place + len(plain) :]


def pad_blocks(tokenizer: Any) -> Callable[[list[dict[str, Ids]]], dict[str, torch.Tensor]]:
    """Return a collate function: blocks to int64 tensors of shape (blocks, tokens of the longest), padded on the right.

    "labels" are -100 where there is nothing to predict; "attention_mask" is 0 on the padding.
    """
    # The last block alone is padded, and the mask hides it: any token does where the tokenizer has none for it.
    padding = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0
    return partial(pad, fillers={"input_ids": padding, "labels": NOT_COUNTED})
