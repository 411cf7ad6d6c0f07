"""Metrics for tagged words: one prediction and one reference, each a list of tags, for a sentence."""

import warnings
from itertools import chain
from typing import Any

from toolkit.extras import require
from toolkit.metrics import Scores, accuracy, macro_f1
from toolkit.task import Metric


def tag_metrics(kind: str) -> list[Metric]:
    """Return the metrics for tags of a kind, bio or plain; raises UserError if a package is missing."""
    if kind != "bio":
        return [word_accuracy, word_macro_f1]
    require("seqeval.metrics", "tag", "entity F1")
    return [entity_f1, word_accuracy]


def entity_f1(predictions: Any, references: Any) -> Scores:
    """Return precision, recall and F1 of whole entities, overall and for each type, as the script `conlleval` counts them.

    An entity is right if its first word, its last word and its type are. An I-x that continues nothing begins an entity, as in
    seqeval's default mode (not its strict one).
    """
    seqeval = require("seqeval.metrics", "tag", "entity F1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of types that were never predicted: their precision is 0 here
        report = seqeval.classification_report(references, predictions, output_dict=True, zero_division=0)
    overall = report.pop("micro avg", {"f1-score": 0.0, "precision": 0.0, "recall": 0.0})
    scores = {
        "entity_f1": float(overall["f1-score"]),
        "entity_precision": float(overall["precision"]),
        "entity_recall": float(overall["recall"]),
    }
    for kind, of in report.items():
        # A type that is only predicted would come and go between evaluations; it counts in the overall scores.
        if not kind.endswith(" avg") and of["support"]:
            scores[f"f1_{kind}"] = float(of["f1-score"])
            scores[f"precision_{kind}"] = float(of["precision"])
            scores[f"recall_{kind}"] = float(of["recall"])
    return scores


def word_accuracy(predictions: Any, references: Any) -> Scores:
    """Return the share of words whose tag is right."""
    return accuracy(list(chain(*predictions)), list(chain(*references)))


def word_macro_f1(predictions: Any, references: Any) -> Scores:
    """Return the F1 of each tag over words, averaged over the tags that occur."""
    return macro_f1(list(chain(*predictions)), list(chain(*references)))
