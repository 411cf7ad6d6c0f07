"""The metric of a search: it takes what `toolkit.tasks.sentence_embedding.search` found for each query."""

from typing import Any

import numpy as np

from toolkit.metrics import Scores
from toolkit.task import Metric, Quality

DEPTHS = (1, 5, 10)
MORE_DEPTHS = (2, 3, 20, 50, 100)
FOUND_EARLY = Quality("one divided by the rank of the right one", lambda found, query, scores: 1 / found["rank"])


def search_quality(predictions: Any, references: Any) -> Scores:
    """Return recall among the 1, 5 and 10 nearest, mean reciprocal rank, and the share of triplets in the right order.

    A prediction says of a query "rank", that of the nearest right answer, counted from 1 (so recall@1 is also the
    precision of the nearest), "nearest", the nearest answer, and "ordered", the share of pairs of a right and a wrong
    answer of which the right one is nearer.
    """
    ranks = np.array([found["rank"] for found in predictions])
    recalls = {f"recall@{depth}": float(np.mean(ranks <= depth)) for depth in DEPTHS}
    ordered = float(np.mean([found["ordered"] for found in predictions]))
    return {**recalls, "mrr": float(np.mean(1 / ranks)), "triplets": ordered}


def named_search_metrics() -> dict[str, Metric]:
    """Return the metrics that `evaluate.metrics` can name, of a search."""
    usual = dict.fromkeys((*(f"recall@{depth}" for depth in DEPTHS), "mrr", "triplets"), search_quality)
    more = (*(f"recall@{depth}" for depth in MORE_DEPTHS), "mrr@10", "median_rank")
    return {**usual, **dict.fromkeys(more, search_depths)}


def search_depths(predictions: Any, references: Any) -> Scores:
    """Return recall among so many nearest, mean reciprocal rank among the 10 nearest, and the rank in the middle."""
    ranks = np.array([found["rank"] for found in predictions])
    recalls = {f"recall@{depth}": float(np.mean(ranks <= depth)) for depth in MORE_DEPTHS}
    near = np.where(ranks <= DEPTHS[-1], 1 / ranks, 0.0)
    return {**recalls, "mrr@10": float(near.mean()), "median_rank": float(np.median(ranks))}
