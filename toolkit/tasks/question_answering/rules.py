"""How an answer is held against its references: the rules of the SQuAD data sets (arXiv 1606.05250, 1806.03822)."""

import re
import string
from collections import Counter
from collections.abc import Sequence

ARTICLES = re.compile(r"\b(?:a|an|the)\b")
NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def words_of(answer: str) -> list[str]:
    """Return the words that count: in lower case, without punctuation (that of ASCII), then without English articles."""
    return ARTICLES.sub(" ", answer.lower().translate(NO_PUNCTUATION)).split()


def exactness(answer: str, reference: str) -> float:
    """Return 1 if both have the same words in the same order, else 0."""
    return float(words_of(answer) == words_of(reference))


def overlap(answer: str, reference: str, missing: bool) -> float:
    """Return the F1 of the words, each counted as often as it occurs.

    Two answers without a word agree in data with `missing` answers (version 2), and share nothing in other data (version 1).
    """
    said, wanted = words_of(answer), words_of(reference)
    if missing and not said and not wanted:
        return 1.0
    shared = (Counter(said) & Counter(wanted)).total()
    return 2 * shared / (len(said) + len(wanted)) if shared else 0.0


def best_scores(answer: str, references: Sequence[str], missing: bool) -> tuple[float, float]:
    """Return exactness and overlap, each with the reference that is best for it.

    `missing` says whether some questions of the data have no answer: a reference without a word is then none, and where there
    is none left, the empty answer is right.
    """
    if missing:
        references = [reference for reference in references if words_of(reference)] or [""]
    return (
        max(exactness(answer, reference) for reference in references),
        max(overlap(answer, reference, missing) for reference in references),
    )
