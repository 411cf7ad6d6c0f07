"""Texts that are to become vectors, read and checked: one to three in a sample; their token ids and their batches."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np

from toolkit.data.cache import digest_of
from toolkit.data.labels import Array
from toolkit.data.reading import DataRead, TableRows
from toolkit.data.text_columns import TextColumn, length_limit, tokenize_columns
from toolkit.data.tokenized import TokenizedDataset

if TYPE_CHECKING:
    import torch

Kind = Literal["scores", "positives", "labels"]
Sample = dict[str, Any]

SIDES = ("anchor", "positive", "negative")
"""The columns of a sample that hold texts; of texts with labels the first alone, until it gets a partner."""


@dataclass(frozen=True)
class EmbeddingRows(TableRows):
    """Rows of one to three texts, for training or for evaluation."""

    identities: Array
    """What tells texts apart, int64 (rows, columns): the id of a text's label, or a hash of the text."""
    scores: Array | None = None
    """How alike the texts of each pair are."""

    def take(self, rows: Array, name: str | None = None) -> Self:
        """Return these rows, in this order, under another name if one is given."""
        scores = None if self.scores is None else self.scores[rows]
        return replace(super().take(rows, name), identities=self.identities[rows], scores=scores)


@dataclass(frozen=True)
class EmbeddingTexts(DataRead):
    """Training and evaluation texts, read and checked."""

    kind: Kind
    train: EmbeddingRows
    """Its scores go from 0 to 1."""
    evaluate: EmbeddingRows
    max_length: int | None
    """What longer texts are truncated to, in tokens; None truncates nothing."""
    labels: list[str]
    """The name of each label id; empty where the texts have none."""

    @property
    def columns(self) -> list[str]:
        """The columns of the texts."""
        names: list[str] = self.train.table.column_names
        return names

    def training_texts(self) -> Iterator[str]:
        """Yield every training text, to train a tokenizer on."""
        for column in self.columns:
            yield from self.train.select(column).texts()

    @cached_property
    def training_digest(self) -> str:
        """A hash of the training texts."""
        digests = [self.train.select(column).digest for column in self.columns]
        return digests[0] if len(digests) == 1 else digest_of(digests)

    def tokenize(self, tokenizer: Any) -> tuple[TokenizedDataset, TokenizedDataset]:
        """Return training and evaluation samples: "row", a column of `SIDES` for each text, "identities", and "score".

        Raises:
            UserError: texts are longer than the model takes and not truncated, or hold no token.
        """
        several = len(self.columns) > 1
        columns = {
            side: TextColumn(
                [column],
                tokenizer,
                self.max_length,
                length_limit(tokenizer),
                line=f"lengths of {column}" if several else "lengths",
                of=f", column {column!r}" if several else "",
            )
            for side, column in zip(SIDES, self.columns, strict=False)
        }
        tokens = tokenize_columns(self.train, self.evaluate, columns, self.summary)
        train, evaluate = (
            self._dataset(rows, list(texts), list(texts.values()))
            for rows, texts in zip((self.train, self.evaluate), tokens, strict=True)
        )
        return train, evaluate

    def _dataset(self, rows: EmbeddingRows, sides: list[str], tokens: list[Any]) -> TokenizedDataset:
        one_each = np.arange(len(rows) + 1, dtype=np.int64)
        digests = [
            digest_of(side.content, "single", self.labels, rows.identities[:, number], one_each)
            for number, side in enumerate(tokens)
        ]
        values = {"row": one_each[:-1], "identities": rows.identities}
        if rows.scores is not None:
            values["score"] = rows.scores
        # The texts of a sample stand in one batch, padded to the longest of them at best.
        lengths = np.max([side.lengths for side in tokens], axis=0)
        texts = dict(zip(sides, tokens, strict=True))
        return TokenizedDataset(texts, values, lengths, digest_of(digests, rows.scores))

    def too_few(self) -> Iterator[str]:
        """Yield a sentence for each part of the data that has no negatives, so that nothing can be learned."""
        if self.kind == "scores":
            return
        for rows, more in ((self.train, ""), (self.evaluate, " or data.eval")):
            anchors, *others = rows.identities.T
            counts = np.unique(anchors, return_counts=True)[1]
            if self.kind == "labels" and (len(counts) < 2 or counts.max() < 2):
                yield (
                    f"{rows.name}: no text has both another one of its label and one of another label, so there is "
                    f"nothing to tell apart; give more rows{more}"
                )
            elif self.kind == "positives" and len(self.columns) > 2 and rows is self.train:
                continue  # its rows bring negatives
            elif self.kind == "positives" and (
                all_related(anchors, others[0]) or (rows is self.evaluate and all_right(anchors, others[0]))
            ):
                yield (
                    f"{rows.name}: every positive belongs to every anchor, so there is no negative among them; "
                    f"give more rows{more}"
                )

    def text(self, row: int, side: int) -> str:
        """Return a text of the evaluation."""
        return str(self.evaluate.table[row][self.columns[side]])


class Partners:
    """Gives a text a second one of the same label: what texts with labels are learned from."""

    def __init__(self, train: TokenizedDataset, labels: Array) -> None:
        """Take the training samples, and the label id of each."""
        self.train = train
        self.rows = np.argsort(labels, kind="stable")
        self.starts = np.searchsorted(labels[self.rows], np.arange(labels.max() + 2))

    def of_the_others(self, sample: Sample, generator: np.random.Generator) -> Sample:
        """Return a training sample with another training text of its label, each of them equally likely."""
        rows = self.rows_like(sample)
        # One of the others: where the draw falls on the text itself or beyond, the next one is taken.
        place = int(generator.integers(len(rows) - 1))
        return self.joined(sample, rows[place + (place >= int(np.searchsorted(rows, sample["row"])))])

    def of_all(self, sample: Sample, generator: np.random.Generator) -> Sample:
        """Return an evaluation sample with a training text of its label."""
        rows = self.rows_like(sample)
        return self.joined(sample, rows[int(generator.integers(len(rows)))])

    def rows_like(self, sample: Sample) -> Array:
        """Return the numbers of the texts with the label of a sample, in ascending order."""
        label = sample["identities"][0]
        return self.rows[self.starts[label] : self.starts[label + 1]]

    def joined(self, sample: Sample, row: int) -> Sample:
        """Return a sample with a training text as its positive."""
        (partner,) = self.train.fetch([int(row)])
        identities = [*sample["identities"], *partner["identities"]]
        return {**sample, "positive": partner["anchor"], "identities": identities}


def all_related(anchors: Array, positives: Array) -> bool:
    """Return whether any two pairs have a text in common, so that none can be the other's negative."""
    pairs = np.sort(np.stack([anchors, positives], axis=1), axis=1)
    texts, counts = np.unique(pairs, return_counts=True)
    carried = counts[np.searchsorted(texts, pairs)].sum(axis=1)
    _, alike, doubled = np.unique(pairs, axis=0, return_inverse=True, return_counts=True)
    # Pairs of the same two texts were counted by both of them.
    return bool((carried - doubled[alike.reshape(-1)] == len(pairs)).all())


def all_right(anchors: Array, positives: Array) -> bool:
    """Return whether a search would have nothing to find: each positive is a right answer to each anchor, or itself."""
    candidates = np.unique(positives)
    names, right = np.unique(np.unique(np.stack([anchors, positives]), axis=1)[0], return_counts=True)
    return bool((right + np.isin(names, candidates) == len(candidates)).all())


def pad_sides(tokenizer: Any) -> Callable[[list[Sample]], "dict[str, torch.Tensor]"]:
    """Return a collate function: all texts of all samples in tensors of shape (samples x sides, longest of them).

    A sample's texts stand together, so that one pass through the model takes them all. Next to them are "identities",
    int64 (samples, sides), and, where samples have one, "scores", float32 (samples,).
    """
    import torch

    from toolkit.batch_layout import ROW_SAMPLES
    from toolkit.data.collate import fillers_of, pad

    fillers = fillers_of(tokenizer, "texts")

    def collate(samples: list[Sample]) -> "dict[str, torch.Tensor]":
        texts = [sample[side] for sample in samples for side in SIDES if side in sample]
        batch = pad(texts, fillers, tokenizer.padding_side)
        batch["identities"] = torch.tensor([sample["identities"] for sample in samples], dtype=torch.int64)
        batch[ROW_SAMPLES] = torch.arange(len(samples)).repeat_interleave(len(texts) // len(samples))
        if "score" in samples[0]:
            batch["scores"] = torch.tensor([sample["score"] for sample in samples], dtype=torch.float32)
        return batch

    return collate
