"""Texts with labels: where they come from, which columns they are in, and every way in which they can be wrong."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np

from toolkit.columns import Columns, find_columns
from toolkit.config import at_least
from toolkit.corpora.docstrings import docstrings
from toolkit.data_config import DataConfig, embedded_splits
from toolkit.errors import UserError
from toolkit.held_out import held_out_rows
from toolkit.label_reading import is_text, kind_of
from toolkit.labelled_rows import CheckedRows, check_columns, check_rows, label_names, number_labels
from toolkit.labels import Kind, Labels
from toolkit.texts import Split, Texts
from toolkit.tokenized_texts import TokenizedTexts, pad_texts

__all__ = ["LabelledTexts", "Texts", "TokenizedTexts", "pad_texts"]


@dataclass(frozen=True)
class LabelledTexts(DataConfig):
    """The `data` section of a recipe that puts texts into classes, or gives them a number."""

    text: str | None = None
    """The column with the text; null finds it by its name."""
    text_pair: str | None = None
    """The column with the second text, where each sample is a pair; null finds it by its name, or there is none."""
    label: str | None = None
    """The column with the label; null finds it by its name."""
    kind: Literal["auto", "single", "multi", "regression"] = "auto"
    """One label for each text, several (multi), or a number (regression); auto decides by the labels."""
    separator: str | None = None
    """The sign between several labels in one text, such as ";"."""
    max_length: int | None = None
    """Cut longer texts to so many tokens; null takes them whole and refuses those that the model cannot take."""
    drop_invalid: bool = False
    """Leave out rows without text or label instead of refusing them; the plan counts them."""

    def problems(self) -> Iterator[str]:
        """Yield what is wrong with the values, a sentence each."""
        yield from super().problems()
        if self.max_length is not None:
            yield from at_least(1, "data.max_length", self.max_length)
        if self.separator is not None and not self.separator:
            yield "data.separator is an empty text; give the sign between two labels, or leave it out"
        if self.separator and self.kind in ("single", "regression"):
            yield (
                f"data.separator is {self.separator!r} and data.kind is {self.kind}; a separator makes several "
                "labels of one (data.kind multi): leave one of the two out"
            )

    def read(self, known_labels: Sequence[str] | None = None) -> Texts:
        """Read the data, check it, and number its labels.

        `known_labels` are those of a saved model, in the order of their ids; null or none numbers what is found: in the
        order that the data brings, or sorted. Raises UserError with everything that is wrong.
        """
        read = self.tables(
            lambda: embedded_splits(
                "docstrings of this Python's standard library; the label is the package", docstrings()
            )
        )
        train, evaluate = read.train, read.evaluate
        columns = find_columns(
            train.column_names,
            [name for name in train.column_names if is_text(train.data.schema.field(name).type)],
            self.text,
            self.text_pair,
            self.label,
        )
        check_columns(train, evaluate, columns)
        tables = {"training data": train} | ({} if evaluate is None else {"evaluation data": evaluate})
        kind = self._kind(tables, columns.label)
        checked: list[CheckedRows] = []
        for name, table in tables.items():
            like = checked[0].split.labels if checked else None
            checked.append(check_rows(name, table, columns, kind, self.separator, like))
        problems = [problem for part in checked for problem in part.problems]
        if problems and not self.drop_invalid:
            raise UserError(*problems)
        splits = [part.split for part in checked]
        if nothing := [split.name for split in splits if not len(split)]:
            raise UserError(*(f"{name}: there is no row with a text and a label" for name in nothing))

        names = label_names(kind, splits, known_labels)
        splits = number_labels(kind, splits, names, known=bool(known_labels))
        facts = {"data": read.origin, "columns": _columns_line(columns)}
        if problems:
            counts = " and ".join(f"{part.dropped:,} of the {part.split.name}" for part in checked)
            facts["dropped"] = f"rows without a valid text or label: {counts}"
        if len(splits) == 1:
            splits = self._hold_out(splits[0])
            share = len(splits[1]) / (len(splits[0]) + len(splits[1]))
            facts["held out"] = (
                f"{share:.1%} of the training rows, the same for every seed; each label stays in training"
            )
        facts["texts"] = f"{len(splits[0]):,} to train on, {len(splits[1]):,} to evaluate on"
        facts["labels"] = _labels_line(splits[0].labels)
        return Texts(kind, names, columns, splits[0], splits[1], self.max_length, facts, read.files)

    def _kind(self, tables: Mapping[str, Any], label: str) -> Kind:
        asked: str = self.kind
        for name, table in tables.items():
            kind, problem = kind_of(table, label, asked, self.separator)
            if kind is None:
                raise UserError(f"{name}: {problem}")
            asked = kind
        return cast(Kind, asked)

    def _hold_out(self, whole: Split) -> list[Split]:
        labels = whole.labels
        if labels.kind == "regression":  # any number may be held out: to the rule, these are rows without labels
            held = held_out_rows(np.zeros_like(labels.starts), np.zeros(0, dtype=np.int64), self.held_out)
        else:
            held = held_out_rows(labels.starts, labels.values, self.held_out)
        if not len(held):
            raise UserError(
                f"there is no evaluation data, and none of the {len(whole)} training rows can be held out, since each "
                "label must stay in training; give data.eval, or more rows for each label"
            )
        stay = np.setdiff1d(np.arange(len(whole)), held, assume_unique=True)
        return [whole.take(stay), whole.take(held, "held-out rows of the training data")]


def _columns_line(columns: Columns) -> str:
    return f"text {' and '.join(map(repr, columns.texts))}, label {columns.label!r}"


def _labels_line(labels: Labels) -> str:
    if labels.kind == "regression":
        values = labels.values
        return f"numbers from {values.min():g} to {values.max():g}, {values.mean():g} on average"
    counts = labels.counts()
    least, most = int(counts.argmin()), int(counts.argmax())
    several = f", {len(labels.values) / len(labels):.1f} for a text" if labels.kind == "multi" else ""
    return (
        f"{len(counts)}{several}; the rarest is {labels.names[least]!r} with {counts[least]:,} training rows, "
        f"the most frequent {labels.names[most]!r} with {counts[most]:,}"
    )
