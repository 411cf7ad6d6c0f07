"""Prompts that stand in several columns: what they are about after them, and a system message before them."""

from dataclasses import dataclass
from typing import Any

from toolkit.data.tokenized import ROWS_AT_ONCE
from toolkit.errors import UserError
from toolkit.tasks.conversations.messages import is_blank


@dataclass(frozen=True)
class Before:
    """Columns that are put around the prompt."""

    context: str | None = None
    system: str | None = None

    @property
    def columns(self) -> dict[str, str]:
        """Those that are read, by what they hold."""
        return {what: name for what, name in (("system", self.system), ("context", self.context)) if name}


def with_prompts(name: str, table: Any, prompt: str, before: Before) -> Any:
    """Return a `datasets.Dataset` whose prompts have their context and their system message with them.

    A context follows its prompt after an empty line, as in the training of replies. With a system message the prompt
    becomes messages.

    Raises:
        UserError: a column is missing, or prompts that are to have a context are no texts.
    """
    import datasets
    import pyarrow as pa

    if missing := [column for column in (prompt, *before.columns.values()) if column not in table.column_names]:
        raise UserError(f"{name}: there is no column {', '.join(map(repr, missing))}, which the training data has")
    parts = []
    columns = [prompt, *before.columns.values()]
    for batch in table.select_columns(columns).with_format("arrow").iter(ROWS_AT_ONCE):
        parts += [whole_prompt(row, prompt, before) for row in batch.to_pylist()]
    changed = datasets.Dataset(pa.table({prompt: pa.array(parts)}))
    return datasets.concatenate_datasets([table.remove_columns([prompt]), changed], axis=1)


def whole_prompt(row: dict[str, Any], prompt: str, before: Before) -> Any:
    """Return the prompt of a row: a text, or messages where there are columns with system messages."""
    asked = row[prompt]
    if before.context is not None and not is_blank(row[before.context]):
        if not isinstance(asked, str):
            raise UserError(f"data.context is put after a text, and the column {prompt!r} holds messages; leave it out")
        asked = f"{asked}\n\n{row[before.context]}"
    if before.system is None or is_blank(asked):
        return asked
    messages = [{"role": "user", "content": asked}] if isinstance(asked, str) else asked
    messages = [messages] if isinstance(messages, dict) else messages
    keys = ("from", "value") if "from" in messages[0] else ("role", "content")
    first = dict(zip(keys, ("system", row[before.system]), strict=True))
    return messages if is_blank(row[before.system]) else [first, *messages]
