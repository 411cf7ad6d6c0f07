"""Texts with labels after they were read: what a recipe asks of them."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from toolkit.data.columns import Columns
from toolkit.data.labels import Array, Kind, Labels
from toolkit.data.reading import DataRead, row_numbers
from toolkit.data.tokenized import ROWS_AT_ONCE, TokenizedTexts, text_digest, tokenize
from toolkit.errors import UserError


@dataclass(frozen=True)
class Split:
    """Rows for training or for evaluation."""

    name: str
    texts: Any
    """A `datasets.Dataset` of the text columns alone."""
    labels: Labels
    rows: Array
    """The number that each row had in the data, counted from 0."""

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, rows: Array, name: str | None = None) -> "Split":
        """Return these rows, in this order."""
        return Split(name or self.name, self.texts.select(rows), self.labels.take(rows), self.rows[rows])


@dataclass(frozen=True)
class Texts(DataRead):
    """Training and evaluation texts with numbered labels."""

    kind: Kind
    labels: list[str]
    """The name of each label id; empty for regression."""
    columns: Columns
    train: Split
    evaluate: Split
    max_length: int | None

    @property
    def text_columns(self) -> list[str]:
        """The columns that hold text: one, or two for pairs."""
        return self.columns.texts

    def training_texts(self) -> Iterator[str]:
        """Yield every training text (of a pair both), to train a tokenizer on; few are in memory at once."""
        for batch in self.train.texts.with_format("arrow").iter(ROWS_AT_ONCE):
            for column in batch.columns:
                yield from column.to_pylist()

    @cached_property
    def training_digest(self) -> str:
        """A hash of the training texts: the key under which a tokenizer that was trained on them can be kept."""
        return text_digest(self.train.texts)

    @cached_property
    def baseline(self) -> int | float | list[float]:
        """What a model would predict that has seen labels and no text.

        The most frequent label's id; for several labels the 0/1 vector of those that most texts have, or else of the
        most frequent one; for regression the mean.
        """
        labels = self.train.labels
        if self.kind == "regression":
            return float(labels.values.mean())
        counts = labels.counts()
        if self.kind == "single":
            return int(counts.argmax())
        chosen = counts > len(labels) / 2
        if not chosen.any():
            chosen[counts.argmax()] = True
        return [float(value) for value in chosen]

    def show(self, number: int, prediction: Any, reference: Any) -> dict[str, Any]:
        """Return what a reader sees of an evaluated text: the text, what the model says and what is right, by name."""

        def named(value: Any) -> Any:
            match self.kind:
                case "single":
                    return self.labels[int(value)]
                case "multi":
                    return [name for name, has in zip(self.labels, value, strict=True) if has]
                case _:
                    return float(value)

        row = {"row": int(self.evaluate.rows[number]) + 1}
        return {**row, **self.evaluate.texts[number], "prediction": named(prediction), "reference": named(reference)}

    def tokenize(self, tokenizer: Any, limit: int | None = None) -> tuple[TokenizedTexts, TokenizedTexts]:
        """Return the training and the evaluation texts as token ids.

        `limit` is the longest text that the model takes, in tokens; None asks the tokenizer. Raises UserError if texts
        are longer and data.max_length does not cut them, or if it cuts to more than the limit or to nothing.
        """
        if limit is None and tokenizer.model_max_length < 10**9:  # a tokenizer that knows no limit says 10**30
            limit = int(tokenizer.model_max_length)
        cut = self.max_length
        added = tokenizer.num_special_tokens_to_add(pair=len(self.text_columns) > 1)
        if problems := cut_problems("max_length", cut, limit, added):
            raise UserError(*problems)
        digests = (self.training_digest, text_digest(self.evaluate.texts))
        splits = (self.train, self.evaluate)
        train, evaluate = (
            TokenizedTexts(tokenize(split.texts, tokenizer, cut, digest), split.labels)
            for split, digest in zip(splits, digests, strict=True)
        )
        full = [tokenized.tokens.full_lengths for tokenized in (train, evaluate)]
        for split, lengths in zip(splits, full, strict=True):
            problems += length_problems(split.name, split.rows, "max_length", cut, limit, lengths)
        if problems:
            raise UserError(*problems)
        self.summary["lengths"] = length_fact(np.concatenate(full), "texts", cut)
        return train, evaluate


def cut_problems(flag: str, cut: int | None, limit: int | None, added: int) -> list[str]:
    """Say what is wrong with the length that texts are to be cut to.

    Args:
        flag: the setting that says it, without "data.".
        cut: the length in tokens; None where nothing is cut.
        limit: the longest text that the model takes; None if any will do.
        added: tokens that the tokenizer adds to each text.
    """
    if cut is not None and limit is not None and cut > limit:
        return [f"data.{flag} is {cut}, but the model takes at most {limit} tokens; give {limit} or less"]
    if cut is not None and cut <= added:
        return [
            f"data.{flag} is {cut}, and the tokenizer adds {added} token{'s' * (added > 1)} of its own to each text, so "
            f"that nothing of it would be left; give at least {added + 1}"
        ]
    return []


def length_problems(
    name: str, rows: Array, flag: str, cut: int | None, limit: int | None, lengths: Array
) -> Iterator[str]:
    """Yield which texts are too long for the model, and which have no token at all.

    Args:
        name: what they are.
        rows: the number that each had in the data.
        flag: the setting that cuts them, without "data.".
        cut: what they are cut to, in tokens; None where nothing is cut.
        limit: the longest text that the model takes; None if any will do.
        lengths: tokens of each text before it was cut.
    """
    if cut is None and limit is not None and (lengths > limit).any():
        yield (
            f"{name}: {row_numbers(rows[lengths > limit])} longer than the {limit} tokens that the model takes (the "
            f"longest has {lengths.max():,}); cut them with --data.{flag} {limit}"
        )
    if not lengths.all():
        yield (
            f"{name}: {row_numbers(rows[lengths == 0])} without a single token; the tokenizer knows nothing in there: "
            "remove these rows, or take another tokenizer"
        )


def length_fact(lengths: Array, what: str, cut: int | None) -> str:
    """Return a line for the plan on texts of so many tokens each, before they were cut; `what` they are."""
    line = f"{np.median(lengths):.0f} tokens in the middle, {lengths.max():,} at most"
    return line if cut is None else f"{line}; {(lengths > cut).sum():,} of {len(lengths):,} {what} cut to {cut}"
