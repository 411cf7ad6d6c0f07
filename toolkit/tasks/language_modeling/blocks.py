"""Blocks of running text as samples: parts of a stream of tokens, for predicting the next token or hidden ones."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
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
from toolkit.vocabulary_loss import note_labels

Ids = np.ndarray[Any, np.dtype[np.int64]]


class Blocks(ABC):
    """A `Source` of parts of a stream, of at most `size` tokens each.

    Documents are joined, so that only the very last part is shorter, or kept apart, so that no part holds tokens of two
    of them. Every token is predicted in exactly one part, but for the end-of-text token that the stream begins with.
    """

    added = 0
    """Tokens of a block that are not of the stream."""
    with_ends = True
    """Whether the token that ends a document is a part of it, where documents are apart."""

    def __init__(self, stream: Stream, size: int, apart: bool = False) -> None:
        self.stream = stream
        self.size = size
        self.apart = apart
        ends = stream.ends if apart else np.array([len(stream) - 1])
        self.starts = np.concatenate([[0], ends[:-1]])
        """The place before the first token of each document."""
        self.tokens = np.diff(ends, prepend=0) - (0 if self.with_ends or not apart else 1)
        """The tokens of each document."""
        self.last = np.cumsum(-(-self.tokens // size))
        """The blocks of all documents up to each one."""

    def __len__(self) -> int:
        return int(self.last[-1])

    def places(self, ids: Ids) -> tuple[Ids, Ids]:
        """Return for each block the place before its first token, and its number of tokens."""
        document = np.searchsorted(self.last, ids, side="right")
        number = ids - self.last[document] - (-self.tokens[document] // self.size)
        done = number * self.size
        return self.starts[document] + done, np.minimum(self.size, self.tokens[document] - done)

    def lengths(self, ids: Ids) -> Ids:
        """Return the number of tokens that the model reads of each block."""
        return self.places(np.asarray(ids))[1] + self.added

    def fetch(self, ids: Sequence[int]) -> list[dict[str, Ids]]:
        """Return the samples."""
        places = zip(*(part.tolist() for part in self.places(np.asarray(ids))), strict=True)
        return [self.sample(self.stream.tokens[start : start + size + 1].astype(np.int64)) for start, size in places]

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
        return digest_of("causal", self.stream.digest, self.size, *([self.stream.ends] if self.apart else []))


class WholeBlocks(Blocks):
    """Blocks that are read as a whole, each framed as the tokenizer frames a text ([CLS] ... [SEP]).

    The frame counts as part of the block's length, and takes the place of the token that ends a document where these
    are apart. Samples have "input_ids" alone: see `Masking` for the labels.
    """

    with_ends = False

    def __init__(
        self, stream: Stream, block: int, before: Sequence[int], after: Sequence[int], apart: bool = False
    ) -> None:
        self.before = np.array(before, dtype=np.int64)
        self.after = np.array(after, dtype=np.int64)
        self.added = len(before) + len(after)
        super().__init__(stream, block - self.added, apart)

    def sample(self, tokens: Ids) -> dict[str, Ids]:
        return {"input_ids": np.concatenate([self.before, tokens[1:], self.after])}

    def digest(self) -> str:
        ends = [self.stream.ends] if self.apart else []
        return digest_of("whole", self.stream.digest, self.size, self.before, self.after, *ends)


def make_blocks(stream: Stream, tokenizer: Any, objective: Objective, block: int, apart: bool) -> Blocks:
    """Return the blocks of a stream; `block` is data.block, and `apart` whether none holds two documents.

    Raises:
        UserError: the block is longer than what the model takes, or the tokenizer's frame leaves nothing of it.
    """
    limit = length_limit(tokenizer)
    if limit is not None and block > limit:
        raise UserError(
            f"data.block is {block}, but the model takes at most {limit} tokens; give {limit} or less, or another model"
        )
    if objective == "causal":
        return CausalBlocks(stream, block, apart)
    before, after = frame(tokenizer)
    added = len(before) + len(after)
    if block <= added:
        raise UserError(
            f"data.block is {block}, and the tokenizer adds {added} tokens of its own to each block, so that nothing "
            f"of the text would be left; give at least {added + 1}"
        )
    return WholeBlocks(stream, block, before, after, apart)


def frame(tokenizer: Any) -> tuple[list[int], list[int]]:
    """Return the tokens that a tokenizer puts before and after a text."""
    with settings_kept(tokenizer):
        framed, plain = (tokenizer("a", add_special_tokens=add, truncation=False)["input_ids"] for add in (True, False))
    place = next(start for start in range(len(framed)) if framed[start : start + len(plain)] == plain)
    return framed[:place], framed[place + len(plain) :]


def pad_blocks(tokenizer: Any) -> Callable[[list[dict[str, Ids]]], dict[str, torch.Tensor]]:
    """Return a collate function: blocks to int64 tensors of shape (blocks, tokens of the longest), padded on the right.

    "labels" are -100 where there is nothing to predict; "attention_mask" is 0 on the padding. What `note_labels`
    returns is there too.
    """
    # The mask hides the padding: any token does where the tokenizer has none for it.
    padding = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0

    def collate(samples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        batch = pad(samples, {"input_ids": padding, "labels": NOT_COUNTED})
        return {**batch, **note_labels(batch["labels"])}

    return collate
