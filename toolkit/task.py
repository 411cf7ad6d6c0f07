"""The seam between a recipe and the loop.

A recipe says what is trained, as a `Task`; the loop says when, and Accelerate says where. The loop knows nothing of
texts, images or Hugging Face models.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

Batch = Mapping[str, torch.Tensor]
"""What `collate` makes of some samples: tensors by name, in host memory; the loop moves them to the device."""


class Source(Protocol):
    """Samples that are fetched by number."""

    def __len__(self) -> int:
        """Return the number of samples; their ids are 0 to this number, exclusive."""

    def fetch(self, ids: Sequence[int]) -> list[Any]:
        """Return the samples with these ids, in this order."""

    def lengths(self, ids: np.ndarray) -> np.ndarray | None:
        """Return the length of each of these samples (int64, shape of `ids`) without reading it, or None if unknown."""

    def digest(self) -> str:
        """Return a hash of the content: two sources with one digest hold the same samples."""


class ModelContext(Protocol):
    """What a model may need to know of the place that it is built for."""

    @property
    def device(self) -> torch.device:
        """The device of this process."""

    @property
    def is_main(self) -> bool:
        """Whether this is the process that speaks and writes."""


@dataclass(frozen=True)
class Task:
    """Everything that the loop asks of a recipe."""

    model: Callable[[ModelContext], torch.nn.Module]
    """Returns the module to train. It is called with the random generators seeded alike in every process."""
    train: Source
    """The training samples."""
    collate: Callable[[list[Any]], Batch]
    """Makes one batch of host tensors from samples; pads to the longest of them."""
    units: Callable[[Batch], int]
    """Counts what the loss is averaged over (labelled tokens, samples, pairs), from the batch alone, on the host."""
    loss: Callable[[torch.nn.Module, Batch], torch.Tensor]
    """Returns the loss **summed** over the units of a batch, a scalar; never a mean, which would depend on the cut."""
    evaluate: Source | None = None
    """The samples for evaluation, if there are any."""
    predict: Callable[[torch.nn.Module, Batch], Any] | None = None
    """Returns one prediction per sample of the batch: a tensor or a sequence with a first dimension of that size."""
    references: Callable[[Batch], Any] = field(default=lambda batch: batch["labels"])
    """Returns what the predictions are held against, one per sample of the batch."""
    metrics: Sequence[Callable[..., Any]] = ()
    """Makers of `evaluate.Metric`s, called with a `cache_dir` in the main process alone when an evaluation starts: `evaluate` is slow to import."""
    baseline: Any = None
    """The prediction of a trivial model (the majority class, the mean), the same for every sample; its metrics are shown beside the model's."""
    export: Callable[[torch.nn.Module, Path, Mapping[str, Any]], None] | None = None
    """Writes the trained module into a folder, which does not exist yet; the mapping holds the results, for a model card."""
    files: Sequence[Path] = ()
    """The files that the data was read from, if any: `toolkit verify` tells whether they are still what they were."""
    workers: int = 0
    """Processes that fetch and collate ahead of the training; 0 does it in the training process."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """What the plan shows of data and model, line by line: a name and a text."""
