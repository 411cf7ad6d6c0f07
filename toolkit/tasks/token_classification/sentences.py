"""Tagged sentences after they were read: what a recipe asks of them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from toolkit.data.reading import row_numbers
from toolkit.data.tokenized import ROWS_AT_ONCE
from toolkit.errors import UserError
from toolkit.task import Postprocessed, TaskData
from toolkit.tasks.token_classification.rows import TaggedRows
from toolkit.tasks.token_classification.schemes import OUTSIDE, Kind, entities
from toolkit.tasks.token_classification.windows import TaggedWindows, added_tokens, tokenize_words, words_digest

if TYPE_CHECKING:
    from toolkit.tasks.token_classification.data import TaggedTexts

USUAL_LENGTH = 512
"""Tokens of a window where neither the configuration nor the tokenizer knows a limit."""


@dataclass(frozen=True, kw_only=True)
class TaggedData(TaskData):
    """The data of a task that tags words."""

    train: TaggedWindows
    evaluate: TaggedWindows


@dataclass(frozen=True)
class TaggedSentences:
    """Training and evaluation sentences with numbered tags."""

    kind: Kind
    labels: list[str]
    """The name of each tag id."""
    train: TaggedRows
    evaluate: TaggedRows
    config: "TaggedTexts"
    summary: dict[str, str]
    """Lines for the plan."""
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

    def tokenize(self, tokenizer: Any) -> TaggedData:
        """Return the sentences as windows of tokens.

        Raises:
            UserError: a window would hold nothing or more than the model takes, or words are longer than a window and
                data.max_length does not ask to truncate them.
        """
        max_length, overlap = self._sizes(tokenizer)
        room = max_length - added_tokens(tokenizer)
        parts, problems, truncated = [], [], 0
        for rows, digest in ((self.train, self.training_digest), (self.evaluate, words_digest(self.evaluate))):
            parts.append(windows := tokenize_words(rows, tokenizer, max_length, overlap, digest))
            long = np.flatnonzero(windows.longest > room)
            truncated += len(long)
            if len(long) and self.config.max_length is None:
                problems.append(
                    f"{rows.name}: a word of more tokens than the model takes at once ({room}; the longest has "
                    f"{windows.longest.max():,}) in {row_numbers(rows.rows[long])}; correct these words, or keep the "
                    f"first tokens of each with --data.max_length {max_length}"
                )
        if problems:
            raise UserError(*problems)
        several = sum(int((np.bincount(windows.sentence) > 1).sum()) for windows in parts)
        summary = {
            "windows": f"{sum(map(len, parts)):,} of at most {max_length} tokens; {several:,} sentences need several, "
            f"which share {overlap} tokens"
        }
        if truncated:
            summary["windows"] += f"; {truncated:,} sentences have a word that is cut to a window"
        if lost := sum(int(windows.lost.sum()) for windows in parts):
            summary["unreadable"] = (
                f"{lost:,} words that the tokenizer makes nothing of: no loss, and always predicted as "
                f"{self.commonest!r}"
            )
        return TaggedData(
            train=parts[0],
            evaluate=parts[1],
            files=self.files,
            workers=self.config.workers,
            summary=self.summary | summary,
        )

    def _sizes(self, tokenizer: Any) -> tuple[int, int]:
        """Return the tokens of a window, and those that neighbours share."""
        limit = int(tokenizer.model_max_length)
        known = limit < 10**9  # a tokenizer that knows no limit says 10**30
        max_length = self.config.max_length or (limit if known else USUAL_LENGTH)
        added = added_tokens(tokenizer)
        if known and max_length > limit:
            raise UserError(
                f"data.max_length is {max_length}, but the model takes at most {limit} tokens; give {limit} or less"
            )
        if max_length <= added:
            raise UserError(
                f"data.max_length is {max_length}, and the tokenizer adds {added} tokens of its own to each window, so "
                f"that nothing would be left; give at least {added + 1}"
            )
        room, overlap = max_length - added, self.config.overlap
        if overlap is not None and overlap >= room:
            raise UserError(
                f"data.overlap is {overlap}, but a window has room for {room} token{'s' * (room > 1)}; give less than "
                "that, or null for a quarter"
            )
        return max_length, min(max_length // 4 if overlap is None else overlap, room - 1)

    def postprocess(self, windows: TaggedWindows, predictions: Mapping[int, Any]) -> Postprocessed:
        """Return tags by sentence, and how sure the model is of them.

        `predictions` are of each window (2, its words): the tag ids, and their probabilities.
        """
        rows = windows.rows
        names = np.array(self.labels, dtype=object)
        tags = np.full(len(rows.tags), self.labels.index(self.commonest), dtype=np.int64)
        sure = np.full(len(tags), np.nan)  # stays so for words that the tokenizer makes nothing of
        for window, (predicted, probable) in predictions.items():
            words = windows.words(window)
            tags[words], sure[words] = np.asarray(predicted, dtype=np.int64), probable
        inside = [slice(first, last) for first, last in zip(rows.starts[:-1], rows.starts[1:], strict=True)]
        references = [names[rows.tags[one]].tolist() for one in inside]
        known = [one[~np.isnan(one)] for one in (sure[words] for words in inside)]
        scores = [{"lowest": float(one.min()), "mean": float(one.mean())} if len(one) else {} for one in known]
        baseline = [[self.commonest] * len(one) for one in references]
        return Postprocessed([names[tags[one]].tolist() for one in inside], references, baseline, scores)

    def show(self, sentence: int, predicted: Sequence[str], expected: Sequence[str]) -> dict[str, Any]:
        """Return what a reader sees of an evaluated sentence: its entities, or its words with their tags."""
        words = self.evaluate.words[sentence]["tokens"]
        shown = {"row": int(self.evaluate.rows[sentence]) + 1, "text": " ".join(words)}
        if self.kind == "bio":
            return {**shown, "predicted": entities(words, predicted), "expected": entities(words, expected)}
        tagged = list(zip(words, predicted, expected, strict=True))
        return {
            **shown,
            "predicted": " ".join(f"{word}/{tag}" for word, tag, _ in tagged),
            "wrong": [f"{word} is {right}, not {tag}" for word, tag, right in tagged if tag != right],
        }
