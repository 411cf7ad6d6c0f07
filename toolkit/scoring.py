"""Predictions and references on their way into metrics, in bounded memory."""

from collections.abc import Callable, Sequence
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch


class Scorer:
    """The metrics of one evaluation, and those of a trivial prediction beside them.

    What comes in is kept by the metrics in Arrow files, in a folder of this evaluation's own.
    """

    def __init__(self, makers: Sequence[Callable[..., Any]], baseline: Any = None) -> None:
        self.folder = TemporaryDirectory(prefix="metrics-")
        self.baseline = baseline
        self.metrics = self.make(makers, "model")
        self.trivial = self.make(makers, "baseline") if baseline is not None else []

    def make(self, makers: Sequence[Callable[..., Any]], name: str) -> list[Any]:
        """Return new metrics with a folder of their own."""
        return [make(cache_dir=f"{self.folder.name}/{name}-{number}") for number, make in enumerate(makers)]

    def add(self, predictions: Any, references: Any) -> None:
        """Add a batch: one prediction and one reference per sample."""
        for metric in self.metrics:
            metric.add_batch(predictions=predictions, references=references)
        for metric in self.trivial:
            metric.add_batch(predictions=[self.baseline] * len(references), references=references)

    def compute(self) -> tuple[dict[str, float], dict[str, float]]:
        """Return the scores of the model and of the baseline, by name, and forget what was added."""
        scores = tuple(
            {name: float(value) for metric in metrics for name, value in metric.compute().items()}
            for metrics in (self.metrics, self.trivial)
        )
        self.folder.cleanup()
        return scores[0], scores[1]


def to_host(values: Any) -> Any:
    """Return predictions as a numpy array if they are a tensor; numpy has no bfloat16."""
    if not isinstance(values, torch.Tensor):
        return values
    host = values.detach().cpu()
    array: np.ndarray[Any, Any] = (host.float() if host.dtype == torch.bfloat16 else host).numpy()
    return array
