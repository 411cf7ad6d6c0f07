"""The result of a run or of an evaluation, for its caller and for the console."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from toolkit.output.console import Console

PLACES = {
    "model": "model",
    "predictions": "predictions.jsonl",
    "ledger": "ledger.jsonl",
    "settings": "config.yaml",
}
"""What a finished run leaves in its folder, by the name that the console gives it."""


@dataclass(frozen=True)
class Result:
    """The result of a run or of an evaluation."""

    metrics: dict[str, float]
    """Of the last evaluation."""
    baseline: dict[str, float]
    """Of the trivial prediction, on the same samples."""
    steps: int
    output: Path
    undefined: Mapping[str, str] = field(default_factory=dict)
    """Why metrics are not numbers, by name."""
    exported: int | None = None
    """The step whose weights these metrics are of, if it is not the last one."""


def print_result(result: Result, console: Console, places: Mapping[str, str] = PLACES) -> None:
    """Print the metrics next to those of the trivial baseline, and the paths of the files that exist."""
    if result.metrics:
        rows = [
            (name, shown(value), shown(result.baseline[name]) if name in result.baseline else "")
            for name, value in result.metrics.items()
        ]
        columns = ["evaluation", "this model", "baseline"] if result.baseline else ["evaluation", "this model"]
        console.table("", columns, [row[: len(columns)] for row in rows])
    if result.exported is not None:
        console.print(f"  of the weights after step {result.exported:,}, which model/ holds")
    for why in dict.fromkeys(result.undefined.values()):
        names = [name for name, reason in result.undefined.items() if reason == why]
        console.print(f"  undefined: {', '.join(names)} ({why})")
    console.summary(
        "",
        {name: str(result.output / path) for name, path in places.items() if (result.output / path).exists()},
    )


def early_end(step: int, total: int, waited: int, best: int | None) -> str:
    """Return why a run ended before its last step, in words.

    Args:
        step: after which it ended.
        total: the steps that were planned.
        waited: its last evaluations, none of which was better.
        best: the step of the best evaluation, where it is known.
    """
    found = "brought no better one" if best is None else f"were not better than the one after step {best:,}"
    if waited == 1:
        found = found.replace("were", "was")
    several = f"{waited:,} evaluations in a row" if waited > 1 else "the last evaluation"
    return f"after step {step:,} of {total:,}: {several} {found} (evaluate.patience)"


def shown(value: float) -> str:
    """Return a metric for the console."""
    return f"{value:.4f}" if value == value else "undefined"
