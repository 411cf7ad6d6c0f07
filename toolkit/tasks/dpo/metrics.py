"""Scores of rewards: does the model prefer what people (or a rule) preferred, and by how much."""

from typing import Any

import numpy as np

from toolkit.metrics import Scores


def preference_scores(predictions: Any, references: Any) -> Scores:
    """Return the share of pairs that are ranked right, the mean margin, and the mean reward of both sides.

    A prediction is a pair of rewards; its reference is the number of the preferred side. A tie counts as half, which is what
    a coin would get: a model that was not trained yet has ties alone, and 0.5.
    """
    rewards, preferred = np.asarray(predictions, dtype=np.float64), np.asarray(references)
    rows = np.arange(len(rewards))
    chosen, rejected = rewards[rows, preferred], rewards[rows, 1 - preferred]
    return {
        "preference_accuracy": float(np.mean((chosen > rejected) + 0.5 * (chosen == rejected))),
        "margin": float(np.mean(chosen - rejected)),
        "reward_chosen": float(np.mean(chosen)),
        "reward_rejected": float(np.mean(rejected)),
    }
