"""Texts that are to become vectors: one to three in a sample, tokenized once per machine; and how a batch of them is padded."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from toolkit.data.cache import digest_of
from toolkit.data.labels import Array
from toolkit.data.texts import Texts
from toolkit.data.tokenized import TokenizedTexts, pad_texts
from toolkit.errors import UserError
from toolkit.tasks.sentence_embedding.rows import Kind

if TYPE_CHECKING:
    import torch

Sample = dict[str, Any]


class EmbeddingSource:
    """A `Source` of samples of one or more texts, each with its identity, and a score where there is one."""

    def __init__(self, sides: Sequence[TokenizedTexts], scores: Array | None = None) -> None:
        self.sides = sides
        self.scores = scores
        self.identities = np.stack([np.asarray(side.labels.values) for side in sides], axis=1)
        """Shape (samples, sides): a label, or a hash of the text."""

    def __len__(self) -> int:
        return len(self.identities)

    def fetch(self, ids: Sequence[int]) -> list[Sample]:
        """Return samples: "id", "sides" (what the tokenizer made of each text, and its identity as "label"), and "score"."""
        fetched = zip(*(side.fetch(ids) for side in self.sides), strict=True)
        samples: list[Sample] = [
            {"id": int(row), "sides": list(sides)} for row, sides in zip(ids, fetched, strict=True)
        ]
        if self.scores is not None:
            for sample in samples:
                sample["score"] = float(self.scores[sample["id"]])
        return samples

    def lengths(self, ids: Array) -> Array:
        """Return the tokens of the longest text of each sample (int64), to which the others are padded at best."""
        longest: Array = np.max([side.lengths(ids) for side in self.sides], axis=0)
        return longest

    def digest(self) -> str:
        """Return a hash of token ids, identities and scores."""
        return digest_of([side.digest() for side in self.sides], self.scores)


class Partners:
    """Gives a text a second one of the same label: what texts with labels are learned from."""

    def __init__(self, source: EmbeddingSource) -> None:
        self.source = source
        labels = source.identities[:, 0]
        self.rows = np.argsort(labels, kind="stable")
        self.starts = np.searchsorted(labels[self.rows], np.arange(labels.max() + 2))

    def of_the_others(self, sample: Sample, generator: np.random.Generator) -> Sample:
        """Return a training sample with another training text of its label, each of them equally likely."""
        rows = self.rows_like(sample)
        # One of the others: where the draw falls on the text itself or beyond, the next one is taken.
        place = int(generator.integers(len(rows) - 1))
        return self.joined(sample, rows[place + (place >= int(np.searchsorted(rows, sample["id"])))])

    def of_all(self, sample: Sample, generator: np.random.Generator) -> Sample:
        """Return an evaluation sample with a training text of its label."""
        rows = self.rows_like(sample)
        return self.joined(sample, rows[int(generator.integers(len(rows)))])

    def rows_like(self, sample: Sample) -> Array:
        """Return the numbers of the texts with the label of a sample, in ascending order."""
        label = sample["sides"][0]["label"]
        return self.rows[self.starts[label] : self.starts[label + 1]]

    def joined(self, sample: Sample, row: int) -> Sample:
        """Return a sample with one more side."""
        (partner,) = self.source.fetch([int(row)])
        return {**sample, "sides": [*sample["sides"], *partner["sides"]]}


@dataclass(frozen=True)
class EmbeddingTexts:
    """Training and evaluation texts, read and checked."""

    kind: Kind
    sides: tuple[Texts, ...]
    """The texts of each side, whose labels are their identities."""
    scores: tuple[Array, Array] | None
    """From 0 to 1, for training and for evaluation."""
    summary: dict[str, str]
    """Lines for the plan; `tokenize` adds some on the lengths."""
    files: tuple[Path, ...]

    def training_texts(self) -> Iterator[str]:
        """Yield every training text, to train a tokenizer on."""
        for side in self.sides:
            yield from side.training_texts()

    @cached_property
    def training_digest(self) -> str:
        """A hash of the training texts."""
        digests = [side.training_digest for side in self.sides]
        return digests[0] if len(digests) == 1 else digest_of(digests)

    def tokenize(self, tokenizer: Any) -> tuple[EmbeddingSource, EmbeddingSource]:
        """Return the training and the evaluation samples.

        Raises:
            UserError: texts are longer than the model takes and not cut, or hold no token.
        """
        tokenized: list[tuple[TokenizedTexts, TokenizedTexts]] = []
        problems: list[str] = []
        for side in self.sides:
            try:
                tokenized.append(side.tokenize(tokenizer))
                name = "lengths" if len(self.sides) == 1 else f"lengths of {side.columns.text}"
                self.summary[name] = side.summary["lengths"]
            except UserError as error:
                problems += error.problems
        if problems:
            raise UserError(*dict.fromkeys(problems))
        train, evaluate = zip(*tokenized, strict=True)
        scores = self.scores or (None, None)
        return EmbeddingSource(train, scores[0]), EmbeddingSource(evaluate, scores[1])

    def too_few(self) -> Iterator[str]:
        """Yield a sentence for each part of the data in which nothing can be told from anything else."""
        if self.kind == "scores":
            return
        for part in ("train", "evaluate"):
            splits = [getattr(side, part) for side in self.sides[:2]]
            counts = np.unique(splits[0].labels.values, return_counts=True)[1]
            if self.kind == "labels" and (len(counts) < 2 or counts.max() < 2):
                yield (
                    f"{splits[0].name}: no text has both another one of its label and one of another label, so there is nothing "
                    "to tell apart; give more rows" + (" or data.eval" if part == "evaluate" else "")
                )
            elif self.kind == "positives" and (len(self.sides) < 3 or part == "evaluate"):
                anchors, positives = (split.labels.values for split in splits)
                if all_related(anchors, positives) or (part == "evaluate" and all_right(anchors, positives)):
                    yield (
                        f"{splits[0].name}: every positive belongs to every anchor, so there is no negative among them; "
                        "give more rows" + (" or data.eval" if part == "evaluate" else "")
                    )

    def text(self, row: int, side: int) -> str:
        """Return a text of the evaluation."""
        return str(self.sides[side].evaluate.texts[row][self.sides[side].columns.text])


def all_related(anchors: Array, positives: Array) -> bool:
    """Return whether any two pairs have a text in common, so that none can be the other's negative."""
    pairs = np.sort(np.stack([anchors, positives], axis=1), axis=1)
    texts, counts = np.unique(pairs, return_counts=True)
    carried = counts[np.searchsorted(texts, pairs)].sum(axis=1)
    _, alike, doubled = np.unique(pairs, axis=0, return_inverse=True, return_counts=True)
    # Pairs of the same two texts were counted by both of them.
    return bool((carried - doubled[alike.reshape(-1)] == len(pairs)).all())


def all_right(anchors: Array, positives: Array) -> bool:
    """Return whether a search would have nothing to find: each positive is a right answer to each anchor, or the anchor itself."""
    candidates = np.unique(positives)
    names, right = np.unique(np.unique(np.stack([anchors, positives]), axis=1)[0], return_counts=True)
    return bool((right + np.isin(names, candidates) == len(candidates)).all())


def pad_sides(tokenizer: Any) -> Callable[[list[Sample]], "dict[str, torch.Tensor]"]:
    """Return a collate function: all texts of all samples in tensors of shape (samples x sides, longest of them).

    A sample's texts lie together, so that one pass through the model takes them all. Beside them are "identities", int64
    (samples, sides), and, where samples have one, "scores", float32 (samples,).
    """
    import torch

    pad = pad_texts(tokenizer, "single")

    def collate(samples: list[Sample]) -> "dict[str, torch.Tensor]":
        batch = pad([side for sample in samples for side in sample["sides"]])
        batch["identities"] = batch.pop("labels").view(len(samples), -1)
        if "score" in samples[0]:
            batch["scores"] = torch.tensor([sample["score"] for sample in samples], dtype=torch.float32)
        return batch

    return collate
