"""Preference data: pairs of a better and a worse completion, where they come from and which columns they are in."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from toolkit.config.model import ModelConfig
from toolkit.config.schema import at_least, locates
from toolkit.data.cache import digest_of
from toolkit.data.columns import find_column, plain_name
from toolkit.data.config import DataConfig, embedded_splits, split_rows
from toolkit.data.label_reading import is_list, is_text
from toolkit.data.labels import Array
from toolkit.data.texts import row_numbers
from toolkit.data.tokenized import ROWS_AT_ONCE
from toolkit.errors import UserError
from toolkit.models.tokenizer import CAUSAL, EmbeddedTokenizer
from toolkit.sample_data.preferences import shuffled_sentences
from toolkit.task import TaskData
from toolkit.tasks.conversations.template import CHAT, chat_template, template_problems
from toolkit.tasks.dpo.rows import check_pairs, texts_in
from toolkit.tasks.dpo.tokens import TokenizedPairs, tokenize_pairs

if TYPE_CHECKING:
    import evaluate

PROMPT_NAMES = (("prompt",), ("instruction", "question", "query", "input", "context", "post"))
CHOSEN_NAMES = (("chosen",), ("preferred", "winner", "better", "accepted", "chosen_response", "response_chosen"))
REJECTED_NAMES = (("rejected",), ("dispreferred", "loser", "worse", "rejected_response", "response_rejected"))
CONVERSATION_NAMES = ("conversations", "conversation", "messages")
"""Columns with what comes before both sides, where these are single messages or texts. Beside whole conversations a
column of such a name repeats one of them."""


@dataclass(frozen=True)
class PreferenceData(DataConfig):
    """The `data` section of a recipe that learns which of two completions is the better one."""

    prompt: str | None = locates(None)
    """The column with the prompt, as a text or as messages; null finds it by its name, or there is none."""
    chosen: str | None = locates(None)
    """The column with the better completion (a text, a message, or a whole conversation); null finds it by its name."""
    rejected: str | None = locates(None)
    """The column with the worse one, given like data.chosen."""
    chat_template: str | None = None
    """A file with a chat template (Jinja) to write messages with, and to save, instead of the tokenizer's own."""
    max_length: int | None = None
    """Cut longer rows to so many tokens, prompts first and from their beginning; null refuses what the model cannot take."""
    drop_invalid: bool = False
    """Leave out rows that are no pair, such as two equal sides, instead of refusing them; the plan counts them."""

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
                "sentences of the documentation of this Python's standard library; rejected are the same words shuffled",
                *shuffled_sentences(self.held_out),
            )
        )
        tables = {"training data": read.train} | ({} if read.evaluate is None else {"evaluation data": read.evaluate})
        columns = self._columns(read.train)
        layouts = [check_columns(name, table, columns) for name, table in tables.items()]
        if len(set(layouts)) > 1:
            raise UserError(f"the training data holds {layouts[0]} and the evaluation data {layouts[1]}; give one kind")
        named = {
            name: table.select_columns(list(columns.values())).rename_columns(
                {old: new for new, old in columns.items()}
            )
            for name, table in tables.items()
        }
        checked = {name: check_pairs(name, table) for name, table in named.items()}
        problems = [problem for part in checked.values() for problem in part.problems]
        if problems and not self.drop_invalid:
            raise UserError(*problems)
        if nothing := [name for name, part in checked.items() if not len(part.valid)]:
            raise UserError(*(f"{name}: there is no row with a prompt's better and worse side" for name in nothing))
        if self.chat_template is not None and layouts[0] == "texts":
            raise UserError(
                "data.chat_template is given, but the data holds texts, which no template writes; leave it out, or give the two "
                "sides as lists of messages"
            )
        summary = {"data": read.origin, "columns": ", ".join(f"{new} {old!r}" for new, old in columns.items())}
        summary["columns"] += f" ({layouts[0]})" + ("" if "prompt" in columns else ", no prompt column")
        if problems:
            counts = " and ".join(
                f"{len(tables[name]) - len(part.valid):,} of the {name}" for name, part in checked.items()
            )
            summary["dropped"] = f"rows that are no pair: {counts}"
        splits = [
            PairSplit(name, table.select(checked[name].valid), checked[name].valid) for name, table in named.items()
        ]
        if len(splits) == 1:
            splits = self._hold_out(splits[0], checked[splits[0].name].prompts)
            share = len(splits[1].rows) / (len(splits[0].rows) + len(splits[1].rows))
            summary["held out"] = (
                f"{share:.1%} of the training rows, the same for every seed; no prompt is on both sides"
            )
        summary["pairs"] = f"{len(splits[0].rows):,} to train on, {len(splits[1].rows):,} to evaluate on"
        return Pairs(splits[0], splits[1], layouts[0], self, summary, read.files)

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
        if self.prompt is not None or {name for tier in prompts for name in tier} & set(map(plain_name, existing)):
            find("prompt", prompts, "the prompt")
        if problems:
            raise UserError(*problems)
        found = {flag: found[flag] for flag in ("prompt", "chosen", "rejected") if flag in found}
        if len(set(found.values())) < len(found):
            given = ", ".join(f"data.{flag} {name!r}" for flag, name in found.items())
            raise UserError(f"one column is given twice: {given}; each needs a column of its own")
        return found

    def _hold_out(self, whole: "PairSplit", prompts: Array) -> "list[PairSplit]":
        # Of a single prompt no part can be held out as a whole: then rows are.
        units = prompts if prompts.max() > 0 else np.arange(len(prompts))
        held = np.isin(units, split_rows(int(units.max()) + 1, self.held_out)[1])
        return [whole.take(~held), whole.take(held, "held-out rows of the training data")]


@dataclass(frozen=True)
class PairSplit:
    """Pairs for training or for evaluation."""

    name: str
    table: Any
    """A `datasets.Dataset` of the columns chosen, rejected and, where there is one, prompt."""
    rows: Array
    """The number that each row had in the data, counted from 0."""

    def take(self, chosen: Array, name: str | None = None) -> "PairSplit":
        """Return the rows for which `chosen` is true."""
        numbers = np.flatnonzero(chosen)
        return PairSplit(name or self.name, self.table.select(numbers), self.rows[numbers])

    def contents(self) -> Iterator[list[Any]]:
        """Yield the columns of some rows at a time."""
        for batch in self.table.with_format("arrow").iter(ROWS_AT_ONCE):
            yield from (column.to_pylist() for column in batch.columns)

    @cached_property
    def digest(self) -> str:
        """A hash of the content; about 1 s for 100 MB."""
        state = blake2b(digest_size=16)
        for column in self.contents():
            state.update(json.dumps(column).encode())
        return digest_of(self.table.column_names, len(self.rows), state.hexdigest())


@dataclass(frozen=True)
class Pairs:
    """Training and evaluation pairs after they were read."""

    train: PairSplit
    evaluate: PairSplit
    layout: str
    """What the columns hold: texts or messages."""
    config: PreferenceData
    """What was asked for."""
    summary: dict[str, str]
    """Lines for the plan; `tokenize` adds one on the lengths."""
    files: Sequence[Path] = ()
    """The local files that were read."""

    def training_texts(self) -> Iterator[str]:
        """Yield every text, to train a tokenizer on."""
        for column in self.train.contents():
            for cell in column:
                yield from texts_in(cell)

    @property
    def embedded_tokenizer(self) -> EmbeddedTokenizer:
        """The tokenizer of the embedded model; for messages it has the marks and the template of the embedded chat model."""
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
        sources = []
        for split in (self.train, self.evaluate):
            folder = tokenize_pairs(split.table, split.rows, split.name, tokenizer, template, max_length, split.digest)
            sources.append(TokenizedPairs(folder, split.rows, drop_equal))
        for split, source in zip((self.train, self.evaluate), sources, strict=True):
            full = np.asarray(source.tokens.full_lengths)
            if max_length is None and limit is not None and (full > limit).any():
                problems.append(
                    f"{split.name}: {row_numbers(split.rows[full > limit])} longer than the {limit} tokens that the "
                    f"model takes (the longest has {full.max()}, prompt and completion together); cut them with "
                    f"--data.max_length {limit}"
                )
            if len(source.equal) and not drop_equal:
                problems.append(
                    f"{split.name}: {row_numbers(split.rows[source.equal])} whose two sides are equal once they are "
                    "tokenized"
                    + (f" and cut to {max_length} tokens (data.max_length)" if max_length else "")
                    + "; remove them, or leave them out with --data.drop_invalid"
                )
            if not len(source):
                problems.append(f"{split.name}: no pair is left")
        if problems:
            raise UserError(*problems)
        summary = {**self.summary, **describe_tokens(sources, max_length)}
        train, evaluate = sources
        return TokenizedPreferences(train, evaluate, self.files, self.config.workers, summary)


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
        line += f"; {(full > max_length).sum():,} of {len(full):,} pairs cut to {max_length}"
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


def preference_scores(**options: Any) -> "evaluate.Metric":
    """Share of pairs that are ranked right, the mean margin, and the mean reward of both sides."""
    from toolkit.tasks.dpo.metrics import Preferences

    return Preferences(**options)
