"""How many tokens a language model guesses right, as an `evaluate.Metric`."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import evaluate


def token_accuracy(**options: Any) -> "evaluate.Metric":
    """Share of tokens that are the model's best guess."""
    from toolkit.tasks.language_modeling.metric_classes import TokenAccuracy

    return TokenAccuracy(**options)
