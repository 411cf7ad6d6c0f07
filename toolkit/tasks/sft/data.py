"""Conversations to train a chat model on: where they come from, and every way in which they can be wrong."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from toolkit.config.fields import at_least, locates
from toolkit.config.model import ModelConfig
from toolkit.data.config import DataConfig, embedded_splits, split_rows
from toolkit.data.reading import DataRead, counts_line, hold_out, row_numbers, usable_rows
from toolkit.data.sources import Splits
from toolkit.errors import UserError
from toolkit.sample_data.functions import described_functions, split_by_module
from toolkit.task import TaskData
from toolkit.tasks.conversations.messages import speakers, told_speakers
from toolkit.tasks.conversations.template import ChatTemplate, chat_template, template_problems
from toolkit.tasks.sft.rows import ConversationRows, Layout, check_rows, find_layout
from toolkit.tasks.sft.tokens import TokenizedConversations, tokenize

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
    """The column with what the prompt is about, put after it where it is not empty;
    null finds `input` next to `instruction`."""
    completion: str | None = locates(None)
    """The column with what the assistant replies; null finds it by its name."""
    system: str | None = locates(None)
    """The column with a system message to begin with; null finds it by its name, or there is none."""
    history: str | None = locates(None)
    """The column with the turns before the prompt, pairs of what the user and the assistant said; null reads none."""
    chat_template: str | None = None
    """A file with a chat template (Jinja) to use, and to save, instead of the tokenizer's own."""
    loss_on: Literal["all", "last"] = "all"
    """Train on every reply of a conversation, or on the last one alone."""
    max_length: int | None = None
    """Truncate longer conversations to so many tokens;
    null takes them whole and refuses those that the model cannot take."""
    drop_invalid: bool = False
    """Leave out rows that are no proper conversation instead of refusing them; the plan counts them."""

    has_groups: ClassVar[bool] = False

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
            read.train.column_names,
            Layout(self.messages, self.prompt, self.completion, self.context, self.system, self.history),
        )
        splits, dropped = usable_rows(
            [check_rows(name, table, layout) for name, table in read.tables.items()],
            drop_invalid=self.drop_invalid,
            a_row="row with a conversation to learn from",
            invalid="rows that are no proper conversation",
            remedy=None,
        )
        summary = {"data": read.origin, "columns": layout.description, **dropped}
        written = [name for name in (layout.messages, layout.prompt, layout.completion) if name]
        if told := told_speakers(set().union(*(speakers(table, written) for table in read.tables.values()))):
            summary["speakers"] = told
        if layout.messages is None and layout.history is None and "history" in read.train.column_names:
            summary["not read"] = "the column 'history'; if it holds earlier turns, give --data.history history"
        if len(splits) == 1:
            stay, held = split_rows(len(splits[0]), self.held_out)
            splits = hold_out(splits[0], held)
            share = len(held) / (len(stay) + len(held))
            summary["held out"] = f"{share:.1%} of the training rows, the same for every seed"
        train, evaluate = splits
        summary["conversations"] = counts_line(train, evaluate)
        return Chats(
            train, evaluate, self, summary=summary, files=read.files, workers=self.workers, inputs=layout.asked
        )


@dataclass(frozen=True)
class TokenizedChats(TaskData):
    """Training and evaluation conversations as token ids."""

    train: TokenizedConversations
    evaluate: TokenizedConversations


@dataclass(frozen=True)
class Chats(DataRead):
    """Training and evaluation conversations, each of them proper."""

    train: ConversationRows
    evaluate: ConversationRows
    config: Conversations
    """What was asked for."""

    def tokenize(self, tokenizer: Any, model: ModelConfig, limit: int | None) -> TokenizedChats:
        """Return the conversations as token ids, with labels on the replies.

        Args:
            tokenizer: that of the model; it gets the template of data.chat_template.
            model: names the model, for messages.
            limit: the most tokens that the model takes, if that is known.

        Raises:
            UserError: there is no usable chat template; conversations are too long and data.max_length does not
                truncate them, or it leaves no reply of any.
        """
        template = chat_template(tokenizer, model, self.config.chat_template, self.config.loss_on)
        max_length = self.config.max_length
        if max_length is not None and limit is not None and max_length > limit:
            raise UserError(
                f"data.max_length is {max_length}, but the model takes at most {limit} tokens; give {limit} or less"
            )
        sources: list[TokenizedConversations] = []
        problems: list[str] = []
        for rows in (self.train, self.evaluate):
            try:
                source = tokenize(rows, template, max_length)
            except UserError as error:
                problems += error.problems
                continue
            sources.append(source)
            full = source.tokens.full_lengths
            if max_length is None and limit is not None and (full > limit).any():
                problems.append(
                    f"{rows.name}: {row_numbers(rows.rows[full > limit])} longer than the {limit} tokens that the "
                    f"model takes (the longest has {full.max()}); truncate them with --data.max_length {limit}"
                )
            if not len(source):
                problems.append(
                    f"{rows.name}: data.max_length {max_length} truncates every conversation before its first reply; "
                    "give more"
                )
        if problems:
            raise UserError(*problems)
        summary = {**self.summary, **describe_tokens(sources, template, max_length)}
        train, evaluate = sources
        return TokenizedChats(train, evaluate, self.files, self.workers, summary, self.inputs)


def describe_tokens(
    sources: Sequence[TokenizedConversations], template: ChatTemplate, max_length: int | None
) -> dict[str, str]:
    """Return lines for the plan on how long the conversations are, and on which tokens carry loss."""
    full = np.concatenate([source.tokens.full_lengths for source in sources])
    lengths = f"{np.median(full):.0f} tokens in the middle, {full.max()} at most"
    if max_length is not None:
        lengths += f"; {(full > max_length).sum():,} of {len(full):,} conversations truncated to {max_length}"
        if dropped := sum(len(source.labelled) - len(source) for source in sources):
            lengths += f", and {dropped:,} left out of which no reply is left"
    carrying = sum(int(source.labelled.sum()) for source in sources)
    tokens = sum(int(source.tokens.lengths.sum()) for source in sources)
    which = "every reply" if template.loss_on == "all" else "the last reply"
    marks = " or ".join(template.tokenizer.convert_ids_to_tokens(sources[0].ends_of_turns))
    how = "the template's generation tags" if template.tagged else "comparing each prompt with what follows"
    return {
        "lengths": lengths,
        "loss": f"{carrying:,} of {tokens:,} tokens ({carrying / tokens:.0%}): {which} up to its {marks}; "
        f"replies found by {how}",
    }


def embedded() -> Splits:
    """Return the embedded conversations: a function's source, and a sentence about it; no module is on both sides."""
    train, held_out = (
        [{"prompt": INSTRUCTION + row["source"], "completion": row["description"]} for row in rows]
        for rows in split_by_module(described_functions())
    )
    return embedded_splits(ORIGIN, train, held_out)
