"""Metrics of rewards: does the model prefer what people (or a rule) preferred, and by how much."""

from typing import Any, ClassVar

import datasets
import evaluate
import numpy as np

from toolkit.metric_classes import OfflineMetric, Scores


class Preferences(OfflineMetric):
    """Share of pairs in which the preferred side has the higher reward, the mean margin, and the mean reward of both sides.

    A prediction is a pair of rewards; its reference is the number of the preferred side. A tie counts as half, which is what
    a coin would get: a model that was not trained yet has ties alone, and 0.5.
    """

    feature: ClassVar[Any] = datasets.Sequence(datasets.Value("float64"))

    def _info(self) -> evaluate.MetricInfo:
        features = datasets.Features({"predictions": self.feature, "references": datasets.Value("int64")})
        return evaluate.MetricInfo(
            description=self.__doc__ or "", citation="", inputs_description="", features=features
        )

    def _compute(self, predictions: Any, references: Any) -> Scores:
        rewards, preferred = np.asarray(predictions, dtype=np.float64), np.asarray(references)
        rows = np.arange(len(rewards))
        chosen, rejected = rewards[rows, preferred], rewards[rows, 1 - preferred]
        return {
            "preference_accuracy": float(np.mean((chosen > rejected) + 0.5 * (chosen == rejected))),
            "margin": float(np.mean(chosen - rejected)),
            "reward_chosen": float(np.mean(chosen)),
            "reward_rejected": float(np.mean(rejected)),
        }
