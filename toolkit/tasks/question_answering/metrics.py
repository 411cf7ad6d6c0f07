"""Scores of extracted answers."""

from typing import Any

import numpy as np

from toolkit.metrics import Scores
from toolkit.tasks.question_answering.rules import best_scores


def answer_scores(predictions: Any, references: Any) -> Scores:
    """Return the share of exact answers, and F1 of their words, both the best over a question's references.

    A prediction is a text, empty for "there is no answer"; a reference is a list of texts, empty where there is none. Where
    some questions have no answer, the scores of the two kinds of questions are given besides.
    """
    answered = np.array([len(known) > 0 for known in references])
    missing = not answered.all()
    pairs = zip(predictions, references, strict=True)
    exact, f1 = np.array([best_scores(said, known, missing) for said, known in pairs]).T
    scores = {"exact_match": float(exact.mean()), "f1": float(f1.mean())}
    if missing:
        # An empty answer is exact and whole, or neither: one number says both.
        scores["no_answer_accuracy"] = float(exact[~answered].mean())
        if answered.any():
            scores["answered_exact_match"] = float(exact[answered].mean())
            scores["answered_f1"] = float(f1[answered].mean())
    return scores
