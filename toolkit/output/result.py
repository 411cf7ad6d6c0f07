"""What a run or an evaluation came to, for its caller and for the screen."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from toolkit.output.console import Console

PLACES = {
    "model": "model",
    "predictions": "predictions.jsonl",
    "ledger": "ledger.jsonl",
    "settings": "config.yaml",
}
"""What the user finds in the folder of a finished run."""


@dataclass(frozen=True)
class Result:
    """What a run came to."""

    metrics: dict[str, float]
    """Of the last evaluation."""
    baseline: dict[str, float]
    """Of the trivial prediction, on the same samples."""
    steps: int
    output: Path


def print_result(result: Result, console: Console, places: Mapping[str, str] = PLACES) -> None:
    """Print the result beside the trivial baseline, and where things are."""
    if result.metrics:
        rows = [
            (name, f"{value:.4f}", f"{result.baseline[name]:.4f}" if name in result.baseline else "")
            for name, value in result.metrics.items()
        ]
        columns = ["evaluation", "this model", "baseline"] if result.baseline else ["evaluation", "this model"]
        console.table("", columns, [row[: len(columns)] for row in rows])
    console.summary(
        "",
        {name: str(result.output / path) for name, path in places.items() if (result.output / path).exists()},
    )
