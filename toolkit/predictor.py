"""The seam between `toolkit predict` and a task: how the rows of a file, which have no labels, become predictions."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

import torch

from toolkit.data.columns import plain_name
from toolkit.data.tokenized import encode_texts
from toolkit.errors import UserError
from toolkit.task import Batch

EMPTY = "their prediction is empty"
"""The end of a remark on rows that the model can't be asked."""
Row = Mapping[str, Any]
"""A row of a file, by column; a cell of a csv file is a text, or null where it is empty."""


@dataclass(frozen=True)
class Encoded:
    """What a model takes of some rows."""

    samples: Sequence[Any]
    """For `Predictor.collate`."""
    owners: Sequence[int]
    """Which of the rows each sample is of, in ascending order; a row may have several, or none."""
    lengths: Sequence[int]
    """What each sample counts as, in tokens: those of like length share a batch."""
    remarks: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """What the user has to know of some of the rows, and which these are."""


@dataclass(frozen=True)
class Predictor:
    """A trained model with all that makes predictions of rows."""

    model: torch.nn.Module
    """On the host, in evaluation mode."""
    adds: Mapping[str, str]
    """The columns that a prediction has, and what is in them: "text", "texts", "number", "place" (a whole number),
    "vector", "scores" (a number for each label), or "guesses" (for each mask some tokens, each with its score); where a
    row has no prediction they are null."""
    parts: Sequence[str]
    """The parts that a column can play."""
    encode: Callable[[Sequence[Row]], Encoded]
    """Returns the samples of some rows, which are predicted together."""
    collate: Callable[[list[Any]], Batch]
    """Makes one batch of host tensors from samples."""
    predict: Callable[[torch.nn.Module, Batch], Sequence[Any]]
    """Returns one plain value for each sample of a batch, which `decode` understands."""
    decode: Callable[[Sequence[Row], Encoded, Sequence[Any]], Mapping[int, Mapping[str, Any]]]
    """Returns the prediction of each row that has any, by its place, given what `predict` returned for all samples."""
    summary: Mapping[str, str] = field(default_factory=dict)
    """What the user is told of it: a name and a text each."""


@dataclass(frozen=True)
class Request:
    """What a task is asked to predict with."""

    columns: Sequence[str]
    """Of the file."""
    given: Mapping[str, str]
    """Columns that the user named, by the part that they play."""
    trained_on: Mapping[str, str]
    """The columns that the model was trained on, likewise; empty where that is not known."""
    settings: Mapping[str, Any]
    """The settings that the model was trained with, section by section; empty where these are not known."""
    scores: bool = False
    """Whether all scores are wanted, and not those of the prediction alone."""
    tokens: int | None = None
    """The longest text that is generated, in tokens; None for what the model says."""
    threshold: float | None = None
    """Of several labels those are predicted whose probability is above it; None for what the model says."""
    without_header: str = ""
    """What to do where the names of the columns look like a row of data; empty where they do not."""

    def setting(self, section: str, name: str, default: Any) -> Any:
        """Return a setting that the model was trained with, or the default."""
        found = (self.settings.get(section) or {}).get(name)
        return default if found is None else found

    def column(self, part: str, tiers: Sequence[Sequence[str]]) -> str:
        """Return the column that plays a part: the one that is given, or trained on, or that has a usual name.

        Args:
            part: such as "text".
            tiers: usual names; the first tier that has exactly one of the columns decides.

        Raises:
            UserError: there is none, or it can't be told which.
        """
        found = self.optional_column(part)
        if found is not None:
            return found
        for tier in tiers:
            usual = [name for name in self.columns if plain_name(name) in tier]
            if len(usual) == 1:
                return usual[0]
            if usual:
                break
        if self.without_header:
            raise UserError(f"no column of the file is the {part}; {self.without_header}")
        if len(self.columns) == 1:
            return self.columns[0]
        raise UserError(
            f"it can't be told which column is the {part} ({self.listed}); say it with --column {part}=COLUMN"
        )

    def optional_column(self, part: str) -> str | None:
        """Return the column that plays a part, as it is given or was trained on; None where nothing is known.

        Raises:
            UserError: the file has no such column.
        """
        if part in self.given:
            name, why = self.given[part], "given by --column"
        elif part in self.trained_on:
            name, why = self.trained_on[part], "which the model was trained on"
        else:
            return None
        if name in self.columns:
            return name
        if self.without_header and part not in self.given:
            raise UserError(f"the file has no column {name!r} ({part}, {why}); {self.without_header}")
        near = get_close_matches(name, self.columns, 1)
        # Who writes --column review=text means text=review.
        turned = [other for other, column in self.given.items() if column == part and other in self.columns]
        likely = [*turned, *near, *self.columns]
        sure = "give" if turned or near or len(self.columns) == 1 else f"give --column {part}=COLUMN, such as"
        raise UserError(
            f"the file has no column {name!r} ({part}, {why}); {self.listed}: {sure} --column "
            + shlex.quote(f"{part}={likely[0] if likely else 'COLUMN'}")
        )

    @property
    def listed(self) -> str:
        """The columns of the file, for messages."""
        return f"its columns are {', '.join(map(repr, self.columns))}"


def text_of(value: Any) -> str | None:
    """Return the text of a cell, None where there is none; a list of sentences is joined with spaces."""
    if isinstance(value, list):
        value = " ".join(str(part).strip() for part in value if part)
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    return value if isinstance(value, str) else str(value)


def encoded_texts(
    tokens: Any, columns: Sequence[str], limit: int | None, rows: Sequence[Row], prefix: str = ""
) -> Encoded:
    """Return the token ids of the texts in a column, or of the pairs in two; of longer ones the first `limit`.

    A text that is a list of sentences is joined, and a `prefix` stands before each.
    """
    texts = [[text_of(row.get(column)) for column in columns] for row in rows]
    owners = [place for place, own in enumerate(texts) if all(own)]
    remarks = {}
    if len(owners) < len(rows):
        remarks[f"without a text: {EMPTY}"] = sorted(set(range(len(rows))) - set(owners))
    if not owners:
        return Encoded([], [], [], remarks)
    whole = [[f"{prefix}{texts[place][side]}" for place in owners] for side in range(len(columns))]
    encoded = encode_texts(tokens, whole, limit)
    samples = [dict(zip(encoded, values, strict=True)) for values in zip(*encoded.values(), strict=True)]
    lengths = [len(ids) for ids in encoded["input_ids"]]
    # Others than those that were truncated may have as many tokens.
    full = [number for number, length in enumerate(lengths) if length == limit]
    if full:
        again = encode_texts(tokens, [[side[number] for number in full] for side in whole], None)["input_ids"]
        if long := [owners[number] for number, ids in zip(full, again, strict=True) if len(ids) > lengths[number]]:
            remarks[f"longer than {limit} tokens: the rest was not read"] = long
    return Encoded(samples, owners, lengths, remarks)


def rounded(value: float) -> float:
    """Return a number with six digits, and no more than six after the point: others depend on the number of threads."""
    return float(f"{round(value, 6):.6g}")
