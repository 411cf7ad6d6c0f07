"""What an evaluation came to, as files: evaluation.json, and the samples for a reader beside it."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toolkit.evaluation import Evaluation
from toolkit.output.ledger import finite_or_none
from toolkit.output.provenance import versions
from toolkit.output.run_folder import now, write_whole

NAME = "evaluation.json"
PREDICTIONS = "predictions.jsonl"
"""Of the evaluation at the end of the training; later ones have a name of their own."""


def write_evaluation(
    folder: Path,
    evaluation: Evaluation,
    weights: Mapping[str, Any],
    data: Mapping[str, Any],
    predictions: str = PREDICTIONS,
) -> None:
    """Write what an evaluation came to.

    Args:
        folder: the run folder, or another one.
        evaluation: what it came to.
        weights: which weights were evaluated.
        data: what they were evaluated on.
        predictions: the name of the file for the samples that are shown, if there are any.
    """
    if evaluation.examples:
        write_whole(folder / predictions, evaluation.as_json_lines())
    content = {
        "metrics": evaluation.metrics,
        "baseline": evaluation.baseline,
        "weights": weights,
        "data": data,
        "predictions": predictions if evaluation.examples else None,
        "versions": versions(),
        "made": now(),
        "details": evaluation.details,
    }
    write_whole(folder / NAME, json.dumps(finite_or_none(content), indent=2) + "\n")


def read_evaluation(folder: Path) -> dict[str, Any]:
    """Return what `write_evaluation` wrote, or an empty mapping if there is nothing that can be read."""
    try:
        content = json.loads((folder / NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def evaluation_of(folder: Path, weights: Mapping[str, Any]) -> Evaluation | None:
    """Return the evaluation of these very weights, without its samples, or None if the last one was of others."""
    content = read_evaluation(folder)
    if content.get("weights") != weights:
        return None
    return Evaluation(numbers(content["metrics"]), numbers(content["baseline"]), [], content["details"])


def weights_of_training(step: int, seal: str | None) -> dict[str, Any]:
    """Return which weights a run has after a step, by the seal of its checkpoint, as evaluation.json names them."""
    return {"of": "the training", "step": step, "checkpoint": seal}


def numbers(values: Mapping[str, float | None]) -> dict[str, float]:
    """Return numbers by name as they were before JSON, which has no word for one that is not a number."""
    return {name: math.nan if value is None else value for name, value in values.items()}
