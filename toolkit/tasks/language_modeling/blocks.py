"""Blocks of running text as samples: parts of a stream of tokens, for predicting the next token or hidden ones."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from toolkit.attention_masks import note_padding
from toolkit.data.cache import digest_of
from toolkit.data.tokenized import settings_kept
from toolkit.errors import UserError
from toolkit.losses import NOT_COUNTED
from toolkit.tasks.language_modeling.stream import Stream

Ids = np.ndarray[Any, np.dtype[np.int64]]


class CausalBlocks:
    """A `Source` of blocks in which each token is followed by the one to predict.

    Block i has the tokens i * block to (i + 1) * block of the stream as input, and as labels those one further: neighbours
    share one token, the last label of the one and the first input of the other. So each token of the stream is predicted
    exactly once, except for the end-of-text token that it begins with. The last block is shorter.
    """

    def __init__(self, stream: Stream, block: int) -> None:
        self.stream = stream
        self.block = block

    def __len__(self) -> int:
        return (len(self.stream) + self.block - 2) // self.block

    def fetch(self, ids: Sequence[int]) -> list[dict[str, Ids]]:
        """Return "input_ids" and "labels" of each block. About 5 us each."""
        samples = []
        for number in ids:
            start = number * self.block
            tokens = self.stream.tokens[start : start + self.block + 1].astype(np.int64)
            samples.append({"input_ids": tokens[:-1], "labels": tokens[1:]})
        return samples

    def lengths(self, ids: Ids) -> Ids:
        """Return the number of tokens that the model reads of each block."""
        return np.minimum(self.block, len(self.stream) - 1 - np.asarray(ids) * self.block)

    def digest(self) -> str:
        """Return a hash of the tokens and the length of a block."""
        return digest_of("causal", self.stream.digest, self.block)


class WholeBlocks:
    """A `Source` of blocks that are read as a whole, each framed as the tokenizer frames a text ([CLS] ... [SEP]).

    The frame counts as part of the block's length. Each token of the stream lies in exactly one block, except for the
    end-of-text token that it begins with. The last block is shorter.
    """

    def __init__(self, stream: Stream, block: int, before: Sequence[int], after: Sequence[int]) -> None:
        self.stream = stream
        self.before = np.array(before, dtype=np.int64)
        self.after = np.array(after, dtype=np.int64)
        self.inner = block - len(before) - len(after)
        """Tokens of the stream in a block."""

    def __len__(self) -> int:
        return (len(self.stream) + self.inner - 2) // self.inner

    def fetch(self, ids: Sequence[int]) -> list[dict[str, Ids]]:
        """Return "input_ids" of each block. About 5 us each."""
        samples = []
        for number in ids:
            start = 1 + number * self.inner
            tokens = self.stream.tokens[start : start + self.inner].astype(np.int64)
            samples.append({"input_ids": np.concatenate([self.before, tokens, self.after])})
        return samples

    def lengths(self, ids: Ids) -> Ids:
        """Return the number of tokens that the model reads of each block."""
        left = len(self.stream) - 1 - np.asarray(ids) * self.inner
        return np.minimum(self.inner, left) + len(self.before) + len(self.after)

    def digest(self) -> str:
        """Return a hash of the tokens and of how they are cut and framed."""
        return digest_of("whole", self.stream.digest, self.inner, self.before, self.after)


Blocks = CausalBlocks | WholeBlocks


def make_blocks(stream: Stream, tokenizer: Any, objective: str, block: int) -> Blocks:
    """Return the blocks of a stream for an objective (causal or masked).

    Args:
        stream: the tokens.
        tokenizer: frames the blocks of the masked objective.
        objective: causal or masked.
        block: data.block.

    Raises:
        UserError: the block is longer than that, or its frame leaves nothing of it.
    """
    limit = int(tokenizer.model_max_length)  # one that knows no limit says 10**30
    if block > limit:
        raise UserError(
            f"data.block is {block}, but the model takes at most {limit} tokens; give {limit} or less, or another model"
        )
    if objective == "causal":
        return CausalBlocks(stream, block)
    before, after = frame(tokenizer)
    added = len(before) + len(after)
    if block <= added:
        raise UserError(
            f"data.block is {block}, and the tokenizer adds {added} tokens of its own to each block, so that nothing of the "
            f"text would be left; give at least {added + 1}"
        )
    return WholeBlocks(stream, block, before, after)


def frame(tokenizer: Any) -> tuple[list[int], list[int]]:
    """Return the tokens that a tokenizer puts before and after a text."""
    with settings_kept(tokenizer):
        framed, plain = (tokenizer("a", add_special_tokens=add, truncation=False)["input_ids"] for add in (True, False))
    place = next(start for start in range(len(framed)) if framed[start : start + len(plain)] == plain)
    return framed[:place], framed[place + len(plain) :]


def pad_blocks(tokenizer: Any) -> Callable[[list[dict[str, Ids]]], dict[str, torch.Tensor]]:
    """Return a collate function: blocks to int64 tensors of shape (blocks, longest of them), padded on the right.

    "labels" are -100 where there is nothing to predict; "attention_mask" is 0 on the padding.
    """
    filler = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0

    def collate(samples: list[dict[str, Ids]]) -> dict[str, torch.Tensor]:
        shape = (len(samples), max(len(sample["input_ids"]) for sample in samples))
        inputs, labels = np.full(shape, filler, dtype=np.int64), np.full(shape, NOT_COUNTED, dtype=np.int64)
        mask = np.zeros(shape, dtype=np.int64)
        for row, sample in enumerate(samples):
            length = len(sample["input_ids"])
            inputs[row, :length] = sample["input_ids"]
            labels[row, :length] = sample["labels"]
            mask[row, :length] = 1
        arrays = {"input_ids": inputs, "labels": labels, "attention_mask": mask}
        lengths = [len(sample["input_ids"]) for sample in samples]
        return {**{name: torch.from_numpy(array) for name, array in arrays.items()}, **note_padding(lengths)}

    return collate
