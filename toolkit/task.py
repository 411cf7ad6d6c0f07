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

from toolkit.errors import UserError

Batch = Mapping[str, torch.Tensor]
"""What `collate` makes of some samples: tensors by name, in host memory; the loop moves them to the device."""


Metric = Callable[[Any, Any], Mapping[str, float]]
"""Scores by name, of all predictions and what they are held against: one of each per sample, or per item that
`Task.postprocess` made. Both are numpy arrays where the task gives tensors, or else lists."""


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
class Postprocessed:
    """What the metrics take, where it is not one prediction per sample: made by `Task.postprocess` of all
    predictions."""

    predictions: Sequence[Any]
    """One per item: an item is whatever the metrics count, such as a text of several windows, or a question."""
    references: Sequence[Any]
    """What they are held against, one per item."""
    baseline: Sequence[Any] | None = None
    """What a trivial model would predict, one per item; None where there is none, or `Task.baseline` says it."""
    scores: Sequence[Mapping[str, float]] | None = None
    """How sure the model is of each item, by name, for a reader."""
    samples: Sequence[int] | None = None
    """Where each item is of one sample, the id of that: it is shown with its `Task.scores`."""


@dataclass(frozen=True)
class Quality:
    """How good a single prediction is, for a reader: the worst and the best are shown, nothing is decided by it."""

    name: str
    """What it is, such as "share of words that are right": more is better."""
    of: Callable[[Any, Any, Mapping[str, float] | None], float]
    """Returns it, given a prediction, its reference and what `Task.scores` says of the sample (None without)."""


@dataclass(frozen=True)
class Tuned:
    """Other predictions, made of the probabilities in a way that may be chosen on the evaluation data: by
    `Task.tuned`."""

    predictions: Any
    """One per sample, in the order of the probabilities, as `Task.predict` gives them."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """What was chosen: see `Postprocessed.details`."""


@dataclass(frozen=True)
class GlobalBatchLoss:
    """A loss that couples the samples of a step, such as one with in-batch negatives.

    The loop gathers the representations of the whole global batch, takes the gradient of the loss with respect to them,
    and then runs each micro-batch backward with its part of that gradient (gradient caching, arXiv 2101.06983), so that
    the negatives are those of the global batch on any number of processes and micro-batches.
    """

    embed: Callable[[torch.nn.Module, Batch], torch.Tensor]
    """Returns what the loss is made of: a tensor of shape (samples of the batch, ...), the same shape after the first
    in every batch."""
    loss: Callable[[torch.Tensor, Any], torch.Tensor]
    """Returns the loss **summed** over the units, from the representations of a global batch, in the order of the
    sample ids, and what `extra` returned for the same samples (None without)."""
    extra: Callable[[Batch], torch.Tensor] | None = None
    """Returns what else the loss has to know of each sample, which no gradient flows into: (samples of the batch,
    ...)."""


@dataclass(frozen=True)
class TaskData:
    """The data of a task: what it is trained on, what it is evaluated on, and where both come from."""

    train: Source
    """The training samples."""
    evaluate: Source | None = None
    """The samples for evaluation, if there are any."""
    files: Sequence[Path] = ()
    """The files that the data was read from, if any: `toolkit verify` tells whether they are still what they were."""
    workers: int = 0
    """Processes that fetch and collate ahead of the training; 0 does it in the training process."""
    summary: Mapping[str, str] = field(default_factory=dict)
    """What the plan shows of it, line by line: a name and a text."""
    inputs: Mapping[str, str] = field(default_factory=dict)
    """The columns that hold what a model is given, by the part that they play, such as "text": a saved model remembers
    them for `toolkit predict`."""
    groups: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Groups of the evaluation that have metrics and a loss of their own, by name: the ids of the samples in each, or,
    where `Task.postprocess` makes items that are of no single sample, the numbers of these."""
    item_of: np.ndarray | None = None
    """Where groups are of such items: the number of the item that each evaluation sample belongs to."""


def labels_of(batch: Batch) -> torch.Tensor:
    """Return what predictions are held against where a task does not say it.

    Raises:
        UserError: the batch has no labels.
    """
    if "labels" not in batch:
        raise UserError(
            f"the batch has no 'labels' to hold the predictions against, it has {', '.join(batch)}; say by "
            "`Task.references` what they are held against"
        )
    return batch["labels"]


@dataclass(frozen=True)
class Task:
    """Everything that the loop asks of a recipe."""

    model: Callable[[ModelContext], torch.nn.Module]
    """Returns the module to train. It is called with the random generators seeded alike in every process. What a module
    says in a mapping `plan_remarks`, a name and a text each, is shown in the plan."""
    data: TaskData
    """What it is trained and evaluated on."""
    collate: Callable[[list[Any]], Batch]
    """Makes one batch of host tensors from samples; pads to the longest of them."""
    units: Callable[[Batch], float]
    """Counts what the loss is averaged over (labelled tokens, samples, pairs), from the batch alone, on the host: a
    whole number, or the sum of their weights where they do not all count alike."""
    loss: Callable[[torch.nn.Module, Batch], torch.Tensor] | GlobalBatchLoss
    """Returns the loss **summed** over the units of a batch, a scalar; never a mean, which would depend on how a batch
    is split."""
    transform: Callable[[Any, np.random.Generator], Any] | None = None
    """Returns a training sample with what is random about it: augmentation, masking. The generator depends on (seed,
    epoch, sample id) alone, so the sample comes out the same on any topology and after any resume."""
    evaluate_transform: Callable[[Any, np.random.Generator], Any] | None = None
    """The same for evaluation samples; their generator depends on (seed, sample id), so every evaluation sees the same
    ones."""
    predict: Callable[[torch.nn.Module, Batch], Any] | None = None
    """Returns one prediction per sample of the batch: a tensor or a sequence with a first dimension of that size."""
    references: Callable[[Batch], Any] = labels_of
    """Returns what the predictions are held against, one per sample of the batch; not called where there is a
    `postprocess`."""
    scores: Callable[[torch.nn.Module, Batch], Sequence[Mapping[str, float]]] | None = None
    """Returns how sure the model is of what, by name, for each sample of the batch: for the reader of the samples that
    are shown; nothing is counted of it. It shares the forward pass of loss and predictions."""
    postprocess: Callable[[Mapping[int, Any]], Postprocessed] | None = None
    """Makes predictions and references for the metrics from the predictions of all samples, which come by sample id in
    ascending order; called in the main process alone. All predictions are held in its memory. Before the first step it
    is tried with those of a few samples, and with all of them where that fails."""
    metrics: Sequence[Metric] = ()
    """Functions that score all predictions beside all references, in the main process alone (`toolkit.metrics`)."""
    named_metrics: Mapping[str, Metric] = field(default_factory=dict)
    """Metrics that the setting evaluate.metrics can name: under each name a function that returns a score of this name,
    perhaps among others. Without any, the functions in `metrics` can be named."""
    probabilities: Callable[[torch.nn.Module, Batch], torch.Tensor] | None = None
    """Returns the probability of each class, (samples, classes), for metrics that take them
    (`toolkit.metrics.of_probabilities`) and for `tuned`. It shares the forward pass of loss and predictions."""
    tuned: Callable[[Any, Any], Tuned] | None = None
    """Returns other predictions, made of all probabilities and what they are held against, such as by thresholds that
    are best there. They are scored by the same metrics, whose names then begin with "tuned_"."""
    from_loss: Callable[[float, float], Mapping[str, float]] | None = None
    """Returns further metrics, by name, that follow from the loss: given its mean over the units, and their number."""
    baseline: Any = None
    """The prediction of a trivial model (the majority class, the mean), the same for every sample; its metrics are
    shown beside the model's."""
    baseline_scores: Callable[[], Mapping[str, float]] | None = None
    """Returns scores of a trivial model that are known in another way, by the names of the metrics; called once, after
    the last evaluation, in the main process alone."""
    show: Callable[[int, Any, Any], Mapping[str, Any]] | None = None
    """Returns what a reader sees of an evaluated sample, for predictions.jsonl: given its id (with `postprocess`: the
    number of the item), its prediction and its reference; texts, numbers and lists by name."""
    quality: Quality | None = None
    """How good a single prediction is: report.html shows the worst and the best, and how quality goes with length."""
    details: Callable[[Any, Any], Mapping[str, Any]] | None = None
    """Returns what else is to be known of all predictions and references together, such as a confusion matrix, given
    what the metrics are given: plain values, which JSON can hold. It is called after the last evaluation; report.html
    draws what `toolkit.evaluation_quality` makes, and an export gets them all as `details`."""
    decode: Callable[[Sequence[int]], str] | None = None
    """Returns the text of the ids of some tokens, so that notebooks can show a batch; None where samples are no
    tokens."""
    export: Callable[[torch.nn.Module, Path, Mapping[str, Any]], None] | None = None
    """Writes the trained module into a folder, which does not exist yet; the mapping holds the results, for a model
    card."""
    summary: Mapping[str, str] = field(default_factory=dict)
    """Further lines for the plan, such as the model: a name and a text each."""
