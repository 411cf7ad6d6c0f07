"""How an answer is held against its references: the rules of the SQuAD data sets (arXiv 1606.05250, 1806.03822)."""

import re
import string
from collections import Counter
from collections.abc import Sequence

import numpy as np

from toolkit.metrics import Scores

SCORES = ("exact_match", "f1", "no_answer_accuracy", "answered_exact_match", "answered_f1")
"""The names of what `answer_scores` returns; the last three only where some questions have no answer."""
ARTICLES = re.compile(r"\b(?:a|an|the)\b")
NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def answer_scores(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> Scores:
    """Return the share of exact answers and the F1 of their words, both the best over a question's references.

    A prediction is a text, empty for "there is no answer"; a reference is a list of texts, empty where there is none.
    Where some questions have no answer, the scores of the two kinds of questions are given besides.
    """
    answered = np.array([len(known) > 0 for known in references])
    missing = not answered.all()
    pairs = zip(predictions, references, strict=True)
    exact, f1 = np.array([best_scores(answer, known, missing) for answer, known in pairs]).T
    scores = {"exact_match": float(exact.mean()), "f1": float(f1.mean())}
    if missing:
        # An empty answer is exact and whole, or neither: one number stands for both.
        scores["no_answer_accuracy"] = float(exact[~answered].mean())
        if answered.any():
            scores["answered_exact_match"] = float(exact[answered].mean())
            scores["answered_f1"] = float(f1[answered].mean())
    return scores


def best_scores(answer: str, references: Sequence[str], missing: bool) -> tuple[float, float]:
    """Return exactness and overlap, each with the reference that is best for it.

    `missing`: whether some questions of the data have no answer. A reference without a word is then none, and where
    there is none left, the empty answer is right.
    """
    if missing:
        references = [reference for reference in references if words_of(reference)] or [""]
    return (
        max(exactness(answer, reference) for reference in references),
        max(overlap(answer, reference, missing) for reference in references),
    )


def exactness(answer: str, reference: str) -> float:
    """Return 1 if both have the same words in the same order, else 0."""
    return float(words_of(answer) == words_of(reference))


def overlap(answer: str, reference: str, missing: bool) -> float:
    """Return the F1 of the words, each counted as often as it occurs.

    Two answers without a word agree in data with `missing` answers (version 2), and share nothing in other data
    (version 1).
    """
    given, wanted = words_of(answer), words_of(reference)
    if missing and not given and not wanted:
        return 1.0
    shared = (Counter(given) & Counter(wanted)).total()
    return 2 * shared / (len(given) + len(wanted)) if shared else 0.0


def words_of(answer: str) -> list[str]:
    """Return the words that count: lower case, without punctuation (that of ASCII), then without English articles."""
    return ARTICLES.sub(" ", answer.lower().translate(NO_PUNCTUATION)).split()
