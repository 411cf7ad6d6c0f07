"""Conversations as token ids, with a label for every token that the model is to learn to emit, and for no other."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from toolkit.data.cache import digest_of, once_per_machine
from toolkit.data.labels import Array
from toolkit.data.reading import row_numbers
from toolkit.data.tokenized import ROWS_AT_ONCE, tokenizer_digest, write_tokens
from toolkit.errors import UserError
from toolkit.losses import NOT_COUNTED
from toolkit.tasks.conversations.rows import Rows, Unusable
from toolkit.tasks.conversations.template import ChatTemplate, Rendered

FORMAT = 1
"""Part of every key in the cache: to be raised when what is written below changes."""


class TokenizedConversations:
    """A `Source` of token ids and labels; both stay on the disk and are mapped into memory."""

    def __init__(self, folder: Path, rows: Rows) -> None:
        from datasets import Dataset

        self.rows = rows
        self._tokens = Dataset.from_file(str(folder / "tokens.arrow"))
        self._content: str = json.loads((folder / "content.json").read_text(encoding="utf-8"))["digest"]
        self.all_lengths: Array = np.load(folder / "full_lengths.npy")
        """Tokens of each conversation before it was cut."""
        self.ends_of_turns: list[int] = np.load(folder / "ends.npy").tolist()
        """The tokens that end a turn of the assistant: what tells that a reply is complete."""
        self.labelled: Array = np.load(folder / "labelled.npy")
        """Tokens of each conversation that carry loss, after it was cut."""
        self._lengths: Array = np.load(folder / "lengths.npy")
        # What was cut before the first reply has nothing to learn from: its units would be none.
        self.kept: Array = np.flatnonzero(self.labelled)

    def __len__(self) -> int:
        return len(self.kept)

    @property
    def dropped(self) -> int:
        """Conversations of which the cut left no token that carries loss."""
        return len(self.labelled) - len(self.kept)

    @cached_property
    def whole(self) -> np.ndarray[Any, Any]:
        """Whether each sample was left uncut."""
        return np.asarray(self._lengths == self.all_lengths)[self.kept]

    def fetch(self, ids: Sequence[int]) -> list[dict[str, Any]]:
        """Return samples: "input_ids", and "labels" of the same length, `NOT_COUNTED` where a token carries none."""
        if not len(ids):
            return []
        columns = self._tokens[self.kept[np.asarray(ids)].tolist()]
        return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]

    def lengths(self, ids: Array) -> Array:
        """Return the number of tokens of each sample (int64)."""
        return np.asarray(self._lengths[self.kept[np.asarray(ids)]])

    def digest(self) -> str:
        """Return a hash of the token ids and labels."""
        return self._content

    def label_counts(self, vocabulary: int) -> Array:
        """Return how often each token of the vocabulary carries loss."""
        counts = np.zeros(vocabulary, dtype=np.int64)
        for batch in self._tokens.with_format("arrow").iter(ROWS_AT_ONCE):
            labels = batch["labels"].combine_chunks().flatten().to_numpy()
            counts += np.bincount(labels[labels != NOT_COUNTED], minlength=vocabulary)
        return counts


def tokenize(rows: Rows, template: ChatTemplate, max_length: int | None) -> TokenizedConversations:
    """Return the conversations as token ids, made once per machine; about 0.3 ms each the first time.

    Raises:
        UserError: the template can't be used for some of them; the message names their rows.
    """
    added = (template.source, template.loss_on, max_length, dict(template.tokenizer.special_tokens_map))
    key = digest_of("conversations", FORMAT, rows.digest, tokenizer_digest(template.tokenizer), *added)

    def build(folder: Path) -> None:
        labelled: list[int] = []
        ends: set[int] = set()
        write_tokens(_batches(rows, template, max_length, labelled, ends), folder)
        np.save(folder / "labelled.npy", np.array(labelled))
        np.save(folder / "ends.npy", np.array(sorted(ends)))

    return TokenizedConversations(once_per_machine("conversations", key, build), rows)


def label(text: Rendered, ids: Sequence[int], ends: Array, marks: set[int], tagged: bool) -> np.ndarray[Any, Any]:
    """Return which tokens carry loss.

    A token does if its last character stands in a reply. The mark that ends the turn does, wherever generation tags put
    it, and blank space after it does not: the model that has emitted the mark is asked for no more.

    Args:
        text: the conversation.
        ids: its tokens.
        ends: the character after the last one of each token.
        marks: tokens that are never part of what somebody says.
        tagged: whether the replies were found by generation tags.

    Raises:
        Unusable: a reply has no token, or its turn is ended by no mark.
    """
    carries = np.zeros(len(ids), dtype=bool)
    for start, end in text.replies:
        inside = np.flatnonzero((ends > start) & (ends <= end))
        if not len(inside):
            raise Unusable("with a reply of which the chat template and the tokenizer leave no token")
        last = int(inside[-1])
        found = next((place for place in reversed(inside.tolist()) if ids[place] in marks), None)
        if found is not None and not text.text[ends[found] : end].strip():
            last = found
        elif tagged and last + 1 < len(ids) and ids[last + 1] in marks:
            last += 1
        carries[inside[0] : last + 1] = True
    if ids[last] not in marks:
        raise Unusable(
            "where the chat template writes no mark of the tokenizer's own after the last reply, so that a model could not "
            "learn to stop; write {{ eos_token }} there (data.chat_template FILE)"
        )
    return carries


def _batches(
    rows: Rows, template: ChatTemplate, max_length: int | None, labelled: list[int], ends_of_turns: set[int]
) -> Iterator[tuple[dict[str, list[list[int]]], Array]]:
    """Yield token ids and labels, and how many there were before the cut; fills the counts of labels and the ends of turns."""
    tokenizer = template.tokenizer
    marks = set(tokenizer.added_tokens_decoder) | set(tokenizer.all_special_ids)
    wrong: dict[str, list[int]] = {}
    row = 0
    for conversations in rows.batches():
        texts: list[Rendered | None] = []
        for number, conversation in enumerate(conversations, start=row):
            try:
                texts.append(template.render(conversation))
            except Unusable as problem:
                wrong.setdefault(str(problem), []).append(number)
                texts.append(None)
        good = [text for text in texts if text is not None]
        encoded = encode(tokenizer, [text.text for text in good])
        made: dict[str, list[list[int]]] = {"input_ids": [], "labels": []}
        numbers = (number for number, text in enumerate(texts, start=row) if text is not None)
        for number, text, ids, ends in zip(numbers, good, *encoded, strict=True):
            try:
                carries = label(text, ids, ends, marks, template.tagged)
            except Unusable as problem:
                wrong.setdefault(str(problem), []).append(number)
                continue
            ends_of_turns.add(ids[int(np.flatnonzero(carries)[-1])])
            made["input_ids"].append(ids[:max_length])
            made["labels"].append(np.where(carries, ids, NOT_COUNTED)[:max_length].tolist())
        row += len(conversations)
        # Nothing of a data set with a bad row is kept, but all its rows are looked at.
        if not wrong:
            labelled.extend(sum(one != NOT_COUNTED for one in sample) for sample in made["labels"])
            yield made, np.array([len(ids) for ids in encoded[0]], dtype=np.int64)
    if wrong:
        found = ((rows.numbers[np.array(numbers)], problem) for problem, numbers in wrong.items())
        raise UserError(*(f"{rows.name}: {row_numbers(numbers)} {problem}" for numbers, problem in found))


def encode(tokenizer: Any, texts: list[str]) -> tuple[list[list[int]], list[Array]]:
    """Return the tokens of each text, and the character after the last one of each token; templates write special tokens."""
    if not texts:
        return [], []
    encoded = tokenizer(
        texts,
        add_special_tokens=False,
        return_offsets_mapping=True,
        return_attention_mask=False,
        padding=False,
        truncation=False,
        verbose=False,
    )
    ends = [np.array([end for _, end in offsets], dtype=np.int64) for offsets in encoded["offset_mapping"]]
    return [list(ids) for ids in encoded["input_ids"]], ends


@dataclass(frozen=True)
class Prepared:
    """Training and evaluation samples, and what the plan says of them."""

    train: TokenizedConversations
    evaluate: TokenizedConversations
    summary: dict[str, str]


def prepare(train: Rows, evaluate: Rows, template: ChatTemplate, max_length: int | None, limit: int | None) -> Prepared:
    """Return both as tokens.

    `limit` is the longest conversation that the model takes, in tokens, if it is known.

    Raises:
        UserError: conversations are longer and `max_length` does not cut them, or it leaves nothing of all of them.
    """
    if max_length is not None and limit is not None and max_length > limit:
        raise UserError(
            f"data.max_length is {max_length}, but the model takes at most {limit} tokens; give {limit} or less"
        )
    sources: list[TokenizedConversations] = []
    problems: list[str] = []
    for rows in (train, evaluate):
        try:
            source = tokenize(rows, template, max_length)
        except UserError as error:
            problems += error.problems
            continue
        sources.append(source)
        long = source.all_lengths > limit if limit is not None and max_length is None else np.zeros(0, dtype=bool)
        if long.any():
            problems.append(
                f"{rows.name}: {row_numbers(rows.numbers[long])} longer than the {limit} tokens that the model takes (the "
                f"longest has {source.all_lengths.max()}); cut them with --data.max_length {limit}"
            )
        if not len(source):
            problems.append(
                f"{rows.name}: data.max_length {max_length} cuts every conversation before its first reply; give more"
            )
    if problems:
        raise UserError(*problems)
    full = np.concatenate([source.all_lengths for source in sources])
    carrying, kept = (
        sum(int(source.labelled.sum()) for source in sources),
        sum(int(source._lengths.sum()) for source in sources),
    )
    prepared = Prepared(sources[0], sources[1], {})
    lengths = f"{np.median(full):.0f} tokens in the middle, {full.max()} at most"
    if max_length is not None:
        lengths += f"; {(full > max_length).sum():,} of {len(full):,} conversations cut to {max_length}"
        if dropped := sum(source.dropped for source in sources):
            lengths += f", and {dropped:,} left out of which no reply is left"
    how = "the template's generation tags" if template.tagged else "comparing each prompt with what follows"
    marks = " or ".join(template.tokenizer.convert_ids_to_tokens(sources[0].ends_of_turns))
    prepared.summary["lengths"] = lengths
    prepared.summary["loss"] = (
        f"{carrying:,} of {kept:,} tokens ({carrying / kept:.0%}): {'every reply' if template.loss_on == 'all' else 'the last reply'} "
        f"up to its {marks}; replies found by {how}"
    )
    return prepared
