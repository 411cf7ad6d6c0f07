"""The metrics of a model, and the files that keep them: evaluation.json, and some predictions for a reader."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolkit.output.ledger import finite_or_none
from toolkit.output.provenance import versions
from toolkit.output.run_folder import now, write_whole

NAME = "evaluation.json"
PREDICTIONS = "predictions.jsonl"
"""Of the evaluation at the end of the training."""
PREDICTIONS_ALONE = "evaluation_predictions.jsonl"
"""Of an evaluation without a training, which leaves the file of the training as it is."""


@dataclass(frozen=True)
class Evaluation:
    """The metrics of a model, and of the trivial baseline where it was asked for."""

    metrics: dict[str, float]
    baseline: dict[str, float] = field(default_factory=dict)
    examples: list[dict[str, Any]] = field(default_factory=list)
    """Some samples with prediction and reference, for a reader; in the main process alone."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """Other results from all predictions together; in the main process alone."""
    quality: Mapping[str, Any] = field(default_factory=dict)
    """How good single predictions are, with the worst and the best; in the main process alone."""
    undefined: Mapping[str, str] = field(default_factory=dict)
    """Why metrics are not numbers, by name; in the main process alone."""

    def as_json_lines(self) -> str:
        """Return the examples, a line each; numbers and arrays of numpy become those of Python."""
        lines = (json.dumps(one, ensure_ascii=False, default=as_plain) for one in self.examples)
        return "".join(f"{line}\n" for line in lines)


def write_evaluation(
    folder: Path,
    evaluation: Evaluation,
    weights: Mapping[str, Any],
    data: Mapping[str, Any],
    predictions: str = PREDICTIONS,
) -> None:
    """Write evaluation.json and the examples.

    Args:
        folder: the run folder, or another one.
        evaluation: what is written.
        weights: which weights were evaluated.
        data: the data that they were evaluated on.
        predictions: the name of the file for the examples, which is written if there are any.
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
        "quality": evaluation.quality,
        "undefined": evaluation.undefined,
    }
    write_whole(folder / NAME, json.dumps(finite_or_none(content), indent=2, default=as_plain) + "\n")


def as_plain(value: Any) -> Any:
    """Return a number or an array of numpy as Python has it."""
    return value.tolist()


def evaluation_of(folder: Path, weights: Mapping[str, Any]) -> Evaluation | None:
    """Return the evaluation of exactly these weights, without its examples, or None if the last one was of others."""
    try:
        content = json.loads((folder / NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(content, dict) or content.get("weights") != weights:
        return None
    metrics, baseline = (numbers(content[side]) for side in ("metrics", "baseline"))
    known = content["details"], content.get("quality", {}), content.get("undefined", {})
    return Evaluation(metrics, baseline, [], *known)


def weights_of_training(step: int, seal: str | None, averaged: bool = False) -> dict[str, Any]:
    """Return which weights of a run are scored and saved after a step, by the seal of its checkpoint, as
    evaluation.json names them."""
    of = "the training, averaged over its steps" if averaged else "the training"
    return {"of": of, "step": step, "checkpoint": seal}


def numbers(values: Mapping[str, float | None]) -> dict[str, float]:
    """Return metrics as they were before JSON, which has null for not-a-number."""
    return {name: math.nan if value is None else value for name, value in values.items()}
