"""Conversations as token ids, with a label for every token that the model is to learn to emit, and for no other."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from toolkit.batch_layout import note_padding
from toolkit.data.cache import digest_of, once_per_machine
from toolkit.data.collate import pad_rows
from toolkit.data.labels import Array
from toolkit.data.tokenized import ROWS_AT_ONCE, WrittenTokens, tokenizer_digest, write_tokens
from toolkit.errors import UserError
from toolkit.losses import NOT_COUNTED
from toolkit.task import Batch
from toolkit.tasks.conversations.messages import Unusable, UnusableRows
from toolkit.tasks.conversations.template import ChatTemplate, Rendered
from toolkit.tasks.sft.rows import ConversationRows
from toolkit.vocabulary_loss import note_labels

FORMAT = 1
"""Part of every key in the cache: to be raised when what is written below changes."""
FILLERS = {"input_ids": 0, "labels": NOT_COUNTED}


class TokenizedConversations:
    """A `Source` of token ids and labels; both stay on the disk and are mapped into memory."""

    def __init__(self, folder: Path, rows: ConversationRows) -> None:
        """Open what `tokenize` made of these rows."""
        self.rows = rows
        self.tokens = WrittenTokens(folder)
        self.ends_of_turns: list[int] = np.load(folder / "ends.npy").tolist()
        """The tokens that end a turn of the assistant: what tells that a reply is complete."""
        self.labelled: Array = np.load(folder / "labelled.npy")
        """Tokens of each conversation that carry loss, after it was truncated."""
        # A conversation that was truncated before its first reply has no units.
        self.kept: Array = np.flatnonzero(self.labelled)
        """Which rows the samples are."""

    def __len__(self) -> int:
        return len(self.kept)

    @cached_property
    def whole(self) -> Array:
        """Whether each sample was left as long as it was (bool)."""
        return np.asarray(self.tokens.lengths == self.tokens.full_lengths)[self.kept]

    def fetch(self, ids: Sequence[int]) -> list[dict[str, Any]]:
        """Return samples: "input_ids", and "labels" of the same length, `NOT_COUNTED` where a token carries no loss."""
        return self.tokens.fetch(self.kept[np.asarray(ids, dtype=np.int64)].tolist())

    def lengths(self, ids: Array) -> Array:
        """Return the number of tokens of each sample (int64)."""
        return np.asarray(self.tokens.lengths[self.kept[np.asarray(ids)]])

    def digest(self) -> str:
        """Return a hash of the token ids and labels."""
        return self.tokens.content

    def row_numbers(self, ids: Sequence[int]) -> Array:
        """Return the number that the row of each sample had in the data, counted from 0."""
        return np.asarray(self.rows.rows[self.kept[np.asarray(ids)]])

    def label_counts(self, vocabulary: int) -> Array:
        """Return how often each token of the vocabulary carries loss."""
        counts = np.zeros(vocabulary, dtype=np.int64)
        for batch in self.tokens.table.with_format("arrow").iter(ROWS_AT_ONCE):
            labels = batch["labels"].combine_chunks().flatten().to_numpy()
            counts += np.bincount(labels[labels != NOT_COUNTED], minlength=vocabulary)
        return counts


def tokenize(rows: ConversationRows, template: ChatTemplate, max_length: int | None) -> TokenizedConversations:
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


def _batches(
    rows: ConversationRows, template: ChatTemplate, max_length: int | None, labelled: list[int], ends_of_turns: set[int]
) -> Iterator[tuple[dict[str, list[list[int]]], Array]]:
    """Yield token ids and labels, and the full length of each conversation.

    It also fills `labelled` with how many labels each has, and `ends_of_turns` with the tokens that end a reply.
    """
    tokenizer = template.tokenizer
    marks = set(tokenizer.added_tokens_decoder) | set(tokenizer.all_special_ids)
    unusable = UnusableRows()
    first = 0
    for conversations in rows.batches():
        texts: dict[int, Rendered] = {}
        for row, conversation in enumerate(conversations, first):
            with unusable.noted(row):
                texts[row] = template.render(conversation)
        first += len(conversations)
        encoded = encode(tokenizer, [text.text for text in texts.values()])
        made: dict[str, list[list[int]]] = {"input_ids": [], "labels": []}
        for (row, text), ids, ends in zip(texts.items(), *encoded, strict=True):
            with unusable.noted(row):
                carries = label(text, ids, ends, marks, template.tagged)
                ends_of_turns.add(ids[int(np.flatnonzero(carries)[-1])])
                made["input_ids"].append(ids[:max_length])
                made["labels"].append(np.where(carries, ids, NOT_COUNTED)[:max_length].tolist())
        # Nothing of a data set with an unusable row is kept, but all its rows are looked at.
        if not unusable.rows:
            labelled.extend(sum(one != NOT_COUNTED for one in sample) for sample in made["labels"])
            yield made, np.array([len(ids) for ids in encoded[0]], dtype=np.int64)
    if unusable.rows:
        raise UserError(*unusable.problems(rows.name, rows.rows))


def label(text: Rendered, ids: Sequence[int], ends: Array, marks: set[int], tagged: bool) -> Array:
    """Return which tokens carry loss (bool).

    A token does if its last character is in a reply. The mark that ends the turn does, wherever generation tags put
    it, and blank space after it does not: the model that has emitted the mark is asked for no more.

    Args:
        text: the conversation.
        ids: its tokens.
        ends: the character after the last one of each token.
        marks: tokens that are never part of a message's content.
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
            "where the chat template writes no mark of the tokenizer's own after the last reply, so that a model could "
            "not learn to stop; write {{ eos_token }} there (data.chat_template FILE)"
        )
    return carries


def encode(tokenizer: Any, texts: list[str]) -> tuple[list[list[int]], list[Array]]:
    """Return the tokens of each text without added special tokens, and where in the text each token ends."""
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


def pad_conversations(samples: list[dict[str, Any]]) -> Batch:
    """Return int64 tensors, padded on the right: "input_ids", "labels" and "attention_mask", (samples, tokens).

    The values of the padding have no effect: no token attends to what comes after it, and padding carries no loss.
    The batch also has "prompts", how many tokens of each sample precede the reply that is asked for, 0 where none is,
    and what `note_labels` returns of the token after each.
    """
    ids, labels = (pad_rows([s[name] for s in samples], filler) for name, filler in FILLERS.items())
    mask = pad_rows([np.ones(len(sample["input_ids"]), dtype=np.int64) for sample in samples], 0)
    prompts = [reply_span(row.numpy())[0] if s.get("asked") else 0 for row, s in zip(labels, samples, strict=True)]
    return {
        "input_ids": ids,
        "labels": labels,
        "attention_mask": mask,
        "prompts": torch.tensor(prompts),
        **note_padding([len(sample["input_ids"]) for sample in samples]),
        **note_labels(next_labels(labels)),
    }


def next_labels(labels: torch.Tensor) -> torch.Tensor:
    """Return at each place the label of the token after it, (samples, tokens)."""
    return F.pad(labels[:, 1:], (0, 1), value=NOT_COUNTED)


def reply_span(labels: Array) -> tuple[int, int]:
    """Return where the last unbroken run of labels begins and ends: the last reply of a conversation."""
    carrying = np.flatnonzero(labels != NOT_COUNTED)
    gaps = np.flatnonzero(np.diff(carrying) > 1)
    return int(carrying[gaps[-1] + 1 if len(gaps) else 0]), int(carrying[-1]) + 1
