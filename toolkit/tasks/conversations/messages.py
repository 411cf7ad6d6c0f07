"""Messages of a conversation, as they come in data and as a chat template takes them; and rows that are none."""

import json
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np

from toolkit.data.label_reading import is_list
from toolkit.data.labels import Array
from toolkit.data.reading import Checked, TableRows, row_numbers
from toolkit.data.tokenized import ROWS_AT_ONCE

ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "prompter": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "model": "assistant",
    "bot": "assistant",
    "chatbot": "assistant",
}
"""The names of roles in data, and the role of a chat template that each stands for."""

Message = dict[str, str]
Conversation = list[Message]
AnyTable = TypeVar("AnyTable", bound=TableRows)


class Unusable(Exception):  # noqa: N818 - no error, but the reason for one that names all such rows
    """Why a row can't be used: what follows "3 rows (numbers 1, 2, 3)"."""


class UnusableRows:
    """The rows of a table that can't be used, by the reason."""

    def __init__(self) -> None:
        self.rows: dict[str, list[int]] = {}

    def add(self, row: int, reason: str) -> None:
        """Note that a row can't be used."""
        self.rows.setdefault(reason, []).append(row)

    @contextmanager
    def noted(self, row: int) -> Iterator[None]:
        """Note a row for which this block raises `Unusable`, and go on after the block."""
        try:
            yield
        except Unusable as reason:
            self.add(row, str(reason))

    def problems(self, name: str, numbers: Array) -> list[str]:
        """Return a sentence for each reason; `numbers` are those of all rows in the data."""
        return [f"{name}: {row_numbers(numbers[rows])} {reason}" for reason, rows in self.rows.items()]

    def without(self, whole: AnyTable) -> Checked[AnyTable]:
        """Return the other rows of a whole table as checked."""
        unusable = [row for rows in self.rows.values() for row in rows]
        rest = whole.take(np.delete(np.arange(len(whole)), unusable)) if unusable else whole
        return Checked(rest, self.problems(whole.name, whole.rows), len(unusable))


def messages_of(value: Any) -> Conversation:
    """Return a list of {role, content}, or of {from, value}, as messages; in tables it may be written as JSON."""
    value = written_out(value)
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise Unusable("without a list of messages, each with a role and a content")
    if any(entry.get("tool_calls") or entry.get("function_call") for entry in value):
        raise Unusable("with calls of tools, which are not read")
    for entry in value:
        if not ({"content", "value"} & entry.keys()) or not ({"role", "from"} & entry.keys()):
            raise Unusable(f"where a message has the keys {', '.join(map(str, entry))}; it needs role and content")
    return [
        message(
            entry.get("role") if entry.get("role") is not None else entry.get("from"),
            entry.get("content") if entry.get("content") is not None else entry.get("value"),
        )
        for entry in value
    ]


def written_out(value: Any) -> Any:
    """Return a list that is written as JSON, as a csv or Excel file has it, and anything else as it is."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        with suppress(ValueError, RecursionError):
            return json.loads(value)
    return value


def speakers(table: Any, columns: Sequence[str]) -> set[tuple[str, str]]:
    """Return by which key and name the messages in some columns say who speaks, such as ("from", "human")."""
    import pyarrow as pa
    import pyarrow.compute as compute

    found: set[tuple[str, str]] = set()
    for batch in table.select_columns(list(columns)).with_format("arrow").iter(ROWS_AT_ONCE):
        for column in batch.columns:
            values = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
            values = compute.list_flatten(values) if is_list(values.type) else values
            if pa.types.is_struct(values.type):
                keys = [key for key in ("role", "from") if values.type.get_field_index(key) >= 0]
                found |= {
                    (key, str(name))
                    for key in keys
                    for name in compute.unique(compute.struct_field(values, key)).to_pylist()
                    if name is not None
                }
    return found


def told_speakers(found: Collection[tuple[str, str]]) -> str:
    """Return a line for the plan on who speaks in the data, in words other than those of a template; empty if none."""
    if all(key == "role" and name in ("system", "user", "assistant") for key, name in found):
        return ""
    named = {key: sorted(name for other, name in found if other == key) for key in ("role", "from")}
    parts = [
        f"by {key!r}: " + ", ".join(f"{name} -> {ROLES.get(name.strip().lower(), '?')}" for name in names)
        for key, names in named.items()
        if names
    ]
    return "messages " + "; ".join(parts)


def message(role: Any, content: Any) -> Message:
    """Return one message; a content in parts is joined where all of them are text."""
    known = ROLES.get(str(role).strip().lower())
    if known is None:
        raise Unusable(f"with the role {role!r}; known are {', '.join(ROLES)}")
    if isinstance(content, list) and all(isinstance(part, dict) and part.get("type") == "text" for part in content):
        content = "".join(str(part.get("text") or part.get("value") or "") for part in content)
    if content is None or (isinstance(content, str) and not content.strip()):
        raise Unusable(f"where a message of the {known} is empty")
    if not isinstance(content, str):
        raise Unusable(f"where a message of the {known} is no text but of type {type(content).__name__}")
    return {"role": known, "content": content}


def check_order(messages: Conversation) -> None:
    """Refuse a conversation in which user and assistant do not take turns up to a last one of the assistant.

    A system message may come first.

    Raises:
        Unusable: they do not.
    """
    roles = [entry["role"] for entry in messages]
    turns = roles[1:] if roles[:1] == ["system"] else roles
    if "assistant" not in turns:
        raise Unusable("without a turn of the assistant, so that there is nothing to learn")
    if "system" in turns:
        raise Unusable("where a system message is not the first one")
    if turns[0] != "user":
        raise Unusable("that the assistant begins, before any user")
    twice = next((role for role, following in pairwise(turns) if role == following), None)
    if twice is not None:
        raise Unusable(f"with two turns of the {twice} in a row")
    if turns[-1] != "assistant":
        raise Unusable("that end with the user, so that their last turn has no reply")


def is_blank(value: Any) -> bool:
    """Return whether the cell of an optional column is empty."""
    return value is None or (isinstance(value, str) and not value.strip())
