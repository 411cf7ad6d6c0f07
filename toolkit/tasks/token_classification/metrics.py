"""Metrics for tagged words: predictions and references are lists of tags, one list for each sentence."""

import warnings
from collections.abc import Sequence
from itertools import chain
from typing import Any

from toolkit.class_metrics import averages
from toolkit.errors import require
from toolkit.metrics import Scores
from toolkit.task import Metric

Tags = Sequence[Sequence[str]]

NAMES = {"f1": "f1-score", "precision": "precision", "recall": "recall"}
"""The name of each score here, and in a report of seqeval."""


def tag_metrics(kind: str) -> list[Metric]:
    """Return the metrics for tags of a kind, bio or plain; raises UserError if a package is missing."""
    if kind != "bio":
        return [word_accuracy, word_macro_f1]
    require("seqeval.metrics", "tag", "entity F1")
    return [entity_f1, word_accuracy]


def named_tag_metrics(kind: str, tags: Sequence[str]) -> dict[str, Metric]:
    """Return the metrics that `evaluate.metrics` can name, of words with these tags."""
    of_words: dict[str, Metric] = {"accuracy": word_accuracy, "macro_f1": word_macro_f1}
    of_words |= dict.fromkeys(("weighted_f1", "macro_precision", "macro_recall"), word_averages)
    if kind != "bio":
        return of_words
    types = sorted({tag[2:] for tag in tags if tag[:2] in ("B-", "I-")})
    found: dict[str, Metric] = dict.fromkeys((f"entity_{short}" for short in NAMES), entity_f1)
    found |= dict.fromkeys((f"strict_{short}" for short in NAMES), strict_entities)
    return found | of_words | {f"{short}_{name}": entity_f1 for short in NAMES for name in types}


def word_averages(predictions: Tags, references: Tags) -> Scores:
    """Return precision, recall and F1 of each tag over words, averaged."""
    return averages(list(chain(*predictions)), list(chain(*references)))


def strict_entities(predictions: Tags, references: Tags) -> Scores:
    """Return precision, recall and F1 of whole entities in seqeval's strict mode: an entity begins with B- alone."""
    seqeval, scheme = (require(name, "tag", "entity F1") for name in ("seqeval.metrics", "seqeval.scheme"))
    options: dict[str, Any] = {"mode": "strict", "scheme": scheme.IOB2, "zero_division": 0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {
            f"strict_{short}": float(getattr(seqeval, f"{short}_score")(references, predictions, **options))
            for short in NAMES
        }


def entity_f1(predictions: Tags, references: Tags) -> Scores:
    """Return precision, recall and F1 of whole entities, overall and for each type, as the script `conlleval` does.

    An entity is right if its first word, its last word and its type are. An I-x that continues nothing begins an
    entity, as in seqeval's default mode (not its strict one).
    """
    seqeval = require("seqeval.metrics", "tag", "entity F1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of types that were never predicted: their precision is 0 here
        report = seqeval.classification_report(references, predictions, output_dict=True, zero_division=0)
    overall = report.pop("micro avg", {"f1-score": 0.0, "precision": 0.0, "recall": 0.0})
    # A type that is only predicted would come and go between evaluations; it counts in the overall scores.
    types = {kind: of for kind, of in report.items() if not kind.endswith(" avg") and of["support"]}
    scores = {f"entity_{short}": float(overall[name]) for short, name in NAMES.items()}
    return scores | {f"{short}_{kind}": float(of[name]) for kind, of in types.items() for short, name in NAMES.items()}


def word_accuracy(predictions: Tags, references: Tags) -> Scores:
    """Return the share of words whose tag is right."""
    from sklearn.metrics import accuracy_score

    return {"accuracy": float(accuracy_score(list(chain(*references)), list(chain(*predictions))))}


def word_macro_f1(predictions: Tags, references: Tags) -> Scores:
    """Return the F1 of each tag over words, averaged over the tags that occur in references or predictions."""
    from sklearn.metrics import f1_score

    wanted, predicted = list(chain(*references)), list(chain(*predictions))
    return {"macro_f1": float(f1_score(wanted, predicted, average="macro", zero_division=0))}
