"""From columns of texts to token ids: how long texts may be, and which of them can't be used."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from toolkit.data.cache import digest_of
from toolkit.data.labels import Array
from toolkit.data.reading import TableRows, row_numbers
from toolkit.data.tokenized import WrittenTokens, tokenize
from toolkit.errors import UserError

NO_LIMIT = 10**9
"""A tokenizer that knows no limit says that it takes 10**30 tokens."""

Tokens = dict[str, WrittenTokens]


@dataclass(frozen=True)
class TextColumn:
    """Texts that become one column of a sample, and how long they may be."""

    texts: Sequence[str]
    """The column of the table, or two whose texts are tokenized as pairs."""
    tokenizer: Any
    max_length: int | None
    """What longer texts are truncated to, in tokens; None truncates nothing."""
    limit: int | None
    """The longest text that the model takes, in tokens; None if any will do."""
    flag: str = "max_length"
    """The setting that truncates them, without "data."."""
    what: str = "texts"
    """What they are, for the plan."""
    line: str = "lengths"
    """The name of the line in the plan."""
    of: str = ""
    """Which of the texts of a row they are, for messages: ", source"."""
    key: str | None = None
    """Part of the key of the cached token ids, where the tokenizer treats columns differently."""

    @property
    def added(self) -> int:
        """Tokens that the tokenizer adds to each text."""
        return int(self.tokenizer.num_special_tokens_to_add(pair=len(self.texts) > 1))

    def settings_problems(self) -> Iterator[str]:
        """Yield what is wrong with the length that texts are to be truncated to."""
        if self.max_length is None:
            return
        if self.limit is not None and self.max_length > self.limit:
            yield (
                f"data.{self.flag} is {self.max_length}, but the model takes at most {self.limit} tokens; "
                f"give {self.limit} or less"
            )
        elif self.max_length <= self.added:
            yield (
                f"data.{self.flag} is {self.max_length}, and the tokenizer adds {self.added} "
                f"token{'s' * (self.added > 1)} of its own to each text, so that nothing of it would be left; "
                f"give at least {self.added + 1}"
            )

    def problems(self, rows: TableRows, lengths: Array) -> Iterator[str]:
        """Yield which texts are too long for the model, and which have no token at all.

        Args:
            rows: where the texts are.
            lengths: tokens of each text before it was truncated.
        """
        if self.max_length is None and self.limit is not None and (lengths > self.limit).any():
            yield (
                f"{rows.name}{self.of}: {row_numbers(rows.rows[lengths > self.limit])} longer than the {self.limit} "
                f"tokens that the model takes (the longest has {lengths.max():,}); truncate them with "
                f"--data.{self.flag} {self.limit}"
            )
        if not lengths.all():
            yield (
                f"{rows.name}{self.of}: {row_numbers(rows.rows[lengths == 0])} without a single token; the tokenizer "
                "knows nothing in there: remove these rows, or take another tokenizer"
            )

    def summary(self, lengths: Array) -> str:
        """Return a line for the plan on texts of so many tokens each, before they were truncated."""
        line = f"{np.median(lengths):.0f} tokens in the middle, {lengths.max():,} at most"
        if self.max_length is None:
            return line
        long = (lengths > self.max_length).sum()
        return f"{line}; {long:,} of {len(lengths):,} {self.what} truncated to {self.max_length}"

    def tokens(self, rows: TableRows) -> WrittenTokens:
        """Return the token ids of the texts, made once per machine."""
        digest = rows.digest if self.key is None else digest_of(self.key, rows.digest)
        return WrittenTokens(tokenize(rows.table, self.tokenizer, self.max_length, digest))


def tokenize_columns(
    train: TableRows, evaluate: TableRows, columns: Mapping[str, TextColumn], summary: dict[str, str]
) -> tuple[Tokens, Tokens]:
    """Return the token ids of the training and of the evaluation texts, by the name of the column.

    Lines on lengths are added to `summary`.

    Raises:
        UserError: texts are longer than the model takes and are not to be truncated, or hold no token, or are to be
            truncated to more than the model takes or to nothing.
    """
    if problems := [problem for column in columns.values() for problem in column.settings_problems()]:
        raise UserError(*dict.fromkeys(problems))
    found: tuple[Tokens, Tokens] = {}, {}
    for name, column in columns.items():
        lengths = []
        for rows, tokens in zip((train, evaluate), found, strict=True):
            texts = rows.select(*column.texts)
            tokens[name] = column.tokens(texts)
            lengths.append(tokens[name].full_lengths)
            problems += column.problems(texts, lengths[-1])
        summary[column.line] = column.summary(np.concatenate(lengths))
    if problems:
        raise UserError(*dict.fromkeys(problems))
    return found


def length_limit(tokenizer: Any) -> int | None:
    """Return the longest text that a tokenizer says its model takes, in tokens; None if it knows no limit."""
    return int(tokenizer.model_max_length) if tokenizer.model_max_length < NO_LIMIT else None
