"""Conversations to train a chat model on: where they come from, and every way in which they can be wrong."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from toolkit.config.schema import at_least, locates
from toolkit.data.config import DataConfig, embedded_splits, split_rows
from toolkit.data.sources import Splits
from toolkit.errors import UserError
from toolkit.sample_data.functions import described_functions, split_by_module
from toolkit.tasks.conversations.rows import Layout, Rows, check_rows, find_layout
from toolkit.tasks.conversations.template import template_problems

INSTRUCTION = "Describe this function:\n"
ORIGIN = "functions of this Python's standard library; the reply is a sentence of facts about one"


@dataclass(frozen=True)
class Conversations(DataConfig):
    """The `data` section of a recipe that trains a model to reply."""

    messages: str | None = locates(None)
    """The column with whole conversations, lists of {role, content} or {from, value}; null finds it by its name."""
    prompt: str | None = locates(None)
    """The column with what the user says, where there is none with whole conversations; null finds it by its name."""
    context: str | None = locates(None)
    """The column with what the prompt is about, put after it where it is not empty; null finds `input` beside `instruction`."""
    completion: str | None = locates(None)
    """The column with what the assistant replies; null finds it by its name."""
    system: str | None = locates(None)
    """The column with a system message to begin with; null finds it by its name, or there is none."""
    chat_template: str | None = None
    """A file with a chat template (Jinja) to use, and to save, instead of the tokenizer's own."""
    loss_on: Literal["all", "last"] = "all"
    """Train on every reply of a conversation, or on the last one alone."""
    max_length: int | None = None
    """Cut longer conversations to so many tokens; null takes them whole and refuses those that the model cannot take."""
    drop_invalid: bool = False
    """Leave out rows that are no proper conversation instead of refusing them; the plan counts them."""

    def problems(self) -> Iterator[str]:
        """Yield what is wrong with the values, a sentence each."""
        yield from super().problems()
        if self.max_length is not None:
            yield from at_least(1, "data.max_length", self.max_length)
        yield from template_problems(self.chat_template)

    def read(self) -> "Chats":
        """Read the conversations and check every one.

        Raises:
            UserError: with everything that is wrong, and the numbers of the rows.
        """
        read = self.tables(embedded)
        layout = find_layout(
            read.train.column_names, Layout(self.messages, self.prompt, self.completion, self.context, self.system)
        )
        tables = {"training data": read.train} | ({} if read.evaluate is None else {"evaluation data": read.evaluate})
        checked = [check_rows(name, table, layout) for name, table in tables.items()]
        problems = [problem for _, found in checked for problem in found]
        if problems and not self.drop_invalid:
            raise UserError(*problems)
        splits = [rows for rows, _ in checked]
        if nothing := [rows.name for rows in splits if not len(rows)]:
            raise UserError(*(f"{name}: no row is a conversation that can be learnt from" for name in nothing))
        summary = {"data": read.origin, "columns": layout.description}
        if problems:
            counts = (
                f"{len(table) - len(rows):,} of the {rows.name}"
                for rows, table in zip(splits, tables.values(), strict=True)
            )
            summary["dropped"] = f"rows that are no proper conversation: {' and '.join(counts)}"
        if len(splits) == 1:
            stay, held = split_rows(len(splits[0]), self.held_out)
            splits = [splits[0].take(stay), splits[0].take(held, "held-out rows of the training data")]
            summary["held out"] = (
                f"{len(held) / (len(stay) + len(held)):.1%} of the training rows, the same for every seed"
            )
        summary["conversations"] = f"{len(splits[0]):,} to train on, {len(splits[1]):,} to evaluate on"
        return Chats(splits[0], splits[1], summary, read.files)


@dataclass(frozen=True)
class Chats:
    """Training and evaluation conversations, each of them proper."""

    train: Rows
    evaluate: Rows
    summary: dict[str, str]
    """Lines for the plan."""
    files: tuple[Path, ...] = ()
    """The local files that were read."""


def embedded() -> Splits:
    """Return the embedded conversations: a function's source, and a sentence about it; no module is on both sides."""
    train, held_out = (
        [{"prompt": INSTRUCTION + row["source"], "completion": row["description"]} for row in rows]
        for rows in split_by_module(described_functions())
    )
    return embedded_splits(ORIGIN, train, held_out)
