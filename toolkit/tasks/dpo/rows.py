"""Rows of preference data as pairs, of texts or of messages, and every way in which a row can be wrong."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from typing import Any, NamedTuple, Self

import numpy as np

from toolkit.data.cache import digest_of
from toolkit.data.labels import Array
from toolkit.data.reading import Checked, TableRows
from toolkit.data.tokenized import ROWS_AT_ONCE
from toolkit.tasks.conversations.messages import Unusable, UnusableRows, messages_of

NO_PROMPT = "without a prompt; give one, or leave the row out"
NO_CHOSEN = "whose chosen side is empty; give a text that is better than the other"
NO_REJECTED = "whose rejected side is empty; give a text that is worse than the other"
EQUAL = "whose chosen and rejected side are equal, so that there is nothing to prefer; remove them"
NO_ANSWER = "with a conversation that does not end in a message of the assistant; remove what comes after it"
NO_TURN = (
    "with a conversation that has nothing before the assistant's answer; add what it answers, or give its column with "
    "--data.prompt"
)
NO_QUESTION = (
    "whose prompt ends with a message of the assistant, so that the two sides answer nothing; remove that message"
)
OTHER_PROMPTS = (
    "whose chosen and rejected conversation differ before the last answer; only answers to the same can be compared"
)
OTHER_COLUMN = "whose prompt is not how their conversations begin; give another column with --data.prompt, or remove it"


class Pair(NamedTuple):
    """Two completions of one prompt: texts, or (the prompt) messages and (the completions) a message each."""

    prompt: Any
    """None where both sides are whole texts."""
    chosen: Any
    rejected: Any


@dataclass(frozen=True)
class PairRows(TableRows):
    """Rows that are pairs, in the columns chosen, rejected and, where there is one, prompt."""

    prompts: Array
    """The number of each row's prompt: equal where the prompts are."""

    def take(self, rows: Array, name: str | None = None) -> Self:
        """Return these rows, in this order, under another name if one is given."""
        return replace(super().take(rows, name), prompts=self.prompts[rows])

    def columns(self) -> Iterator[list[Any]]:
        """Yield the columns of some rows at a time."""
        for batch in self.table.with_format("arrow").iter(ROWS_AT_ONCE):
            yield from (column.to_pylist() for column in batch.columns)

    def texts(self) -> Iterator[str]:
        """Yield every text, to train a tokenizer on."""
        for column in self.columns():
            for cell in column:
                yield from texts_in(cell)

    @cached_property
    def digest(self) -> str:
        """A hash of the content; about 1 s for 100 MB."""
        state = blake2b(digest_size=16)
        for column in self.columns():
            state.update(json.dumps(column).encode())
        return digest_of(self.table.column_names, len(self.rows), state.hexdigest())


def check_pairs(name: str, table: Any) -> Checked[PairRows]:
    """Look at every row of a `datasets.Dataset` with the columns chosen, rejected and maybe prompt."""
    known: dict[bytes, int] = {}
    unusable = UnusableRows()
    prompts = np.full(len(table), -1)
    for row, read in enumerate(pairs_of(table)):
        if isinstance(read, str):
            unusable.add(row, read)
            continue
        # Without prompts each row is a case of its own.
        prompt = str(row) if read.prompt is None else repr(read.prompt)
        key = blake2b(prompt.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        prompts[row] = known.setdefault(key, len(known))
    return unusable.without(PairRows(name, table, np.arange(len(table)), prompts))


def pairs_of(table: Any) -> Iterator[Pair | str]:
    """Yield each row as a pair, or what is wrong with it; few are in memory at once."""
    for batch in table.with_format("arrow").iter(ROWS_AT_ONCE):
        columns = {name: batch.column(name).to_pylist() for name in batch.column_names}
        chosen, rejected = columns["chosen"], columns["rejected"]
        for row in range(len(chosen)):
            prompt = (columns["prompt"][row],) if "prompt" in columns else ()
            if any(isinstance(part, list | dict) for part in (chosen[row], rejected[row], *prompt)):
                yield pair_of_messages(chosen[row], rejected[row], *prompt)
            else:
                yield pair_of_texts(chosen[row], rejected[row], *prompt)


def pair_of_texts(chosen: str | None, rejected: str | None, *prompt: str | None) -> Pair | str:
    """Return two texts as a pair, with the prompt that they complete where there is one, or what is wrong with them."""
    if prompt and not (prompt[0] or "").strip():
        return NO_PROMPT
    if not (chosen or "").strip():
        return NO_CHOSEN
    if not (rejected or "").strip():
        return NO_REJECTED
    return EQUAL if chosen == rejected else Pair(prompt[0] if prompt else None, chosen, rejected)


def pair_of_messages(chosen: Any, rejected: Any, *prompt: Any) -> Pair | str:
    """Return two conversations that differ in their last message as a pair, or what is wrong with them.

    The prompt may be in both conversations, or in a column of its own as a text or as messages, or both. A side may
    also be its last message alone, or the text of that message.
    """
    if not as_messages(chosen, "assistant"):
        return NO_CHOSEN
    if not as_messages(rejected, "assistant"):
        return NO_REJECTED
    try:
        sides = [messages_of(as_messages(side, "assistant")) for side in (chosen, rejected)]
        before = messages_of(as_messages(prompt[0], "user")) if prompt else []
    except Unusable as problem:
        return str(problem)
    if any(messages[-1]["role"] != "assistant" for messages in sides):
        return NO_ANSWER
    (first, better), (second, worse) = ((messages[:-1], messages[-1]) for messages in sides)
    if first != second:
        return OTHER_PROMPTS
    if not first:
        first = before
        if first and first[-1]["role"] == "assistant":
            return NO_QUESTION
    # A prompt next to whole conversations repeats one of their messages, with a system message before it or without.
    elif before and first[-len(before) :] != before and before[-1] not in first:
        return OTHER_COLUMN
    if not first:
        return NO_PROMPT if prompt else NO_TURN
    return EQUAL if better == worse else Pair(first, better, worse)


def as_messages(cell: Any, role: str) -> Any:
    """Return the messages of a cell: a list of them, a single one, a text as a message of `role`, or none."""
    if cell is None or (isinstance(cell, str) and not cell.strip()):
        return []
    if isinstance(cell, str):
        return [{"role": role, "content": cell}]
    return [cell] if isinstance(cell, dict) else cell


def texts_in(cell: Any) -> list[str]:
    """Return the texts of a cell of a pair that was checked: the cell itself, or the contents of its messages."""
    return [cell] if isinstance(cell, str) else [entry["content"] for entry in messages_of(as_messages(cell, ""))]
