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


def print_result(result: Result, console: Console, places: Mapping[str, str] = PLACES) -> None:
    """Print the metrics next to those of the trivial baseline, and the paths of the files that exist."""
    if result.metrics:
        rows = [
            (name, shown(value), shown(result.baseline[name]) if name in result.baseline else "")
            for name, value in result.metrics.items()
        ]
        columns = ["evaluation", "this model", "baseline"] if result.baseline else ["evaluation", "this model"]
        console.table("", columns, [row[: len(columns)] for row in rows])
    for why in dict.fromkeys(result.undefined.values()):
        names = [name for name, reason in result.undefined.items() if reason == why]
        console.print(f"  undefined: {', '.join(names)} ({why})")
    console.summary(
        "",
        {name: str(result.output / path) for name, path in places.items() if (result.output / path).exists()},
    )


def shown(value: float) -> str:
    """Return a metric for the console."""
    return f"{value:.4f}" if value == value else "undefined"
