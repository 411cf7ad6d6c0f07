"""The metric of a search: it takes what `toolkit.tasks.sentence_embedding.search` found for each query."""

from typing import Any

import datasets
import evaluate
import numpy as np

from toolkit.metric_classes import OfflineMetric, Scores

DEPTHS = (1, 5, 10)


class SearchQuality(OfflineMetric):
    """Recall among the 1, 5 and 10 nearest, mean reciprocal rank, and the share of triplets in the right order.

    A query's rank is that of the nearest right answer, counted from 1, so recall@1 is also the precision of the nearest.
    """

    def _info(self) -> evaluate.MetricInfo:
        found = {name: datasets.Value(type_) for name, type_ in FOUND.items()}
        features = datasets.Features({"predictions": found, "references": datasets.Value("int64")})
        return evaluate.MetricInfo(
            description=self.__doc__ or "", citation="", inputs_description="", features=features
        )

    def _compute(self, predictions: Any, references: Any) -> Scores:
        ranks = np.array([found["rank"] for found in predictions])
        recalls = {f"recall@{depth}": float(np.mean(ranks <= depth)) for depth in DEPTHS}
        ordered = float(np.mean([found["ordered"] for found in predictions]))
        return {**recalls, "mrr": float(np.mean(1 / ranks)), "triplets": ordered}


FOUND = {"rank": "int64", "nearest": "int64", "ordered": "float64"}
"""What is known of each query: the rank of the nearest right answer, the nearest answer, and the share of pairs of a right and
a wrong answer of which the right one is nearer."""
