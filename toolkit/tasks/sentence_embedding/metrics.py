"""How well vectors find what belongs together: makers of metrics, and the metrics themselves."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import evaluate


def search_quality(**options: Any) -> "evaluate.Metric":
    """Recall among the 1, 5 and 10 nearest, mean reciprocal rank, and the share of triplets in the right order."""
    from toolkit.tasks.sentence_embedding.metric_classes import SearchQuality

    return SearchQuality(**options)
