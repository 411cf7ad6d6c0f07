"""Pairs of texts as token ids, and how a batch of them is padded."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from toolkit.cache import digest_of
from toolkit.errors import UserError
from toolkit.labels import Array
from toolkit.losses import NOT_COUNTED
from toolkit.rewriting.data import Pairs, PairSplit, TextPairs
from toolkit.texts import row_numbers
from toolkit.tokenized_texts import text_digest, tokenize

if TYPE_CHECKING:
    import torch


class TokenColumn:
    """Token ids of one text per row; they stay on the disk and are mapped into memory."""

    def __init__(self, folder: Path) -> None:
        from datasets import Dataset

        self._tokens = Dataset.from_file(str(folder / "tokens.arrow"))
        self.lengths: Array = np.load(folder / "lengths.npy", mmap_mode="r")
        self.full_lengths: Array = np.load(folder / "full_lengths.npy", mmap_mode="r")
        """Tokens of each text before it was cut."""
        self.content: str = json.loads((folder / "content.json").read_text(encoding="utf-8"))["digest"]

    def fetch(self, rows: list[int]) -> list[list[int]]:
        """Return the token ids of these rows."""
        ids: list[list[int]] = self._tokens[rows]["input_ids"]
        return ids


class TokenizedPairs:
    """A `Source` of token ids of sources and targets."""

    def __init__(self, source: TokenColumn, target: TokenColumn) -> None:
        self.source, self.target = source, target

    def __len__(self) -> int:
        return len(self.source.lengths)

    def fetch(self, ids: Sequence[int]) -> list[dict[str, Any]]:
        """Return samples: "source" and "target", lists of token ids."""
        if not len(ids):
            return []
        rows = np.asarray(ids).tolist()
        both = zip(self.source.fetch(rows), self.target.fetch(rows), strict=True)
        return [{"source": source, "target": target} for source, target in both]

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
    problems = [
        problem for _, flag, cut, _ in sides if cut is not None for problem in cut_problems(flag, cut, limit, added)
    ]
    if problems:
        raise UserError(*problems)
    columns: list[list[TokenColumn]] = []
    for column, flag, cut, used in sides:
        found = []
        for split in (pairs.train, pairs.evaluate):
            texts = split.table.select_columns([column])
            found.append(TokenColumn(tokenize(texts, used, cut, digest_of(column, text_digest(texts)))))
            problems += length_problems(split, column, flag, cut, limit, found[-1].full_lengths)
        pairs.facts[f"{column} lengths"] = length_fact(
            np.concatenate([tokens.full_lengths for tokens in found]), column, cut
        )
        columns.append(found)
    if problems:
        raise UserError(*problems)
    train, evaluate = zip(*columns, strict=True)
    return TokenizedPairs(*train), TokenizedPairs(*evaluate)


def cut_problems(flag: str, cut: int, limit: int | None, added: int) -> list[str]:
    """Say what is wrong with the length that texts are to be cut to."""
    if limit is not None and cut > limit:
        return [f"data.{flag} is {cut}, but the model takes at most {limit} tokens; give {limit} or less"]
    if cut <= added:
        return [
            f"data.{flag} is {cut}, and the tokenizer adds {added} tokens of its own to each text, so that nothing of it "
            f"would be left; give at least {added + 1}"
        ]
    return []


def length_problems(
    split: PairSplit, column: str, flag: str, cut: int | None, limit: int | None, lengths: Array
) -> list[str]:
    """Say which rows are too long for the model, and which have no token at all."""
    problems = []
    if cut is None and limit is not None and (lengths > limit).any():
        problems.append(
            f"{split.name}: the {column} of {row_numbers(split.rows[lengths > limit])} is longer than the {limit} tokens "
            f"that the model takes (the longest has {lengths.max():,}); cut it with --data.{flag} {limit}"
        )
    if not lengths.all():
        problems.append(
            f"{split.name}: the {column} of {row_numbers(split.rows[lengths == 0])} is without a single token; the "
            "tokenizer knows nothing in it: remove these rows, or take another tokenizer"
        )
    return problems


def length_fact(lengths: Array, column: str, cut: int | None) -> str:
    """Return a line for the plan."""
    line = f"{np.median(lengths):.0f} tokens in the middle, {lengths.max():,} at most"
    return line if cut is None else f"{line}; {(lengths > cut).sum():,} of {len(lengths):,} {column}s cut to {cut}"


def pad_pairs(tokenizer: Any) -> Callable[[list[dict[str, Any]]], "dict[str, torch.Tensor]"]:
    """Return a collate function: samples of `TokenizedPairs` to int64 tensors of shape (samples, longest of them).

    These are "input_ids", "attention_mask" and "labels". The padding is always on the right, where positions that are
    counted from the left do not move.

    Raises:
        UserError: the tokenizer has no padding token.
    """
    import torch

    if tokenizer.pad_token_id is None:
        raise UserError(
            f"the tokenizer ({type(tokenizer).__name__}) has no padding token, so texts of different length cannot "
            "stand in one batch; give the model a tokenizer with a pad_token"
        )

    def padded(rows: list[list[int]], filler: int) -> "torch.Tensor":
        matrix = np.full((len(rows), max(map(len, rows))), filler, dtype=np.int64)
        for place, row in zip(matrix, rows, strict=True):
            place[: len(row)] = row
        return torch.from_numpy(matrix)

    def collate(samples: list[dict[str, Any]]) -> "dict[str, torch.Tensor]":
        sources = [sample["source"] for sample in samples]
        return {
            "input_ids": padded(sources, tokenizer.pad_token_id),
            "attention_mask": padded([[1] * len(source) for source in sources], 0),
            "labels": padded([sample["target"] for sample in samples], NOT_COUNTED),
        }

    return collate
