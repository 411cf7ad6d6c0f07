"""The class behind `toolkit.tasks.language_modeling.metrics`; a module of its own because `evaluate` is slow to import."""

from typing import Any

import datasets

from toolkit.metric_classes import OfflineMetric, Scores


class TokenAccuracy(OfflineMetric):
    """Share of tokens that are the model's best guess; of a sample the first number of both sides counts: right, and all."""

    feature = datasets.Sequence(datasets.Value("int64"))

    def _compute(self, predictions: Any, references: Any) -> Scores:
        right, all_ = (sum(int(row[0]) for row in rows) for rows in (predictions, references))
        return {"accuracy": right / all_} if all_ else {}
