"""Whether a reply comes to the right answer."""

import re
from collections.abc import Sequence

from toolkit.metrics import Scores

DIGITS_APART = re.compile(r"(?<=\d),(?=\d{3})")


def final_answer(reply: str, mark: str | None) -> str | None:
    """Return what is compared of a reply: all of it, or the rest of the line after the last `mark`; None without a mark.

    After a mark 1,000 counts as 1000 and a full stop at the end for nothing, as GSM8K is scored (arXiv 2110.14168).
    """
    if mark is None:
        return reply.strip()
    _, found, rest = reply.rpartition(mark.strip())
    if not found:
        return None
    return DIGITS_APART.sub("", rest.strip().partition("\n")[0]).strip().removesuffix(".")


def final_answers(predictions: Sequence[str], references: Sequence[str], mark: str | None) -> Scores:
    """Return the share of replies whose final answer is that of the reference, to the letter."""
    right = 0
    for prediction, reference in zip(predictions, references, strict=True):
        answer = final_answer(prediction, mark)
        right += answer is not None and answer == final_answer(reference, mark)
    return {"exact_match": right / len(references)}
