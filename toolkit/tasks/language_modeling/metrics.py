"""How many tokens a language model guesses right."""

from typing import Any

from toolkit.metrics import Scores


def token_accuracy(predictions: Any, references: Any) -> Scores:
    """Return the share of tokens that are the model's best guess.

    Of a sample the first number of both sides counts: right ones, and all.
    """
    right, every = (sum(int(row[0]) for row in rows) for rows in (predictions, references))
    return {"accuracy": right / every} if every else {}
