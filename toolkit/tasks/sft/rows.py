"""Rows of a table as conversations: the layouts in which they come, and what can be wrong with one."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Any

import numpy as np

from toolkit.data.cache import digest_of
from toolkit.data.columns import find_column
from toolkit.data.reading import Checked, TableRows, listed
from toolkit.data.tokenized import ROWS_AT_ONCE
from toolkit.errors import UserError
from toolkit.tasks.conversations.messages import (
    Conversation,
    Unusable,
    UnusableRows,
    check_order,
    is_blank,
    message,
    messages_of,
    written_out,
)

MESSAGES_NAMES = (("messages",), ("conversations", "conversation"), ("dialog", "dialogue", "chat", "turns"))
PROMPT_NAMES = (("prompt",), ("instruction", "instructions"), ("question", "query"), ("input", "user"))
COMPLETION_NAMES = (("completion",), ("output", "response", "answer", "reply", "assistant"), ("target",))
CONTEXT_NAMES = (("input", "context"),)
SYSTEM_NAMES = (("system", "system_prompt"),)


@dataclass(frozen=True)
class Layout:
    """Which columns hold a conversation: one with all messages, or a prompt and its completion."""

    messages: str | None = None
    prompt: str | None = None
    completion: str | None = None
    context: str | None = None
    """What the prompt is about, and may be empty: the `input` of instruction data."""
    system: str | None = None
    history: str | None = None
    """Turns before the prompt: lists of what the user and the assistant said, as Alpaca data have them."""

    @property
    def columns(self) -> list[str]:
        """The columns that are read."""
        named = (self.messages, self.system, self.history, self.prompt, self.context, self.completion)
        return [name for name in named if name]

    @property
    def asked(self) -> dict[str, str]:
        """The columns that hold what the model is asked, by the name of the setting."""
        named = {"messages": self.messages, "system": self.system, "prompt": self.prompt, "context": self.context}
        named |= {"history": self.history}
        return {name: column for name, column in named.items() if column}

    @property
    def description(self) -> str:
        """The columns and what they hold, for the plan."""
        named = {
            "system message": self.system,
            "messages": self.messages,
            "history": self.history,
            "prompt": self.prompt,
            "context": self.context,
            "reply": self.completion,
        }
        return ", ".join(f"{what} {name!r}" for what, name in named.items() if name)

    def conversation(self, row: Mapping[str, Any]) -> Conversation:
        """Return the messages of a row, with roles system, user and assistant.

        Raises:
            Unusable: it is none that a model could be trained on.
        """
        messages = messages_of(row[self.messages]) if self.messages else self.pair(row)
        if self.system and not is_blank(row[self.system]):
            messages = [message("system", row[self.system]), *messages]
        check_order(messages)
        return messages

    def pair(self, row: Mapping[str, Any]) -> Conversation:
        """Return the messages of a prompt and its completion, which may be lists of messages themselves."""
        assert self.prompt is not None
        assert self.completion is not None
        prompt, completion = row[self.prompt], row[self.completion]
        if self.context and not is_blank(row[self.context]):
            prompt = f"{prompt}\n\n{row[self.context]}"
        asked = messages_of(prompt) if isinstance(prompt, list) else [message("user", prompt)]
        given = messages_of(completion) if isinstance(completion, list) else [message("assistant", completion)]
        return earlier(row[self.history] if self.history else None) + asked + given


def earlier(turns: Any) -> Conversation:
    """Return the messages of turns before the prompt: pairs of what the user and the assistant said.

    Raises:
        Unusable: they are something else.
    """
    turns = written_out(turns)
    if is_blank(turns):
        return []
    if not isinstance(turns, list) or not all(isinstance(turn, list) and len(turn) == 2 for turn in turns):
        raise Unusable("whose history is no list of pairs, of what the user and the assistant said")
    return [message(role, text) for turn in turns for role, text in zip(("user", "assistant"), turn, strict=True)]


def find_layout(existing: Sequence[str], given: Layout) -> Layout:
    """Return the columns to use: those given, and for the others the usual names.

    Raises:
        UserError: a given column does not exist, or none has a usual name.
    """
    if given.messages is not None and (given.prompt or given.completion or given.context):
        raise UserError(
            f"data.messages is {given.messages!r}, a column with whole conversations, and data.prompt, "
            "data.completion or data.context is given too; give one or the other"
        )
    if given.history is not None and given.history not in existing:
        find_column(existing, "history", given.history, (), "the turns before")
    system = optional(existing, "system", given.system, SYSTEM_NAMES)
    whole = given.messages is None and not given.prompt and not given.completion
    messages = optional(existing, "messages", given.messages, MESSAGES_NAMES) if whole or given.messages else None
    if messages is not None:
        if given.history is not None:
            raise UserError(f"data.history is given, but {messages!r} holds whole conversations; leave it out")
        return Layout(messages=messages, system=system)
    problems: list[str] = []
    found: dict[str, str] = {}
    for flag, value, tiers, what in (
        ("prompt", given.prompt, PROMPT_NAMES, "what the user says (or, by data.messages, whole conversations)"),
        ("completion", given.completion, COMPLETION_NAMES, "what the assistant is to say"),
    ):
        try:
            found[flag] = find_column(existing, flag, value, tiers, what)
        except UserError as error:
            problems += error.problems
    if problems:
        raise UserError(*problems)
    if found["prompt"] == found["completion"]:
        raise UserError(f"data.prompt and data.completion are both {found['prompt']!r}; give two columns")
    rest = [name for name in existing if name not in found.values()]
    # "input" goes with "instruction" and is a prompt of its own without it; a "context" column alone may hold anything.
    usual = CONTEXT_NAMES if found["prompt"].lower() in PROMPT_NAMES[1] else ()
    context = optional(rest, "context", given.context, usual)
    return Layout(None, found["prompt"], found["completion"], context, system, given.history)


def optional(existing: Sequence[str], flag: str, given: str | None, tiers: Sequence[Sequence[str]]) -> str | None:
    """Return a column that there may be: the given one, which must exist, or one with a usual name, or None."""
    if given is None and not any(name.strip().lower() in tier for name in existing for tier in tiers):
        return None
    return find_column(existing, flag, given, tiers, "it")


@dataclass(frozen=True)
class ConversationRows(TableRows):
    """Rows that are conversations, for training or for evaluation."""

    layout: Layout
    """Which columns hold what."""

    def batches(self) -> Iterator[list[Conversation]]:
        """Yield all conversations, a thousand at a time."""
        for rows in raw_rows(self.table):
            yield [self.layout.conversation(row) for row in rows]

    def texts(self) -> Iterator[str]:
        """Yield the content of all messages, to train a tokenizer on."""
        for batch in self.batches():
            for conversation in batch:
                yield from (entry["content"] for entry in conversation)

    @cached_property
    def digest(self) -> str:
        """A hash of all messages; about 5 s for a million."""
        state = blake2b(digest_size=16)
        for batch in self.batches():
            state.update(json.dumps(batch).encode())
        return digest_of(len(self), state.hexdigest())


def raw_rows(table: Any) -> Iterator[list[dict[str, Any]]]:
    """Yield the rows of a `datasets.Dataset`, a thousand at a time."""
    for batch in table.with_format("arrow").iter(ROWS_AT_ONCE):
        yield batch.to_pylist()


def check_rows(name: str, table: Any, layout: Layout) -> Checked[ConversationRows]:
    """Return the rows that are conversations, and what is wrong with the others, a sentence for each reason."""
    missing = [column for column in layout.columns if column not in table.column_names]
    if missing:
        raise UserError(f"{name}: there is no column {listed(missing)}, which the training data has")
    table = table.select_columns(layout.columns)
    unusable = UnusableRows()
    for row, entry in enumerate(entry for batch in raw_rows(table) for entry in batch):
        with unusable.noted(row):
            layout.conversation(entry)
    return unusable.without(ConversationRows(name, table, np.arange(len(table)), layout))
