"""Which class is taken for which: the confusion matrix of an evaluation, also in the folder of the saved model."""

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from toolkit.data.labels import Array
from toolkit.task import Postprocessed

NAMED = 10
"""Mistakes that the model card names."""
SMALL = 20
"""A matrix of so many labels is shown in the model card."""


@dataclass(frozen=True)
class Confusion:
    """Counts which label is taken for which."""

    references: Array
    """The label id of each evaluation sample."""
    names: Sequence[str]
    """The name of each label id."""

    def postprocess(self, predictions: Mapping[int, Any]) -> Postprocessed:
        """Return predictions and references for the metrics, and the confusion matrix: see `Task.postprocess`.

        The matrix, shape (labels, labels), says how many samples of the row's label were taken for the column's.
        """
        from sklearn.metrics import confusion_matrix

        predicted = [int(prediction) for prediction in predictions.values()]
        wanted = self.references[list(predictions)]
        matrix = confusion_matrix(wanted, predicted, labels=range(len(self.names)))
        return Postprocessed(
            predicted, wanted.tolist(), samples=list(predictions), details={"confusion": matrix.tolist()}
        )

    def exported(self, export: Callable[[Any, Path, Mapping[str, Any]], None]) -> Callable[..., None]:
        """Return an export that also writes confusion_matrix.csv, and what it shows into the model card."""

        def with_matrix(module: Any, folder: Path, results: Mapping[str, Any]) -> None:
            export(module, folder, results)
            matrix = results["details"].get("confusion")
            if matrix is None:
                return
            with (folder / "confusion_matrix.csv").open("w", encoding="utf-8", newline="") as file:
                writer = csv.writer(file)
                writer.writerow(["label", *self.names])
                writer.writerows([name, *row] for name, row in zip(self.names, matrix, strict=True))
            with (folder / "README.md").open("a", encoding="utf-8") as card:
                card.write(self.described(np.array(matrix)))

        return with_matrix

    def described(self, matrix: Array) -> str:
        """Return a section for a model card: the most frequent mistakes, and of few labels the whole matrix."""
        wrong = matrix.copy()
        np.fill_diagonal(wrong, 0)
        most = np.argsort(-wrong, axis=None, kind="stable")[:NAMED]
        mistakes = [
            f"- `{self.names[row]}` taken for `{self.names[column]}`: {wrong[row, column]} of {matrix[row].sum()}"
            for row, column in zip(*np.unravel_index(most, wrong.shape), strict=True)
            if wrong[row, column]
        ]
        text = "\n## Confusion\n\nRows are labels, columns what they were taken for (confusion_matrix.csv).\n"
        if len(self.names) <= SMALL:
            names = [name.replace("|", "\\|") for name in self.names]  # a plain one would end the cell of a table
            head = [f"\n| | {' | '.join(names)} |", f"| --- |{' --- |' * len(names)}"]
            rows = [
                f"| **{name}** | {' | '.join(map(str, row))} |"
                for name, row in zip(names, matrix.tolist(), strict=True)
            ]
            text += "\n".join([*head, *rows]) + "\n"
        return text + "\n" + ("\n".join(mistakes) or "No mistakes.") + "\n"
