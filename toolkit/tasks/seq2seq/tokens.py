"""Pairs of texts as token ids, and how a batch of them is padded."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from toolkit.attention_masks import note_padding
from toolkit.data.cache import digest_of
from toolkit.data.collate import padding_token
from toolkit.data.labels import Array
from toolkit.data.texts import cut_problems, length_fact, length_problems
from toolkit.data.tokenized import WrittenTokens, text_digest, tokenize
from toolkit.errors import UserError
from toolkit.losses import NOT_COUNTED
from toolkit.tasks.seq2seq.data import Pairs, TextPairs

if TYPE_CHECKING:
    import torch


class TokenizedPairs:
    """A `Source` of token ids of sources and targets."""

    def __init__(self, source: WrittenTokens, target: WrittenTokens) -> None:
        self.source, self.target = source, target

    def __len__(self) -> int:
        return len(self.source)

    def fetch(self, ids: Sequence[int]) -> list[dict[str, Any]]:
        """Return samples: "source" and "target", lists of token ids."""
        if not len(ids):
            return []
        both = (side.fetch(ids)["input_ids"] for side in (self.source, self.target))
        return [{"source": source, "target": target} for source, target in zip(*both, strict=True)]

    def lengths(self, ids: Array) -> Array:
        """Return the number of tokens of each sample, source and target together (int64)."""
        return np.asarray(self.source.lengths[np.asarray(ids)] + self.target.lengths[np.asarray(ids)])

    def digest(self) -> str:
        """Return a hash of the token ids."""
        return digest_of(self.source.content, self.target.content)


class TargetSide:
    """A tokenizer as it takes targets: some give them other special tokens than sources, or another vocabulary."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def __call__(self, texts: list[str], **settings: Any) -> Any:
        """Return the token ids of targets."""
        return self._tokenizer(text_target=texts, **settings)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)


def tokenize_pairs(
    pairs: Pairs, data: TextPairs, tokenizer: Any, limit: int | None = None
) -> tuple[TokenizedPairs, TokenizedPairs]:
    """Return the training and the evaluation pairs as token ids, made once per machine.

    Args:
        pairs: the texts; a line on lengths is added to their facts.
        data: how long they may be.
        tokenizer: what makes token ids of them.
        limit: the longest text that the model takes, in tokens; None if any will do.

    Raises:
        UserError: texts are longer than that and are not to be cut, or are to be cut to more than that or to nothing.
    """
    added = tokenizer.num_special_tokens_to_add()
    sides = (
        ("source", "max_length", data.max_length, tokenizer),
        ("target", "max_target_length", data.max_target_length, TargetSide(tokenizer)),
    )
    problems = [problem for _, flag, cut, _ in sides for problem in cut_problems(flag, cut, limit, added)]
    if problems:
        raise UserError(*problems)
    columns: list[list[WrittenTokens]] = []
    for column, flag, cut, used in sides:
        found = []
        for split in (pairs.train, pairs.evaluate):
            texts = split.table.select_columns([column])
            found.append(WrittenTokens(tokenize(texts, used, cut, digest_of(column, text_digest(texts)))))
            name = f"{split.name}, {column}"
            problems += length_problems(name, split.rows, flag, cut, limit, found[-1].full_lengths)
        full = np.concatenate([tokens.full_lengths for tokens in found])
        pairs.summary[f"{column} lengths"] = length_fact(full, f"{column}s", cut)
        columns.append(found)
    if problems:
        raise UserError(*problems)
    train, evaluate = zip(*columns, strict=True)
    return TokenizedPairs(*train), TokenizedPairs(*evaluate)


def pad_pairs(tokenizer: Any) -> Callable[[list[dict[str, Any]]], "dict[str, torch.Tensor]"]:
    """Return a collate function: samples of `TokenizedPairs` to int64 tensors of shape (samples, longest of them).

    These are "input_ids", "attention_mask" and "labels". The padding is always on the right, where positions that are
    counted from the left do not move.

    Raises:
        UserError: the tokenizer has no padding token.
    """
    import torch

    padding = padding_token(tokenizer, "texts")

    def padded(rows: list[list[int]], filler: int) -> "torch.Tensor":
        matrix = np.full((len(rows), max(map(len, rows))), filler, dtype=np.int64)
        for place, row in zip(matrix, rows, strict=True):
            place[: len(row)] = row
        return torch.from_numpy(matrix)

    def collate(samples: list[dict[str, Any]]) -> "dict[str, torch.Tensor]":
        sources = [sample["source"] for sample in samples]
        return {
            "input_ids": padded(sources, padding),
            "attention_mask": padded([[1] * len(source) for source in sources], 0),
            "labels": padded([sample["target"] for sample in samples], NOT_COUNTED),
            **note_padding([len(source) for source in sources]),
        }

    return collate
