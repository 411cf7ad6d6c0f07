"""Which class is taken for which: the confusion matrix of an evaluation in the folder of the saved model."""

import csv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from toolkit.data.labels import Array

NAMED = 10
"""Mistakes that the model card names."""
SMALL = 20
"""A matrix of so many labels is shown in the model card."""


def with_confusion(export: Callable[[Any, Path, Mapping[str, Any]], None]) -> Callable[..., None]:
    """Return an export that also writes confusion_matrix.csv, and what it shows into the model card."""

    def with_matrix(module: Any, folder: Path, results: Mapping[str, Any]) -> None:
        export(module, folder, results)
        found = results["details"].get("confusion")
        if found is None:
            return
        names, matrix = found["labels"], matrix_of(found)
        with (folder / "confusion_matrix.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["label", *names])
            writer.writerows([name, *row] for name, row in zip(names, matrix.tolist(), strict=True))
        with (folder / "README.md").open("a", encoding="utf-8") as card:
            card.write(described(names, matrix))

    return with_matrix


def matrix_of(found: Mapping[str, Any]) -> Array:
    """Return a confusion matrix, shape (labels, labels): samples of the row's label that were taken for the column's.

    `found` is that of `toolkit.details.confusion`.
    """
    matrix = np.zeros((len(found["labels"]),) * 2, dtype=np.int64)
    for label, taken_for, count in found["counts"]:
        matrix[label, taken_for] = count
    return matrix


def described(names: Sequence[str], matrix: Array) -> str:
    """Return a section for a model card: the most frequent mistakes, and of few labels the whole matrix."""
    wrong = matrix.copy()
    np.fill_diagonal(wrong, 0)
    most = np.argsort(-wrong, axis=None, kind="stable")[:NAMED]
    mistakes = [
        f"- `{names[row]}` taken for `{names[column]}`: {wrong[row, column]} of {matrix[row].sum()}"
        for row, column in zip(*np.unravel_index(most, wrong.shape), strict=True)
        if wrong[row, column]
    ]
    text = "\n## Confusion\n\nRows are labels, columns what they were taken for (confusion_matrix.csv).\n"
    if len(names) <= SMALL:
        cells = [name.replace("|", "\\|") for name in names]  # a plain one would end the cell of a table
        head = [f"\n| | {' | '.join(cells)} |", f"| --- |{' --- |' * len(cells)}"]
        rows = [
            f"| **{name}** | {' | '.join(map(str, row))} |" for name, row in zip(cells, matrix.tolist(), strict=True)
        ]
        text += "\n".join([*head, *rows]) + "\n"
    return text + "\n" + ("\n".join(mistakes) or "No mistakes.") + "\n"
