"""Questions with their contexts as windows of tokens: made once per machine, mapped into memory, padded to batches."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from toolkit.data.cache import digest_of, once_per_machine
from toolkit.data.collate import fillers_of, pad
from toolkit.data.labels import Array
from toolkit.data.tokenized import WrittenTokens, settings_kept, tokenizer_digest, write_tokens
from toolkit.errors import UserError
from toolkit.tasks.question_answering.checks import QuestionSet

FORMAT = 1
"""Part of every key in the cache: to be raised when what is written below changes."""
AT_ONCE = 500
"""Questions that are tokenized, or windows whose offsets are read, at one time."""
EXTRA = ("begins", "ends", "context", "labels", "question")
"""Columns of a window next to the model's inputs: of each token of the context where its characters begin and end; the
first token of the context in the window and the first after it; the first and the last token of the answer, both 0
where the answer is not in the window; the number of the question and the tokens of its answer."""
NOT_INPUTS = ("context", "first", "labels")
"""What a batch holds next to the model's inputs: `context`, bool (windows, tokens), the tokens of the context; `first`,
int64 (windows), the place of the first token; `labels`, int64 (windows, 2), the first and last token of the answer."""


@dataclass(frozen=True)
class WindowSize:
    """How contexts are divided into windows."""

    max_length: int
    """Tokens of a window at most, the question and special tokens included."""
    stride: int
    """Tokens of the context that two neighbours share."""


class QuestionWindows:
    """A `Source` of windows; the tokens stay on the disk and are mapped into memory.

    Loss and units are counted per window: a question counts as often as its context has windows.
    """

    def __init__(self, folder: Path, questions: QuestionSet) -> None:
        self.questions = questions
        self._tokens = WrittenTokens(folder, without=("begins", "ends", "question"))
        self._digest = digest_of(folder.name, questions.digest)
        self._question, self._labels = (_pairs(self._tokens.table, column) for column in ("question", "labels"))
        self.question_of: Array = self._question[:, 0]
        """The number of each window's question."""

    def __len__(self) -> int:
        return len(self._tokens)

    def fetch(self, ids: Sequence[int]) -> list[dict[str, Any]]:
        """Return samples: what the tokenizer made of a window, the places of context and answer ("labels")."""
        return self._tokens.fetch(np.asarray(ids).tolist())

    def lengths(self, ids: Array) -> Array:
        """Return the number of tokens of each window (int64)."""
        return np.asarray(self._tokens.lengths[np.asarray(ids)])

    def context(self, question: int) -> str:
        """Return the context of a question."""
        return self.questions.context(question)

    def digest(self) -> str:
        """Return a hash of the tokens, answers and references."""
        return self._digest

    @property
    def windowed(self) -> int:
        """How many questions have several windows."""
        return int((np.bincount(self.question_of) > 1).sum())

    def out_of_reach(self, max_tokens: int) -> int:
        """Return how many questions have an answer of more than `max_tokens` tokens, or one that no window holds."""
        answered = self._question[:, 1] > 0
        found = np.unique(self.question_of[answered & (self._labels[:, 0] > 0) & (self._question[:, 1] <= max_tokens)])
        return len(np.setdiff1d(self.question_of[answered], found))

    def characters(self, windows: Array, spans: Array) -> Array:
        """Return where the characters of spans begin and end in the context: (windows, 2).

        `spans` holds the first and the last token of a span in each of `windows`, (windows, 2).
        """
        found = np.empty((len(windows), 2), dtype=np.int64)
        for start in range(0, len(windows), AT_ONCE):
            part = slice(start, start + AT_ONCE)
            rows = self._tokens.table.select_columns(["begins", "ends", "context"])[windows[part].tolist()]
            for row, (begin, end) in enumerate(spans[part].tolist()):
                first = rows["context"][row][0]
                found[start + row] = rows["begins"][row][begin - first], rows["ends"][row][end - first]
        return found


def question_windows(questions: QuestionSet, tokenizer: Any, size: WindowSize) -> QuestionWindows:
    """Return the windows of questions. Costs about 0.5 ms a question the first time, little from then on.

    Raises:
        UserError: the tokenizer does not say which characters a token stands for or has no token for "not in here", or
            a question leaves no room for the context.
    """
    check_windows(tokenizer)
    key = digest_of("questions", FORMAT, questions.digest, tokenizer_digest(tokenizer), size.max_length, size.stride)

    def build(folder: Path) -> None:
        with settings_kept(tokenizer):
            write_tokens(_batches(questions, tokenizer, size), folder)

    return QuestionWindows(once_per_machine("tokens", key, build), questions)


def _batches(
    questions: QuestionSet, tokenizer: Any, size: WindowSize
) -> Iterator[tuple[dict[str, list[list[int]]], Array]]:
    """Yield windows by column, and how many tokens the question has with its whole context."""
    crowded: list[int] = []
    silent: list[int] = []
    for start in range(0, len(questions), AT_ONCE):
        numbers = range(start, min(start + AT_ONCE, len(questions)))
        asked = [questions.questions[number] for number in numbers]
        contexts = [questions.context(number) for number in numbers]
        columns: dict[str, list[list[int]]] = {}
        full: list[int] = []
        found = windows_of(tokenizer, asked, contexts, questions.spans[start : numbers.stop], size)
        for number, (tokens_in_context, windows) in zip(numbers, found, strict=True):
            if not tokens_in_context:
                silent.append(number)
                continue
            if not windows:
                crowded.append(number)
            for window in windows:
                window["question"][0] = number
                for name, values in window.items():
                    columns.setdefault(name, []).append(values)
            full += [tokens_in_context] * len(windows)
        # After a problem nothing is kept: no need to write more, only to find the others.
        if full and not crowded and not silent:
            yield columns, np.array(full, dtype=np.int64)
    wrong = {
        f"with a question so long that a window of {size.max_length} tokens has no more than the {size.stride} for the "
        "context that two windows share; shorten it, give a larger data.max_length, or a smaller data.stride": crowded,
        "with a context of which the tokenizer knows nothing; remove it, or take another tokenizer": silent,
    }
    if problems := [f"{questions.name}: {questions.named(found)} {words}" for words, found in wrong.items() if found]:
        raise UserError(*problems)


def windows_of(
    tokenizer: Any, questions: Sequence[str], contexts: Sequence[str], spans: Array, size: WindowSize
) -> Iterator[tuple[int, list[dict[str, list[int]]]]]:
    """Yield for each question the tokens of its context, and its windows; none where no room is left for the context.

    `spans` says where the answers begin and end in the contexts, (questions, 2), or -1.
    """
    encoded = tokenizer(
        list(questions),
        list(contexts),
        padding=False,
        truncation=False,
        return_attention_mask=False,
        return_offsets_mapping=True,
        verbose=False,
    )
    offsets = encoded.pop("offset_mapping")
    for row, span in enumerate(spans):
        tokens = {name: list(encoded[name][row]) for name in encoded}
        inside = np.flatnonzero(np.array([part == 1 for part in encoded.sequence_ids(row)]))
        if not len(inside):
            yield 0, []
            continue
        bounds = np.array(offsets[row], dtype=np.int64)[inside]
        yield len(inside), list(_windows(tokens, (int(inside[0]), int(inside[-1]) + 1), bounds, span, size))


def check_windows(tokenizer: Any) -> None:
    """Check that a tokenizer can make windows of questions.

    Raises:
        UserError: it does not say which characters a token stands for, or has no token for "not in here".
    """
    kind = type(tokenizer).__name__
    if not getattr(tokenizer, "is_fast", False):
        raise UserError(
            f"the tokenizer ({kind}) does not say which characters of the context a token stands for (it is not a fast "
            "one), so that no answer can be cut out; give a model with a tokenizer.json"
        )
    if tokenizer("a", "b").sequence_ids(0)[0] is not None:
        raise UserError(
            f"the tokenizer ({kind}) puts no special token before the question, which is to stand for 'the answer is "
            "not in this window'; give a model whose inputs begin with one, such as a BERT, RoBERTa or ModernBERT"
        )


def _windows(
    tokens: dict[str, list[int]], context: tuple[int, int], bounds: Array, span: Array, size: WindowSize
) -> Iterator[dict[str, list[int]]]:
    """Yield the windows of a question, as the tokenizer would make them; none if it leaves no room for the context.

    Args:
        tokens: the question with its whole context, by name of the input.
        context: the first of its tokens that belongs to the context, and the first after them.
        bounds: where the characters of the context's tokens begin and end, (tokens, 2).
        span: where those of the answer do, or -1.
        size: how it is divided.
    """
    first, stop = context
    total = len(tokens["input_ids"])
    count = stop - first
    room = size.max_length - (total - count)
    if count > room and room <= size.stride:
        return
    # The tokens that share a character with the answer.
    begin = int(np.searchsorted(bounds[:, 1], span[0], side="right"))
    end = int(np.searchsorted(bounds[:, 0], span[1], side="left")) - 1
    exists = span[0] >= 0 and begin <= end
    for start in range(0, count, max(room - size.stride, 1)):
        last = min(start + room, count)
        here = exists and start <= begin and end < last
        yield {
            **{name: ids[:first] + ids[first + start : first + last] + ids[stop:] for name, ids in tokens.items()},
            "begins": bounds[start:last, 0].tolist(),
            "ends": bounds[start:last, 1].tolist(),
            "context": [first, first + last - start],
            "labels": [first + begin - start, first + end - start] if here else [0, 0],
            # An answer that the tokenizer drops altogether is longer than any window.
            "question": [0, end - begin + 1 if exists else count + 1 if span[0] >= 0 else 0],
        }
        if last == count:
            return


def _pairs(tokens: Any, column: str) -> Array:
    """Return a column that holds two numbers in each row."""
    values = tokens.data.column(column).combine_chunks().flatten().to_numpy()
    return np.asarray(values, dtype=np.int64).reshape(-1, 2)


def pad_windows(tokenizer: Any) -> Callable[[list[dict[str, Any]]], dict[str, torch.Tensor]]:
    """Return a collate function: windows to tensors of shape (windows, tokens of the longest).

    They are padded on the tokenizer's side. Besides the model's inputs there is what `NOT_INPUTS` names.

    Raises:
        UserError: the tokenizer has no padding token.
    """
    fillers, side = fillers_of(tokenizer, "windows"), tokenizer.padding_side

    def collate(samples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        inputs = pad(samples, fillers, side)
        width = inputs["input_ids"].shape[1]
        first = torch.tensor([width - len(sample["input_ids"]) if side == "left" else 0 for sample in samples])
        begin, end = (torch.tensor([sample["context"] for sample in samples]) + first[:, None]).T[..., None]
        place = torch.arange(width)
        labels = torch.tensor([sample["labels"] for sample in samples]) + first[:, None]
        return {**inputs, "context": (begin <= place) & (place < end), "first": first, "labels": labels}

    return collate
