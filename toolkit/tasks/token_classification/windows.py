"""Sentences of words as windows of token ids: made once per machine, mapped into memory, padded to batches.

A sentence that is too long for the model is not truncated: overlapping windows cover it, and each word belongs to the
one in which it has the most context. The label of a word stands at the first of its tokens.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from toolkit.data.cache import digest_of, once_per_machine
from toolkit.data.collate import fillers_of, pad
from toolkit.data.labels import Array
from toolkit.data.tokenized import WrittenTokens, settings_kept, tokenizer_digest, write_tokens
from toolkit.errors import UserError
from toolkit.losses import NOT_COUNTED
from toolkit.tasks.token_classification.rows import TaggedRows

FORMAT = 1
"""Part of every key in the cache: to be raised when what is written below changes."""


class TaggedWindows:
    """A `Source` of windows with a label for each word that belongs to them; the token ids stay on the disk."""

    def __init__(self, folder: Path, rows: TaggedRows) -> None:
        self.rows = rows
        self._tokens = WrittenTokens(folder)
        self.sentence: Array = np.load(folder / "sentence.npy", mmap_mode="r")
        """Which sentence each window is of."""
        self.longest: Array = np.load(folder / "longest.npy", mmap_mode="r")
        """Tokens of the longest word of each sentence, before it was truncated."""
        self.lost: Array = np.load(folder / "lost.npy", mmap_mode="r")
        """Words of each sentence that the tokenizer makes nothing of."""

    def __len__(self) -> int:
        return len(self._tokens)

    def fetch(self, ids: Sequence[int]) -> list[dict[str, Any]]:
        """Return samples: token ids (lists, no padding), and "labels" of the same length.

        A label is `NOT_COUNTED` where no word is predicted: further tokens of a word, special tokens, words that belong
        to another window.
        """
        samples = self._tokens.fetch(np.asarray(ids).tolist())
        for window, sample in zip(ids, samples, strict=True):
            word = np.array(sample.pop("word"))
            tags = self.rows.tags[self.rows.starts[self.sentence[window]] + np.maximum(word, 0)]
            sample["labels"] = np.where(word >= 0, tags, NOT_COUNTED).tolist()
        return samples

    def words(self, window: int) -> Array:
        """Return the places in `rows.tags` of the words that a window has labels for, in their order."""
        word = np.asarray(self._tokens.fetch([window])[0]["word"])
        places: Array = self.rows.starts[self.sentence[window]] + word[word >= 0]
        return places

    def lengths(self, ids: Array) -> Array:
        """Return the number of tokens of each sample (int64)."""
        return np.asarray(self._tokens.lengths[np.asarray(ids)])

    def digest(self) -> str:
        """Return a hash of the token ids and labels."""
        rows = self.rows
        return digest_of(self._tokens.content, np.asarray(self.sentence), rows.names, rows.tags, rows.starts)


def windows_of(counts: Array, room: int, overlap: int) -> tuple[list[tuple[int, int]], Array]:
    """Return windows of whole words, and the window that each word belongs to.

    Args:
        counts: tokens of each word, none with more than `room`.
        room: the most tokens of a window.
        overlap: the most tokens that two neighbours share, below `room`.

    A window is the numbers of its first word and of the one after its last. A word belongs to the window in which it
    has the most context on the side where it has less; where the sentence begins or ends nothing is missing.
    """
    ends = np.cumsum(counts)
    begins = ends - counts
    words = len(counts)
    windows: list[tuple[int, int]] = []
    most = np.full(words, -1.0)
    owner = np.zeros(words, dtype=np.int64)
    first = 0
    while True:
        last = int(np.searchsorted(ends, begins[first] + room, side="right"))
        inside = slice(first, last)
        left = begins[inside] - begins[first] if first else np.full(last - first, np.inf)
        right = ends[last - 1] - ends[inside] if last < words else np.full(last - first, np.inf)
        context = np.minimum(left, right)
        better = context > most[inside]
        most[inside] = np.where(better, context, most[inside])
        owner[inside] = np.where(better, len(windows), owner[inside])
        windows.append((first, last))
        if last == words:
            return windows, owner
        # The next one shares what it may, and has room for the word after this one.
        lowest = max(ends[last - 1] - overlap, ends[last] - room)
        first = int(np.searchsorted(begins, lowest, side="left"))


def prepare_for_words(tokenizer: Any) -> Any:
    """Return a tokenizer that takes lists of words as it takes a text with spaces.

    Those of GPT-2's kind (RoBERTa, ModernBERT) mark a word's beginning by the space before it; without this they would
    take each word of a list for the start of a text, which is another token. The setting is saved with the tokenizer.
    """
    from tokenizers import pre_tokenizers

    if not getattr(tokenizer, "is_fast", False):
        return tokenizer
    backend = tokenizer.backend_tokenizer
    state = json.loads(backend.to_str())["pre_tokenizer"] or {}
    steps = state.get("pretokenizers", [state])
    if any(step.get("type") == "ByteLevel" and not step["add_prefix_space"] for step in steps):
        outer = backend.pre_tokenizer
        if state["type"] == "ByteLevel":
            backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=state["use_regex"])
        else:
            for number, step in enumerate(steps):
                if step["type"] == "ByteLevel":
                    outer[number].add_prefix_space = True
            backend.pre_tokenizer = outer
        tokenizer.init_kwargs["add_prefix_space"] = True
        tokenizer.add_prefix_space = True
    return tokenizer


def tokens_of_words(tokenizer: Any, sentences: list[list[str]]) -> Iterator[tuple[Array, Array]]:
    """Yield the token ids of each sentence, without special tokens, and how many of them each of its words has."""
    settings = {
        "is_split_into_words": True,
        "add_special_tokens": False,
        "return_attention_mask": False,
        "verbose": False,
    }
    if getattr(tokenizer, "is_fast", False):
        encoded = tokenizer(sentences, **settings)
        for number, (ids, words) in enumerate(zip(encoded["input_ids"], sentences, strict=True)):
            of = np.array(encoded.word_ids(number), dtype=np.int64)
            yield np.array(ids, dtype=np.int64), np.bincount(of, minlength=len(words))
        return
    # A tokenizer in Python does not know which word a token is of, but it takes each word for itself.
    known: dict[str, list[int]] = {}
    for words in sentences:
        for word in words:
            if word not in known:
                known[word] = tokenizer([word], **settings)["input_ids"]
        ids = [token for word in words for token in known[word]]
        yield np.array(ids, dtype=np.int64), np.array([len(known[word]) for word in words], dtype=np.int64)


def frame_of(tokenizer: Any) -> tuple[dict[str, list[int]], int]:
    """Return what the tokenizer makes of one token between special ones, by name, and the place of that token."""
    whole = tokenizer(["a"], is_split_into_words=True, return_attention_mask=False)
    inner = list(tokenizer(["a"], is_split_into_words=True, add_special_tokens=False)["input_ids"])
    ids = list(whole["input_ids"])
    for place in range(len(ids) - len(inner) + 1 if inner else 0):
        if ids[place : place + len(inner)] == inner:
            names = [name for name in whole if name != "attention_mask"]
            return {name: [*whole[name][: place + 1], *whole[name][place + len(inner) :]] for name in names}, place
    raise UserError(
        f"the tokenizer ({type(tokenizer).__name__}) does not take lists of words; take a model with another tokenizer"
    )


def added_tokens(tokenizer: Any) -> int:
    """Return the number of special tokens that a window gets."""
    return len(frame_of(tokenizer)[0]["input_ids"]) - 1


def tokenize_words(rows: TaggedRows, tokenizer: Any, max_length: int, overlap: int) -> TaggedWindows:
    """Return the windows of sentences, of at most `max_length` tokens with special ones; neighbours share `overlap`.

    A word with more tokens than a window has room for keeps the first of them. About 0.2 ms a sentence the first time,
    nothing from then on.
    """
    key = digest_of("windows", FORMAT, rows.digest, tokenizer_digest(tokenizer), max_length, overlap)

    def build(folder: Path) -> None:
        with settings_kept(tokenizer):
            found: dict[str, list[int]] = {"sentence": [], "longest": [], "lost": []}
            write_tokens(_batches(rows, tokenizer, max_length, overlap, found), folder)
            for name, values in found.items():
                np.save(folder / f"{name}.npy", np.array(values, dtype=np.int64))

    return TaggedWindows(once_per_machine("windows", key, build), rows)


def _batches(
    rows: TaggedRows, tokenizer: Any, max_length: int, overlap: int, found: dict[str, list[int]]
) -> Iterator[tuple[dict[str, list[list[int]]], Array]]:
    """Yield what each window holds, by name, and add to `found` what is known of windows and sentences."""
    frame, place, room = frame_of_windows(tokenizer, max_length)
    for sentences in rows.sentences():
        columns: dict[str, list[list[int]]] = {name: [] for name in frame}
        for ids, counts in tokens_of_words(tokenizer, sentences):
            sentence = len(found["longest"])
            found["longest"].append(int(counts.max()))
            found["lost"].append(int((counts == 0).sum()))
            for inner, word in word_windows(ids, counts, room, overlap):
                for name, values in framed(inner, word, frame, place).items():
                    columns[name].append(values)
                found["sentence"].append(sentence)
        if columns["word"]:
            yield columns, np.array([len(word) for word in columns["word"]], dtype=np.int64)
    if not found["sentence"]:
        raise UserError(f"{rows.name}: the tokenizer knows nothing in any word; take another tokenizer, or other data")


def frame_of_windows(tokenizer: Any, max_length: int) -> tuple[dict[str, list[int]], int, int]:
    """Return what stands around the tokens of a window, by name and with "word", the place of these, and their room."""
    frame, place = frame_of(tokenizer)
    frame["word"] = [-1] * len(frame["input_ids"])
    return frame, place, max_length - len(frame["input_ids"]) + 1


def framed(inner: Array, word: Array, frame: dict[str, list[int]], place: int) -> dict[str, list[int]]:
    """Return a window as the model takes it, by name, and with "word", the word that each token predicts, or -1."""
    own = {"input_ids": inner.tolist(), "word": word.tolist()}
    return {
        name: [*values[:place], *own.get(name, [values[place]] * len(inner)), *values[place + 1 :]]
        for name, values in frame.items()
    }


def word_windows(ids: Array, counts: Array, room: int, overlap: int) -> Iterator[tuple[Array, Array]]:
    """Yield the token ids of each window of a sentence, and the word that each token predicts, or -1.

    `ids` are those of the sentence, and `counts` how many of them each of its words has. Windows in which no word is
    predicted are left out: those of words that the tokenizer makes nothing of.
    """
    within = np.arange(len(ids)) - np.repeat(np.cumsum(counts) - counts, counts)
    ids, within, counts = ids[within < room], within[within < room], np.minimum(counts, room)
    ends = np.cumsum(counts)
    word_of = np.repeat(np.arange(len(counts)), counts)
    windows, owner = windows_of(counts, room, overlap)
    for number, (first, last) in enumerate(windows):
        inside = slice(int(ends[first] - counts[first]), int(ends[last - 1]))
        word = np.where((within[inside] == 0) & (owner[word_of[inside]] == number), word_of[inside], -1)
        if (word >= 0).any():
            yield ids[inside], word


def pad_words(tokenizer: Any) -> Callable[[list[dict[str, Any]]], dict[str, torch.Tensor]]:
    """Return a collate function: windows to tensors of shape (windows, tokens of the longest), "labels" among them.

    Raises:
        UserError: the tokenizer has no padding token.
    """
    fillers = {**fillers_of(tokenizer, "sentences"), "labels": NOT_COUNTED}
    return partial(pad, fillers=fillers, side=tokenizer.padding_side)
