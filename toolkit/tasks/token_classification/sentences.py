"""Tagged sentences after they were read: what a recipe asks of them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from toolkit.data.reading import row_numbers
from toolkit.data.tokenized import ROWS_AT_ONCE
from toolkit.errors import UserError
from toolkit.task import Postprocessed
from toolkit.tasks.token_classification.reading import TaggedRows
from toolkit.tasks.token_classification.schemes import OUTSIDE, Kind, entities
from toolkit.tasks.token_classification.windows import TaggedWindows, frame_of, tokenize_words, words_digest

USUAL_LENGTH = 512
"""Tokens of a window where neither the configuration nor the tokenizer knows a limit."""


@dataclass(frozen=True)
class TaggedSentences:
    """Training and evaluation sentences with numbered tags."""

    kind: Kind
    labels: list[str]
    """The name of each tag id."""
    train: TaggedRows
    evaluate: TaggedRows
    max_length: int | None
    overlap: int | None
    summary: dict[str, str]
    """Lines for the plan; `tokenize` adds some on windows and words."""
    files: tuple[Path, ...] = ()
    """The local files that were read."""

    def training_texts(self) -> Iterator[str]:
        """Yield every training sentence, to train a tokenizer on; few are in memory at once."""
        for batch in self.train.words.with_format("arrow").iter(ROWS_AT_ONCE):
            for words in batch.column(0).to_pylist():
                yield " ".join(words)

    @cached_property
    def training_digest(self) -> str:
        """A hash of the training words: the key under which a tokenizer that was trained on them can be kept."""
        return words_digest(self.train)

    @cached_property
    def commonest(self) -> str:
        """The tag that stands for not knowing: O, or of plain tags the one that most training words have."""
        if self.kind == "bio":
            return OUTSIDE
        return self.labels[int(np.bincount(self.train.tags, minlength=len(self.labels)).argmax())]

    def tokenize(self, tokenizer: Any) -> tuple[TaggedWindows, TaggedWindows]:
        """Return the training and the evaluation sentences as windows of token ids.

        Raises UserError if a window would hold nothing or more than the model takes, or if words are longer than a window and
        data.max_length does not ask to cut them.
        """
        length, overlap = self._sizes(tokenizer)
        digests = (self.training_digest, words_digest(self.evaluate))
        splits = (self.train, self.evaluate)
        train, evaluate = (
            tokenize_words(rows, tokenizer, length, overlap, digest)
            for rows, digest in zip(splits, digests, strict=True)
        )
        room = length - added_tokens(tokenizer)
        problems, cut, lost, several = [], 0, 0, 0
        for windows in (train, evaluate):
            long = np.flatnonzero(windows.longest > room)
            if len(long) and self.max_length is None:
                problems.append(
                    f"{windows.rows.name}: a word of more tokens than the model takes at once ({room}; the longest has "
                    f"{windows.longest.max():,}) in {row_numbers(windows.rows.rows[long])}; correct these words, or keep the first "
                    f"tokens of each with --data.max_length {length}"
                )
            cut += len(long)
            lost += int(windows.lost.sum())
            several += int((np.bincount(windows.sentence) > 1).sum())
        if problems:
            raise UserError(*problems)
        total = len(train) + len(evaluate)
        line = f"{total:,} of at most {length} tokens; {several:,} sentences need several, which share {overlap} tokens"
        self.summary["windows"] = line + (f"; {cut:,} sentences have a word that is cut to a window" if cut else "")
        if lost:
            self.summary["unreadable"] = (
                f"{lost:,} words that the tokenizer makes nothing of: no loss, and always predicted as {self.commonest!r}"
            )
        return train, evaluate

    def _sizes(self, tokenizer: Any) -> tuple[int, int]:
        """Return the tokens of a window, and those that neighbours share."""
        limit = int(tokenizer.model_max_length)
        known = limit < 10**9  # a tokenizer that knows no limit says 10**30
        length = self.max_length or (limit if known else USUAL_LENGTH)
        added = added_tokens(tokenizer)
        if known and length > limit:
            raise UserError(
                f"data.max_length is {length}, but the model takes at most {limit} tokens; give {limit} or less"
            )
        if length <= added:
            raise UserError(
                f"data.max_length is {length}, and the tokenizer adds {added} tokens of its own to each window, so that "
                f"nothing would be left; give at least {added + 1}"
            )
        overlap = length // 4 if self.overlap is None else self.overlap
        room = length - added
        if self.overlap is not None and overlap >= room:
            raise UserError(
                f"data.overlap is {overlap}, but a window has room for {room} token{'s' * (room > 1)}; give less than that, or null for a quarter"
            )
        return length, min(overlap, room - 1)

    def postprocess(self, windows: TaggedWindows, predictions: Mapping[int, Any]) -> Postprocessed:
        """Return tags by sentence, and how sure the model is of them.

        `predictions` are of each window (2, its words): the tag ids, and their probabilities.
        """
        rows = windows.rows
        names = np.array(self.labels, dtype=object)
        tags = np.full(len(rows.tags), self.labels.index(self.commonest), dtype=np.int64)
        sure = np.full(len(tags), np.nan)  # stays so for words that the tokenizer makes nothing of
        for window, (predicted, probable) in predictions.items():
            words = rows.starts[windows.sentence[window]] + windows.words(window)
            tags[words], sure[words] = np.asarray(predicted, dtype=np.int64), probable
        inside = [slice(first, last) for first, last in zip(rows.starts[:-1], rows.starts[1:], strict=True)]
        wanted = [names[rows.tags[one]].tolist() for one in inside]
        known = [one[~np.isnan(one)] for one in (sure[words] for words in inside)]
        scores = [{"lowest": float(one.min()), "mean": float(one.mean())} if len(one) else {} for one in known]
        baseline = [[self.commonest] * len(one) for one in wanted]
        return Postprocessed([names[tags[one]].tolist() for one in inside], wanted, baseline, scores)

    def show(self, sentence: int, predicted: Sequence[str], wanted: Sequence[str]) -> dict[str, Any]:
        """Return what a reader sees of an evaluated sentence: its entities, or its words with their tags."""
        words = self.evaluate.words[sentence]["tokens"]
        row = int(self.evaluate.rows[sentence]) + 1
        if self.kind == "bio":
            return {
                "row": row,
                "text": " ".join(words),
                "predicted": entities(words, predicted),
                "expected": entities(words, wanted),
            }
        pairs = list(zip(words, predicted, wanted, strict=True))
        wrong = [f"{word} is {expected}, not {tag}" for word, tag, expected in pairs if tag != expected]
        return {
            "row": row,
            "text": " ".join(words),
            "predicted": " ".join(f"{word}/{tag}" for word, tag, _ in pairs),
            "wrong": wrong,
        }


def added_tokens(tokenizer: Any) -> int:
    """Return the number of special tokens that a window gets."""
    return len(frame_of(tokenizer)[0]["input_ids"]) - 1
