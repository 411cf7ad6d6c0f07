"""Texts with labels: where they come from, which columns they are in, and every way in which they can be wrong."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

from toolkit.config.fields import at_least, locates
from toolkit.data.columns import find_column, find_columns
from toolkit.data.config import DataConfig, embedded_splits
from toolkit.data.label_reading import comma_number, is_text, kind_of
from toolkit.data.labelled_rows import LabelledRows, check_columns, check_rows, labels_line, number_rows
from toolkit.data.labels import Kind
from toolkit.data.reading import Checked, counts_line
from toolkit.errors import UserError
from toolkit.sample_data.docstrings import docstrings
from toolkit.tasks.text_classification.folders import text_folders
from toolkit.tasks.text_classification.texts import Texts

if TYPE_CHECKING:
    from toolkit.data.sources import Splits

CORPUS_LENGTH = 128
"""Tokens that texts of the embedded corpus are truncated to: few are longer, and those would take much of the time."""


@dataclass(frozen=True)
class LabelledTexts(DataConfig):
    """The `data` section of a recipe that puts texts into classes, or gives them a number."""

    text: str | None = locates(None)
    """The column with the text; null finds it by its name."""
    text_pair: str | None = locates(None)
    """The column with the second text, where each sample is a pair; null finds it by its name, or there is none."""
    label: str | None = locates(None)
    """The column with the label; null finds it by its name."""
    weight: str | None = locates(None)
    """The column with the weight of each row, by how much its loss counts (0 or more); null counts all alike."""
    kind: Literal["auto", "single", "multi", "regression"] = "auto"
    """One label for each text, several (multi), or a number (regression); auto decides by the labels."""
    separator: str | None = None
    """The sign between several labels in one text, such as ";"."""
    max_length: int | None = None
    """Truncate longer texts to so many tokens; null takes them whole and refuses those that the model cannot take (the
    embedded corpus is truncated to 128)."""
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

    @property
    def resolved_max_length(self) -> int | None:
        """What longer texts are truncated to, in tokens; None where nothing is."""
        return CORPUS_LENGTH if self.max_length is None and self.embedded else self.max_length

    def read(self, known_labels: Sequence[str] | None = None) -> Texts:
        """Read the data, check it, and number its labels.

        `known_labels` are those of a saved model, in the order of their ids; null or none numbers what is found: in the
        order that the data brings, or sorted. Raises UserError with everything that is wrong.
        """
        read = self.each_set(lambda own: text_folders(own) or own.named_tables(_embedded))
        existing, schema = read.train.column_names, read.train.data.schema
        textual = [name for name in existing if is_text(schema.field(name).type)]
        weight, given = self.weight, (self.text, self.text_pair, self.label)
        if weight is not None:
            find_column(existing, "weight", weight, (), "the weights", taken=[name for name in given if name])
        columns = find_columns([name for name in existing if name != weight], textual, *given)
        others = [columns.label] if weight is None else [columns.label, weight]
        check_columns(read.tables, columns.texts, others)
        kind = self._kind(read.tables, columns.label)
        parts: list[Checked[LabelledRows]] = []
        for name, table in read.tables.items():
            like = parts[0].rows.labels if parts else None
            parts.append(check_rows(name, table, columns, kind, self.separator, like, weight))
        rows = number_rows(
            parts,
            kind,
            self.held_out,
            known_labels,
            what="rows",
            drop_invalid=self.drop_invalid,
            a_row="row with a text and a label",
            invalid="rows without a valid text or label" + ("" if weight is None else " or weight"),
        )
        weights = rows.train.weights
        if weights is not None and not weights.any():
            raise UserError(
                f"training data: every weight in column {weight!r} is 0, so there is nothing to learn; give another "
                "column with --data.weight"
            )
        found = f"text {' and '.join(map(repr, columns.texts))}, label {columns.label!r}"
        summary = {"data": read.origin, "columns": found, **rows.summary}
        summary["texts"] = counts_line(rows.train, rows.evaluate)
        summary["labels"] = labels_line(rows.train.labels, "rows")
        if weights is not None:
            summary["weights"] = f"from {weights.min():g} to {weights.max():g} of the training rows, column {weight!r}"
        if kind == "regression" and any(comma_number(table, columns.label) for table in read.tables.values()):
            summary["labels"] += "; read with decimal commas"
        return Texts(
            kind,
            rows.labels,
            rows.train,
            rows.evaluate,
            self.resolved_max_length,
            summary=summary,
            files=read.files,
            workers=self.workers,
            inputs=dict(zip(("text", "text_pair"), columns.texts, strict=False)),
            groups=self.groups_of(read, rows.evaluate.rows),
        )

    def _kind(self, tables: Mapping[str, Any], label: str) -> Kind:
        asked: str = self.kind  # and for the evaluation data what the training data is
        for name, table in tables.items():
            kind, problem = kind_of(table, label, asked, self.separator)
            if kind is None:
                raise UserError(f"{name}: {problem}")
            if (asked, kind) == ("auto", "single") and (number := comma_number(table, label)):
                raise UserError(
                    f"{name}: the label column {label!r} holds numbers with a comma, such as {number!r}, which may be "
                    "decimal numbers, classes, or several labels in one; say which with --data.kind regression, "
                    "--data.kind single or --data.separator ,"
                )
            asked = kind
        return cast(Kind, asked)


def _embedded() -> "Splits":
    return embedded_splits("docstrings of this Python's standard library; the label is the package", docstrings())
