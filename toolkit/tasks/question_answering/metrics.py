"""Metrics for answers."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import evaluate


def answer_scores(**options: Any) -> "evaluate.Metric":
    """Share of exact answers, and F1 of their words, both the best over a question's references."""
    from toolkit.tasks.question_answering import metric_classes

    return metric_classes.AnswerScores(**options)
