"""Which evaluation is the best so far: its checkpoint is never deleted."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from toolkit.errors import SharedUserError
from toolkit.output.evaluation_file import numbers


@dataclass(frozen=True)
class Best:
    """The best evaluation so far."""

    step: int
    value: float


def better_of(rule: str, metrics: Mapping[str, float], step: int, best: Best | None) -> Best | None:
    """Return the better of the best evaluation so far and the one after `step`; of two alike the first stays.

    Args:
        rule: `checkpoint.best`, such as "lowest loss".
        metrics: of the evaluation, by name; one that is no number is never the best.
        step: after which it was made.
        best: the best one before, if there is any.

    Raises:
        SharedUserError: there is no metric of the name in the rule.
    """
    direction, _, name = rule.partition(" ")
    if name.strip() not in metrics:
        raise SharedUserError(
            f"checkpoint.best is {rule!r}, but the evaluation gives {', '.join(metrics)}; name one of these (the same "
            "command with another checkpoint.best goes on from the newest checkpoint)"
        )
    value = metrics[name.strip()]
    if value != value:
        return best
    if best is None or (value < best.value if direction == "lowest" else value > best.value):
        return Best(step, value)
    return best


def best_of_rows(rule: str, rows: Iterable[Mapping[str, Any]]) -> Best | None:
    """Return the best of the evaluations in some rows of a ledger, None if there was none; see `better_of`."""
    best: Best | None = None
    for row in rows:
        if row["evaluation"]:
            best = better_of(rule, numbers(row["evaluation"]), row["step"], best)
    return best
