"""Preference data: pairs of a better and a worse completion, where they come from and which columns they are in."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from toolkit.config.fields import at_least, locates
from toolkit.config.model import ModelConfig
from toolkit.data.columns import find_column, plain_name
from toolkit.data.config import DataConfig, embedded_splits, split_rows
from toolkit.data.label_reading import is_list, is_text
from toolkit.data.reading import DataRead, counts_line, hold_out, row_numbers, usable_rows
from toolkit.errors import UserError
from toolkit.models.tokenizer import CAUSAL, EmbeddedTokenizer
from toolkit.sample_data.preferences import shuffled_sentences
from toolkit.task import TaskData
from toolkit.tasks.conversations.messages import speakers, told_speakers
from toolkit.tasks.conversations.template import CHAT, chat_template, template_problems
from toolkit.tasks.dpo.prompts import Before, with_prompts
from toolkit.tasks.dpo.rows import PairRows, check_pairs
from toolkit.tasks.dpo.tokens import TokenizedPairs, tokenize_pairs

PROMPT_NAMES = (("prompt",), ("instruction", "question", "query", "input", "context", "post"))
CHOSEN_NAMES = (("chosen",), ("preferred", "winner", "better", "accepted", "chosen_response", "response_chosen"))
REJECTED_NAMES = (("rejected",), ("dispreferred", "loser", "worse", "rejected_response", "response_rejected"))
CONVERSATION_NAMES = ("conversations", "conversation", "messages")
"""Columns with the prompt, where both sides are single messages or texts. Next to whole conversations such a column
repeats one of their messages."""


@dataclass(frozen=True)
class PreferenceData(DataConfig):
    """The `data` section of a recipe that learns which of two completions is the better one."""

    prompt: str | None = locates(None)
    """The column with the prompt, as a text or as messages; null finds it by its name, or there is none."""
    context: str | None = locates(None)
    """The column with what the prompt is about, put after it where it is not empty; null finds `input` next to
    `instruction`."""
    system: str | None = locates(None)
    """The column with a system message, put before the prompt; null reads none."""
    chosen: str | None = locates(None)
    """The column with the better completion (a text, a message, or a whole conversation); null finds it by its name."""
    rejected: str | None = locates(None)
    """The column with the worse one, given like data.chosen."""
    chat_template: str | None = None
    """A file with a chat template (Jinja) to write messages with, and to save, instead of the tokenizer's own."""
    max_length: int | None = None
    """Truncate longer rows to so many tokens, prompts first and from their beginning;
    null refuses what the model cannot take."""
    drop_invalid: bool = False
    """Leave out rows that are no pair, such as two equal sides, instead of refusing them; the plan counts them."""

    has_groups: ClassVar[bool] = False

    def problems(self) -> Iterator[str]:
        """Yield what is wrong with the values, a sentence each."""
        yield from super().problems()
        if self.max_length is not None:
            yield from at_least(2, "data.max_length", self.max_length)
        yield from template_problems(self.chat_template)

    def read(self) -> "Pairs":
        """Read the data and check every row.

        Raises:
            UserError: with everything that is wrong.
        """
        read = self.tables(
            lambda: embedded_splits(
                "sentences of the documentation of this Python's standard library; rejected are the same words "
                "shuffled",
                *shuffled_sentences(self.held_out),
            )
        )
        columns = self._columns(read.train)
        before = self._before(read.train, columns)
        if before.columns:
            read = replace(
                read,
                train=with_prompts("training data", read.train, columns["prompt"], before),
                evaluate=read.evaluate and with_prompts("evaluation data", read.evaluate, columns["prompt"], before),
            )
        layouts = [check_columns(name, table, columns) for name, table in read.tables.items()]
        if len(set(layouts)) > 1:
            raise UserError(f"the training data holds {layouts[0]} and the evaluation data {layouts[1]}; give one kind")
        names = {old: new for new, old in columns.items()}
        splits, dropped = usable_rows(
            [
                check_pairs(name, table.select_columns(list(names)).rename_columns(names))
                for name, table in read.tables.items()
            ],
            drop_invalid=self.drop_invalid,
            a_row="row with a prompt's better and worse side",
            invalid="rows that are no pair",
            remedy=None,
        )
        if self.chat_template is not None and layouts[0] == "texts":
            raise UserError(
                "data.chat_template is given, but the data holds texts, which no template writes; leave it out, or "
                "give the two sides as lists of messages"
            )
        described = ", ".join(f"{new} {old!r}" for new, old in {**before.columns, **columns}.items())
        no_prompt = "" if "prompt" in columns else ", no prompt column"
        summary = {"data": read.origin, "columns": f"{described} ({layouts[0]}){no_prompt}", **dropped}
        told = [told_speakers(speakers(table, [*columns.values()])) for table in read.tables.values()]
        if any(told):
            summary["speakers"] = max(told, key=len)
        left = [name for name in read.train.column_names if plain_name(name) in ("system", "system_prompt")]
        if left and self.system is None:
            summary["not read"] = f"the column {left[0]!r}; if it holds system messages, give --data.system {left[0]}"
        if len(splits) == 1:
            splits = self._hold_out(splits[0])
            share = len(splits[1]) / (len(splits[0]) + len(splits[1]))
            summary["held out"] = (
                f"{share:.1%} of the training rows, the same for every seed; no prompt is on both sides"
            )
        train, evaluate = splits
        summary["pairs"] = counts_line(train, evaluate)
        return Pairs(train, evaluate, layouts[0], self, summary=summary, files=read.files, workers=self.workers)

    def _columns(self, table: Any) -> dict[str, str]:
        existing, problems = table.column_names, list[str]()
        found: dict[str, str] = {}

        def find(flag: str, tiers: Sequence[Sequence[str]], what: str) -> None:
            try:
                found[flag] = find_column(existing, flag, getattr(self, flag), tiers, what)
            except UserError as error:
                problems.extend(error.problems)

        find("chosen", CHOSEN_NAMES, "the chosen side")
        find("rejected", REJECTED_NAMES, "the rejected side")
        whole = any(is_list(table.data.schema.field(column).type) for column in found.values())
        prompts = PROMPT_NAMES if whole else (*PROMPT_NAMES, CONVERSATION_NAMES)
        plain = {plain_name(name) for name in existing}
        together = {"instruction", "input"} <= set(existing) and self.prompt is None and "prompt" not in plain
        if together:
            found["prompt"] = "instruction"
        elif self.prompt is not None or {name for tier in prompts for name in tier} & set(map(plain_name, existing)):
            find("prompt", prompts, "the prompt")
        if problems:
            raise UserError(*problems)
        found = {flag: found[flag] for flag in ("prompt", "chosen", "rejected") if flag in found}
        if len(set(found.values())) < len(found):
            given = ", ".join(f"data.{flag} {name!r}" for flag, name in found.items())
            raise UserError(f"one column is given twice: {given}; each needs a column of its own")
        return found

    def _before(self, table: Any, columns: dict[str, str]) -> "Before":
        """Return the columns that are put around the prompt.

        Raises:
            UserError: one does not exist, or there is no prompt.
        """
        given = {"context": self.context, "system": self.system}
        for flag, name in given.items():
            if name is not None:
                find_column(table.column_names, flag, name, (), flag, taken=[*columns.values()])
        if (
            self.context is None
            and self.prompt is None
            and columns.get("prompt") == "instruction"
            and "input" in table.column_names
        ):
            given["context"] = "input"
        if any(given.values()) and "prompt" not in columns:
            raise UserError(
                "data.context and data.system are put around the prompt, and there is no column with one; give it with "
                "--data.prompt COLUMN, or leave them out"
            )
        return Before(**given)

    def _hold_out(self, whole: PairRows) -> list[PairRows]:
        # Of a single prompt no part can be held out as a whole: then rows are.
        units = whole.prompts if whole.prompts.max() > 0 else np.arange(len(whole))
        held = np.isin(units, split_rows(int(units.max()) + 1, self.held_out)[1])
        return hold_out(whole, np.flatnonzero(held))


@dataclass(frozen=True)
class Pairs(DataRead):
    """Training and evaluation pairs after they were read."""

    train: PairRows
    evaluate: PairRows
    layout: str
    """What the columns hold: texts or messages."""
    config: PreferenceData
    """What was asked for."""

    @property
    def embedded_tokenizer(self) -> EmbeddedTokenizer:
        """The tokenizer of the embedded model; for messages with the marks and template of the embedded chat model."""
        if self.layout == "texts":
            return CAUSAL
        return replace(CAUSAL, more_tokens=CHAT.more_tokens, chat_template=CHAT.chat_template)

    def tokenize(self, tokenizer: Any, model: ModelConfig, limit: int | None) -> "TokenizedPreferences":
        """Return training and evaluation pairs as token ids.

        Args:
            tokenizer: that of the model; it gets the template of data.chat_template.
            model: names the model, for messages.
            limit: the most tokens that the model takes, if that is known.

        Raises:
            UserError: rows are too long and data.max_length does not truncate them, or truncates both sides to the
                same; there are messages and no chat template for them.
        """
        max_length, drop_equal, problems = self.config.max_length, self.config.drop_invalid, list[str]()
        if max_length is not None and limit is not None and max_length > limit:
            raise UserError(
                f"data.max_length is {max_length}, but the model takes at most {limit} tokens; give {limit} or less"
            )
        template = None
        if self.layout != "texts":
            template = chat_template(tokenizer, model, self.config.chat_template, "last")
        sources = [
            tokenize_pairs(split, tokenizer, template, max_length, drop_equal) for split in (self.train, self.evaluate)
        ]
        for split, source in zip((self.train, self.evaluate), sources, strict=True):
            full = np.asarray(source.tokens.full_lengths)
            if max_length is None and limit is not None and (full > limit).any():
                problems.append(
                    f"{split.name}: {row_numbers(split.rows[full > limit])} longer than the {limit} tokens that the "
                    f"model takes (the longest has {full.max()}, prompt and completion together); truncate them with "
                    f"--data.max_length {limit}"
                )
            if len(source.equal) and not drop_equal:
                problems.append(
                    f"{split.name}: {row_numbers(split.rows[source.equal])} whose two sides are equal once they are "
                    "tokenized"
                    + (f" and truncated to {max_length} tokens (data.max_length)" if max_length else "")
                    + "; remove them, or leave them out with --data.drop_invalid"
                )
            if not len(source):
                problems.append(f"{split.name}: no pair is left")
        if problems:
            raise UserError(*problems)
        summary = {**self.summary, **describe_tokens(sources, max_length)}
        train, evaluate = sources
        return TokenizedPreferences(train, evaluate, self.files, self.workers, summary)


@dataclass(frozen=True)
class TokenizedPreferences(TaskData):
    """Training and evaluation pairs as token ids."""

    train: TokenizedPairs
    evaluate: TokenizedPairs


def describe_tokens(sources: Sequence[TokenizedPairs], max_length: int | None) -> dict[str, str]:
    """Return lines for the plan on how long the pairs are, and which side is the longer one."""
    full = np.concatenate([source.tokens.full_lengths for source in sources])
    line = f"{np.median(full):.0f} tokens in the middle, {full.max()} at most, prompt and completion together"
    if max_length is not None:
        line += f"; {(full > max_length).sum():,} of {len(full):,} pairs truncated to {max_length}"
    if equal := sum(len(source.equal) for source in sources):
        line += f"; {equal:,} dropped because their sides are then equal"
    _, chosen, rejected = sources[1].counts[sources[1].kept].T
    longer = np.mean((chosen > rejected) + 0.5 * (chosen == rejected))
    return {"lengths": line, "longer side": f"the chosen one in {longer:.1%} of the evaluation pairs"}


def check_columns(name: str, table: Any, columns: dict[str, str]) -> str:
    """Return whether the columns of a table hold texts or messages.

    Raises:
        UserError: one is missing, or they hold something else.
    """
    if missing := [column for column in columns.values() if column not in table.column_names]:
        raise UserError(
            f"{name}: there is no column {', '.join(map(repr, missing))}, which the training data has; there are "
            f"{', '.join(map(repr, table.column_names))}"
        )
    types = {column: table.data.schema.field(column).type for column in columns.values()}
    texts = {column: is_text(type_) for column, type_ in types.items()}
    messages = {column: is_list(type_) or is_message(type_) for column, type_ in types.items()}
    if (
        not all(texts[column] or messages[column] for column in types)
        or texts[columns["chosen"]] != texts[columns["rejected"]]
    ):
        held = ", ".join(f"{column!r} holds {type_}" for column, type_ in types.items())
        raise UserError(
            f"{name}: {held}; both sides have to be texts, or both lists of messages (or one message each) with role "
            "and content"
        )
    return "messages" if any(messages.values()) else "texts"


def is_message(type_: Any) -> bool:
    """Tell whether an Arrow type holds a single message."""
    import pyarrow as pa

    return pa.types.is_struct(type_) and any(type_.get_field_index(name) >= 0 for name in ("role", "from"))
