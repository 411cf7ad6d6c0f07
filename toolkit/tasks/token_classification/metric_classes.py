"""The metrics of `toolkit.tasks.token_classification.metrics`; importing `evaluate` and `datasets` takes seconds."""

import warnings
from itertools import chain
from typing import Any

import datasets

from toolkit.extras import require
from toolkit.metric_classes import OfflineMetric, Scores


class EntityF1(OfflineMetric):
    """Precision, recall and F1 of whole entities, overall and for each type that the references have."""

    feature = datasets.Sequence(datasets.Value("string"))

    def _compute(self, predictions: Any, references: Any) -> Scores:
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


class WordAccuracy(OfflineMetric):
    """Share of words whose tag is right."""

    feature = datasets.Sequence(datasets.Value("string"))

    def _compute(self, predictions: Any, references: Any) -> Scores:
        from sklearn.metrics import accuracy_score

        return {"accuracy": float(accuracy_score(list(chain(*references)), list(chain(*predictions))))}


class WordMacroF1(OfflineMetric):
    """F1 of each tag over words, averaged over the tags that occur in references or predictions."""

    feature = datasets.Sequence(datasets.Value("string"))

    def _compute(self, predictions: Any, references: Any) -> Scores:
        from sklearn.metrics import f1_score

        wanted, predicted = list(chain(*references)), list(chain(*predictions))
        return {"macro_f1": float(f1_score(wanted, predicted, average="macro", zero_division=0))}
