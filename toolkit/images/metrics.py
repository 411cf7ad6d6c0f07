"""Which class is taken for which: the confusion matrix of an evaluation, kept for the folder of the saved model."""

import csv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from toolkit.labels import Array
from toolkit.task import Finished

NAMED = 10
"""Mistakes that the model card names."""
SMALL = 20
"""A matrix of so many labels is shown in the model card."""


class Confusion:
    """Holds the confusion matrix of the last evaluation, from `Task.finish` to the export of the model."""

    def __init__(self, references: Array, names: Sequence[str]) -> None:
        """Expect predictions for samples with the labels `references` (ids of `names`)."""
        self.references = references
        self.names = names
        self.matrix: Array | None = None
        """(labels, labels): how many samples of the row's label were taken for the column's; None before an evaluation."""

    def finish(self, predictions: Mapping[int, Any]) -> Finished:
        """Count, and return predictions and references for the metrics: see `Task.finish`."""
        from sklearn.metrics import confusion_matrix

        predicted = [int(prediction) for prediction in predictions.values()]
        wanted = self.references[list(predictions)]
        self.matrix = confusion_matrix(wanted, predicted, labels=range(len(self.names)))
        return Finished(predicted, wanted.tolist())

    def exported(self, export: Callable[[Any, Path, Mapping[str, Any]], None]) -> Callable[..., None]:
        """Return an export that also writes confusion_matrix.csv, and what it shows into the model card."""

        def with_matrix(module: Any, folder: Path, results: Mapping[str, Any]) -> None:
            export(module, folder, results)
            if self.matrix is None:
                return
            with (folder / "confusion_matrix.csv").open("w", encoding="utf-8", newline="") as file:
                writer = csv.writer(file)
                writer.writerow(["label", *self.names])
                writer.writerows([name, *row] for name, row in zip(self.names, self.matrix.tolist(), strict=True))
            with (folder / "README.md").open("a", encoding="utf-8") as card:
                card.write(self.described())

        return with_matrix

    def described(self) -> str:
        """Return a section for a model card: the most frequent mistakes, and of few labels the whole matrix."""
        assert self.matrix is not None
        wrong = self.matrix.copy()
        np.fill_diagonal(wrong, 0)
        most = np.argsort(-wrong, axis=None, kind="stable")[:NAMED]
        mistakes = [
            f"- `{self.names[row]}` taken for `{self.names[column]}`: {wrong[row, column]} of {self.matrix[row].sum()}"
            for row, column in zip(*np.unravel_index(most, wrong.shape), strict=True)
            if wrong[row, column]
        ]
        text = "\n## Confusion\n\nRows are labels, columns what they were taken for (confusion_matrix.csv).\n"
        if len(self.names) <= SMALL:
            names = [name.replace("|", "\\|") for name in self.names]  # a plain one would end the cell of a table
            head = [f"\n| | {' | '.join(names)} |", f"| --- |{' --- |' * len(names)}"]
            rows = [
                f"| **{name}** | {' | '.join(map(str, row))} |"
                for name, row in zip(names, self.matrix.tolist(), strict=True)
            ]
            text += "\n".join([*head, *rows]) + "\n"
        return text + "\n" + ("\n".join(mistakes) or "No mistakes.") + "\n"
