"""Metrics for tagged words: one prediction and one reference, each a list of tags, for a sentence."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from toolkit.extras import require

if TYPE_CHECKING:
    import evaluate


def tag_metrics(kind: str) -> list[Callable[..., "evaluate.Metric"]]:
    """Return the makers of the metrics for tags of a kind, bio or plain; raises UserError if a package is missing."""
    if kind != "bio":
        return [word_accuracy, word_macro_f1]
    require("seqeval.metrics", "tag", "entity F1")
    return [entity_f1, word_accuracy]


def entity_f1(**options: Any) -> "evaluate.Metric":
    """Precision, recall and F1 of whole entities, overall and for each type, as the script `conlleval` counts them.

    An entity is right if its first word, its last word and its type are. An I-x that continues nothing begins an entity, as in
    seqeval's default mode (not its strict one).
    """
    from toolkit.tasks.token_classification import metric_classes

    return metric_classes.EntityF1(**options)


def word_accuracy(**options: Any) -> "evaluate.Metric":
    """Share of words whose tag is right."""
    from toolkit.tasks.token_classification import metric_classes

    return metric_classes.WordAccuracy(**options)


def word_macro_f1(**options: Any) -> "evaluate.Metric":
    """F1 of each tag over words, averaged over the tags that occur."""
    from toolkit.tasks.token_classification import metric_classes

    return metric_classes.WordMacroF1(**options)
