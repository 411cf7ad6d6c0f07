"""Pairs of a source and a target text after they were read: token ids, batches, references and baselines."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from toolkit.data.cache import digest_of
from toolkit.data.reading import DataRead, TableRows
from toolkit.data.text_columns import TextColumn, tokenize_columns
from toolkit.data.tokenized import TokenizedDataset

if TYPE_CHECKING:
    import torch

    from toolkit.task import Postprocessed

COMMON = 0.01
"""The share of the training rows from which on the most frequent target is worth being guessed."""


class TargetSide:
    """A tokenizer as it takes targets: some give them other special tokens than sources, or another vocabulary."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def __call__(self, texts: list[str], **settings: Any) -> Any:
        """Return the token ids of targets."""
        return self._tokenizer(text_target=texts, **settings)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)


@dataclass(frozen=True)
class Pairs(DataRead):
    """Training and evaluation pairs, in the columns that `read_pairs` makes."""

    train: TableRows
    evaluate: TableRows
    prefix: str
    """What stands before each source."""
    max_length: int | None
    """What longer sources are truncated to, in tokens; None truncates none."""
    max_target_length: int | None
    """The same for targets."""

    def training_texts(self) -> Iterator[str]:
        """Yield every source and target to train on, to train a tokenizer on; few are in memory at once."""
        return self.train.select("source", "target").texts()

    @cached_property
    def training_digest(self) -> str:
        """A hash of the training texts: the key under which a tokenizer that was trained on them can be kept."""
        return self.train.select("source", "target").digest

    def tokenize(self, tokenizer: Any, limit: int | None = None) -> tuple[TokenizedDataset, TokenizedDataset]:
        """Return training and evaluation samples: "source" and "target", what the tokenizer made of each.

        `limit` is the longest text that the model takes, in tokens; None if any will do. Raises UserError if texts are
        longer and are not to be truncated, or are to be truncated to more than that or to nothing.
        """
        columns = {
            "source": TextColumn(
                ["source"],
                tokenizer,
                self.max_length,
                limit,
                what="sources",
                line="source lengths",
                of=", source",
                key="source",
            ),
            "target": TextColumn(
                ["target"],
                TargetSide(tokenizer),
                self.max_target_length,
                limit,
                flag="max_target_length",
                what="targets",
                line="target lengths",
                of=", target",
                key="target",
            ),
        }
        train, evaluate = (
            TokenizedDataset(
                tokens,
                {},
                tokens["source"].lengths + tokens["target"].lengths,
                digest_of(tokens["source"].content, tokens["target"].content),
            )
            for tokens in tokenize_columns(self.train, self.evaluate, columns, self.summary)
        )
        return train, evaluate

    def source(self, number: int) -> str:
        """Return an evaluation source as it was given, without the prefix."""
        text: str = self.evaluate.table[number]["source"]
        return text.removeprefix(self.prefix)

    @cached_property
    def references(self) -> list[list[str]]:
        """All targets of the evaluation rows, row by row."""
        return list(self.evaluate.table["references"])

    def copies(self) -> list[str]:
        """Return what a model would answer that copies the source; names and numbers are often right."""
        return [self.source(number) for number in range(len(self.evaluate))]

    def trivial_summaries(self) -> list[str]:
        """Return what a summary would be that took no understanding.

        Where one training target is frequent it is that, for every source; else the first words of the source, as many
        as a training target has in the middle.
        """
        targets = list(self.train.table["target"])
        text, count = Counter(targets).most_common(1)[0]
        if count > max(1, COMMON * len(targets)):
            return [text] * len(self.evaluate)
        words = int(np.median([len(target.split()) for target in targets]))
        return [" ".join(source.split()[:words]) for source in self.copies()]

    def postprocess(self, written: Mapping[int, str], baseline: Sequence[str]) -> "Postprocessed":
        """Return what the metrics take: the texts that a model wrote, and the references of each.

        Args:
            written: by the number of the evaluation pair.
            baseline: what a trivial model would answer to each evaluation source.
        """
        from toolkit.task import Postprocessed

        return Postprocessed(
            list(written.values()),
            [self.references[number] for number in written],
            [baseline[number] for number in written],
            samples=list(written),
        )

    def show(self, number: int, written: str, references: list[str]) -> dict[str, Any]:
        """Return what a reader sees of an evaluated pair; see `Task.show`."""
        row = {"row": int(self.evaluate.rows[number]) + 1}
        return {**row, "source": self.source(number), "prediction": written, "references": references}


def pad_pairs(tokenizer: Any) -> Callable[[list[dict[str, Any]]], "dict[str, torch.Tensor]"]:
    """Return a collate function: samples of `Pairs.tokenize` to int64 tensors of shape (samples, longest of them).

    These are "input_ids", "attention_mask" and "labels". The padding is always on the right, where positions that are
    counted from the left do not move.

    Raises:
        UserError: the tokenizer has no padding token.
    """
    from toolkit.data.collate import pad, pad_rows, padding_token
    from toolkit.losses import NOT_COUNTED

    fillers = {"input_ids": padding_token(tokenizer, "texts")}

    def collate(samples: list[dict[str, Any]]) -> "dict[str, torch.Tensor]":
        labels = pad_rows([sample["target"]["input_ids"] for sample in samples], NOT_COUNTED)
        return {**pad([sample["source"] for sample in samples], fillers), "labels": labels}

    return collate
