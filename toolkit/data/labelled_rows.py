"""Rows with one label each, several, or a number: how they are checked, numbered and held out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Self, TypeVar

import numpy as np

from toolkit.config.loss import LossConfig
from toolkit.data.columns import Columns, plain_name
from toolkit.data.held_out import held_out_rows
from toolkit.data.label_loss import label_loss
from toolkit.data.label_reading import is_text, read_labels, read_weights
from toolkit.data.labels import Array, Kind, Labels, ordered
from toolkit.data.reading import (
    REMEDY,
    SHOWN,
    Checked,
    DataRead,
    TableRows,
    checked_rows,
    hold_out,
    listed,
    missing_columns,
    usable_rows,
)
from toolkit.data.tokenized import ROWS_AT_ONCE
from toolkit.errors import UserError

if TYPE_CHECKING:
    from toolkit.losses import LabelLoss


@dataclass(frozen=True)
class LabelledRows(TableRows):
    """Rows of a table and their labels, for training or for evaluation."""

    labels: Labels
    weights: Array | None = field(default=None, kw_only=True)
    """By how much each row counts (float64); None where all count alike."""

    def take(self, rows: Array, name: str | None = None) -> Self:
        """Return these rows, in this order, under another name if one is given."""
        weights = None if self.weights is None else self.weights[rows]
        return replace(super().take(rows, name), labels=self.labels.take(rows), weights=weights)


AnyLabelled = TypeVar("AnyLabelled", bound=LabelledRows)


@dataclass(frozen=True)
class LabelledData(DataRead):
    """Training and evaluation rows with numbered labels."""

    kind: Kind
    """One label for each row, several, or a number."""
    labels: list[str]
    """The name of each label id; empty for regression."""
    train: LabelledRows
    evaluate: LabelledRows

    def loss(self, config: LossConfig) -> "LabelLoss":
        """Return the loss that a configuration asks for, and describe its weights in the plan; see `label_loss`."""
        labels = self.train.labels
        counts = np.zeros(0, dtype=np.int64) if self.kind == "regression" else labels.counts()
        return label_loss(config, self.kind, self.labels, counts, len(labels), self.summary)

    @cached_property
    def baseline(self) -> int | float | list[float]:
        """What a model would predict that has seen nothing but the labels.

        The most frequent label's id; for several labels the 0/1 vector of those that most rows have, or else of the
        most frequent one; for regression the mean.
        """
        labels = self.train.labels
        if self.kind == "regression":
            return float(labels.values.mean())
        counts = labels.counts()
        if self.kind == "single":
            return int(counts.argmax())
        chosen = counts > len(labels) / 2
        if not chosen.any():
            chosen[counts.argmax()] = True
        return [float(value) for value in chosen]


class NumberedRows(NamedTuple, Generic[AnyLabelled]):
    """Training and evaluation rows whose labels are ids."""

    labels: list[str]
    """The name of each label id; empty for regression."""
    train: AnyLabelled
    evaluate: AnyLabelled
    summary: dict[str, str]
    """Lines for the plan on what was dropped and what was held out."""


def number_rows(
    parts: Sequence[Checked[AnyLabelled]],
    kind: Kind,
    held_out: float,
    known: Sequence[str] | None = None,
    *,
    what: str,
    drop_invalid: bool,
    a_row: str,
    invalid: str,
    remedy: str | None = REMEDY,
) -> NumberedRows[AnyLabelled]:
    """Return the rows that can be used with their labels as ids, some of them held out if there is no evaluation data.

    Args:
        parts: the training data and, if there is some, the evaluation data.
        kind: of the labels.
        held_out: the share of the rows that is held out.
        known: the labels of a saved model, in the order of their ids; without them, what is found is numbered in the
            order that the data brings, or sorted.
        what: what the rows are: "rows", "images".
        drop_invalid: see `usable_rows`, also for the arguments after it.

    Raises:
        UserError: with everything that is wrong with the rows, or with their labels.
    """
    splits, summary = usable_rows(parts, drop_invalid=drop_invalid, a_row=a_row, invalid=invalid, remedy=remedy)
    names = label_names(kind, splits, known)
    splits = number_labels(kind, splits, names, known=bool(known))
    if len(splits) == 1:
        splits, summary["held out"] = hold_out_by_label(splits[0], held_out, what)
    train, evaluate = splits
    return NumberedRows(names, train, evaluate, summary)


def check_columns(tables: Mapping[str, Any], texts: Sequence[str], others: Sequence[str]) -> None:
    """Raise UserError if a column is not in each table, or one of the columns of texts holds something else."""
    problems = missing_columns(tables, (*texts, *others))
    problems += [
        f"{name}: the text column {column!r} holds {type_}, not text; give another one with --data.text or "
        f"--data.text_pair (the columns are {listed(table.column_names)})"
        for name, table in tables.items()
        for column in texts
        if column in table.column_names and not is_text(type_ := table.data.schema.field(column).type)
    ]
    if problems:
        raise UserError(*problems)


def check_rows(
    name: str,
    table: Any,
    columns: Columns,
    kind: Kind,
    separator: str | None,
    like: Labels | None = None,
    weight: str | None = None,
) -> Checked[LabelledRows]:
    """Return the rows of a table that have a text, a label and, where a column holds their `weight`, a weight; `like`:
    labels of the training data.
    """
    labels = read_labels(table, columns.label, kind, separator, like)
    texts = table.select_columns(columns.texts)
    wrong = {f"empty text in column {column!r}": empty for column, empty in empty_texts(texts).items()}
    wrong[f"no label in column {columns.label!r}"] = labels.empty
    wrong[f"the label in column {columns.label!r} is not a finite number, which data.kind regression needs,"] = (
        labels.unreadable
    )
    weights = None
    if weight is not None:
        weights = read_weights(table, weight)
        wrong[f"the weight in column {weight!r} is not a finite number of at least 0"] = ~(
            np.isfinite(weights) & (weights >= 0)
        )
    whole = LabelledRows(name, texts, np.arange(len(labels), dtype=np.int64), labels, weights=weights)
    return checked_rows(whole, wrong)


def label_names(kind: Kind, splits: Sequence[LabelledRows], known: Sequence[str] | None) -> list[str]:
    """Return the label of each id: those of a saved model, or in the order that the data gives, or sorted."""
    if kind == "regression":
        if known:
            raise UserError(
                f"the labels are numbers (regression), but the model puts texts into {len(known)} classes "
                f"({listed(known)}); give data.kind single or multi, or another model"
            )
        return []
    if known:
        return list(known)
    labels = splits[0].labels
    return labels.names if labels.in_order else ordered([labels.names[i] for i in np.unique(labels.values).tolist()])


def number_labels(kind: Kind, splits: Sequence[AnyLabelled], names: list[str], known: bool) -> list[AnyLabelled]:
    """Return the splits with labels as ids of `names`. Raises UserError for labels without an id, and if all are alike.

    With `known` labels, those of a saved model, a label need not be in the training data, which may have only one.
    """
    problems = []
    if kind == "regression":
        if len(np.unique(splits[0].labels.values)) < 2 and len(splits[0]) > 1:
            problems.append(
                f"training data: every label is {splits[0].labels.values[0]:g}, so there is nothing to learn; "
                "give another column with --data.label"
            )
        if problems:
            raise UserError(*problems)
        return list(splits)
    numbered = [replace(part, labels=part.labels.renamed(names)) for part in splits]
    seen = numbered[0].labels.counts() > 0
    for before, after in zip(splits, numbered, strict=True):
        strange = after.labels.values < 0
        if not known:
            strange |= ~seen[after.labels.values]
        if not strange.any():
            continue
        counts = np.bincount(before.labels.values[strange]).tolist()
        found = [
            f"{name!r} ({count:,} row{'s' if count > 1 else ''})"
            for name, count in zip(before.labels.names, counts, strict=False)
            if count
        ]
        shown = ", ".join(found[:SHOWN]) + (f", ... ({len(found)} in all)" if len(found) > SHOWN else "")
        own = names if known else [name for name, is_seen in zip(names, seen, strict=False) if is_seen]
        shown += slip_of([name for name, count in zip(before.labels.names, counts, strict=False) if count], own)
        where = f"the model, whose labels are {listed(names)}," if known else "the training data"
        problems.append(
            f"{before.name}: labels that {where} does not know: {shown}; correct or remove these rows, or "
            + ("take another model" if known else "add such rows to the training data")
        )
    if not known and (alone := _alike(numbered[0].labels)):
        problems.append(f"training data: {alone}, so there is nothing to learn; give at least two labels")
    if problems:
        raise UserError(*problems)
    return numbered


def hold_out_by_label(whole: AnyLabelled, share: float, what: str) -> tuple[list[AnyLabelled], str]:
    """Return the rows that stay in training and those that are held out, and a line for the plan.

    Each label stays in training. `what` the rows are: rows, images, ...

    Raises:
        UserError: the labels allow none to be held out.
    """
    labels = whole.labels
    if labels.kind == "regression":  # any number may be held out: to the rule, these are rows without labels
        held = held_out_rows(np.zeros_like(labels.starts), np.zeros(0, dtype=np.int64), share)
    else:
        held = held_out_rows(labels.starts, labels.values, share)
    if not len(held):
        names = getattr(labels, "names", [])
        if len(whole) > 2 and labels.kind == "single" and len(names) == len(whole):
            raise UserError(
                f"each of the {len(whole)} training {what} has a label of its own, such as {str(names[0])[:40]!r}, so "
                "there are no classes to learn; name the column of the classes with --data.label COLUMN"
            )
        raise UserError(
            f"there is no evaluation data, and none of the {len(whole)} training {what} can be held out, since each "
            f"label must stay in training; give data.eval, or more {what} for each label"
        )
    line = f"{len(held) / len(whole):.1%} of the training {what}, the same for every seed; each label stays in training"
    return hold_out(whole, held, what), line


def labels_line(labels: Labels, what: str) -> str:
    """Return a line for the plan on the labels of the training data; `what` its rows are."""
    if labels.kind == "regression":
        values = labels.values
        return f"numbers from {values.min():g} to {values.max():g}, {values.mean():g} on average"
    counts = labels.counts()
    least, most = int(counts.argmin()), int(counts.argmax())
    several = f", {len(labels.values) / len(labels):.1f} for each of the {what}" if labels.kind == "multi" else ""
    if counts[least] == counts[most]:
        return f"{len(counts)}{several}; each with {counts[least]:,} training {what}"
    return (
        f"{len(counts)}{several}; the rarest is {labels.names[least]!r} with {counts[least]:,} training {what}, "
        f"the most frequent {labels.names[most]!r} with {counts[most]:,}"
    )


def _alike(labels: Labels) -> str:
    """Say in which way all rows have the same label, if they have."""
    counts = labels.counts()
    carried = np.flatnonzero(counts)
    if len(carried) == 0:
        return "no row has any label"
    # In a task of several labels one alone is enough, if some rows have it and others not.
    if len(carried) == 1 and (labels.kind == "single" or counts[carried[0]] == len(labels)):
        return f"every row has the label {labels.names[carried[0]]!r}"
    return ""


def empty_texts(texts: Any) -> dict[str, Array]:
    """Tell for each text column which rows are null or white space; few rows are in memory at once."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found: dict[str, list[Array]] = {column: [] for column in texts.column_names}
    for batch in texts.with_format("arrow").iter(10 * ROWS_AT_ONCE):
        for column, parts in found.items():
            trimmed = pc.utf8_trim_whitespace(batch.column(column).cast(pa.large_string()))
            parts.append(pc.fill_null(pc.equal(pc.binary_length(trimmed), 0), True).to_numpy())
    return {column: np.concatenate(parts) if parts else np.zeros(0, dtype=bool) for column, parts in found.items()}


def slip_of(strange: Sequence[str], known: Sequence[str]) -> str:
    """Return which known label a strange one is but for capitals and marks, in brackets; empty if none is."""
    plain = {plain_name(name): name for name in known}
    found = [(name, plain[plain_name(name)]) for name in strange if plain_name(name) in plain]
    return f" ({', '.join(f'{name!r} may be {own!r}' for name, own in found[:SHOWN])})" if found else ""
