"""From the predictions of all processes to scores and samples for a reader, in the main process."""

from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch

from toolkit.errors import UserError
from toolkit.evaluation_quality import quality_of
from toolkit.task import GlobalBatchLoss, Metric, Postprocessed, Task

LOSS = "loss"
"""The name of the score that is there without a metric."""


class Scored(NamedTuple):
    """What the evaluation of one batch found, on the host; each part has one entry per sample."""

    ids: tuple[int, ...]
    predictions: Any = None
    references: Any = None
    embeddings: torch.Tensor | None = None
    """Of a global-batch loss: what it is made of."""
    extra: torch.Tensor | None = None
    scores: Sequence[Mapping[str, float]] | None = None
    """Of batches with samples that are shown: how sure the model is."""


def evenly(numbers: np.ndarray[Any, Any], most: int) -> set[int]:
    """Return at most so many of some ascending numbers, from the first to the last."""
    places = np.linspace(0, len(numbers) - 1, min(most, len(numbers))).round().astype(np.int64)
    return set(numbers[places].tolist())


class Results(NamedTuple):
    """What came of an evaluation, in the main process."""

    scores: dict[str, float]
    """Of the model, by the name of the metric."""
    baseline: dict[str, float]
    """Of the trivial prediction."""
    examples: list[dict[str, Any]]
    """Some samples with prediction and reference, for a reader."""
    details: Mapping[str, Any]
    """Of `Task.details`."""
    quality: Mapping[str, Any]
    """Of `Task.quality`."""


def joined(batches: Sequence[Any]) -> Any:
    """Return the parts of batches one behind the other: an array if all are arrays of one shape, or else a list."""
    arrays = [batch for batch in batches if isinstance(batch, np.ndarray)]
    if len(arrays) == len(batches) and len({array.shape[1:] for array in arrays}) == 1:
        return np.concatenate(arrays)
    return list(chain.from_iterable(batches))


def part_of(values: Any, places: Sequence[int]) -> Any:
    """Return some of the values of all samples."""
    return values[np.asarray(places)] if isinstance(values, np.ndarray) else [values[place] for place in places]


def scores_of(
    metrics: Sequence[Metric], predictions: Any, references: Any, taken: Collection[str] = (LOSS,)
) -> dict[str, float]:
    """Return the scores of all metrics by name; `taken` are the names of other scores.

    Raises:
        UserError: a metric returns no mapping, or a name that is taken: one number would hide the other.
    """
    scores: dict[str, float] = {}
    for metric in metrics:
        own = metric(predictions, references)
        called = getattr(getattr(metric, "func", metric), "__name__", type(metric).__name__)  # of a partial too
        if not isinstance(own, Mapping):
            raise UserError(
                f"the metric {called} returned a {type(own).__name__}; it has to return a mapping of names to numbers"
            )
        if twice := [name for name in own if name in scores or name in taken]:
            raise UserError(
                f"the metric {called} returns {', '.join(map(repr, twice))}, which the loss or another metric of the "
                "task is called; give it another name"
            )
        scores |= {name: float(value) for name, value in own.items()}
    return scores


class Collector:
    """What the main process makes of the predictions of all processes."""

    def __init__(self, task: Task, block: int, last: bool, shown: int, wanted: set[int]) -> None:
        """Begin an evaluation.

        Args:
            task: what is evaluated.
            block: samples that a global-batch loss is taken over at once.
            last: whether the baseline is scored too.
            shown: how many items are shown, where predictions are made into items by a `postprocess`.
            wanted: the samples that are shown, where they are not.

        Raises:
            UserError: there are metrics, and no predictions for them.
        """
        if task.metrics and task.predict is None:
            raise UserError(
                "the task has metrics and no `predict`, so there is nothing to score; give both, or neither"
            )
        self.task = task
        self.block = block
        self.last = last
        self.shown = shown
        self.wanted = wanted
        self.pairs: list[tuple[Any, Any]] = []
        self.ids: list[tuple[int, ...]] = []
        """Of the samples in each of them."""
        self.predictions: dict[int, Any] = {}
        self.embeddings: dict[int, tuple[torch.Tensor, torch.Tensor | None]] = {}
        self.examples: dict[int, dict[str, Any]] = {}
        self.sure: dict[int, Mapping[str, float]] = {}
        self.qualities: dict[int, float] = {}
        self.postprocessed: Postprocessed | None = None

    def add(self, scored: Scored) -> None:
        """Take what one batch came to."""
        if scored.embeddings is not None:
            for place, number in enumerate(scored.ids):
                extra = None if scored.extra is None else scored.extra[place]
                self.embeddings[number] = (scored.embeddings[place], extra)
        sure = dict(zip(scored.ids, scored.scores, strict=True)) if scored.scores is not None else {}
        if self.task.postprocess is not None:
            self.sure.update(sure)
        if scored.predictions is None:
            return
        if self.task.postprocess is not None:
            self.predictions.update(zip(scored.ids, scored.predictions, strict=True))
            return
        self.pairs.append((scored.predictions, scored.references))
        self.ids.append(scored.ids)
        for number, prediction, reference in zip(scored.ids, scored.predictions, scored.references, strict=True):
            if self.last and self.task.quality is not None:
                self.qualities[number] = self.task.quality.of(prediction, reference, sure.get(number))
            if number in self.wanted:
                self.sure[number] = sure.get(number, {})
                self.example(number, prediction, reference)

    def example(self, number: int, prediction: Any, reference: Any) -> None:
        """Keep a sample for the reader."""
        self.examples[number] = self.shown_row(number, prediction, reference)

    def shown_row(self, number: int, prediction: Any, reference: Any) -> dict[str, Any]:
        """Return what a reader sees of a sample."""
        assert self.task.show is not None
        sure = {"scores": dict(scores)} if (scores := self.sure.get(number)) else {}
        return {**self.task.show(number, prediction, reference), **sure}

    def postprocess(self, are_all: bool) -> bool:
        """Make items of the predictions, where the task does; return False if it can't without those of all samples."""
        if self.task.postprocess is None or not self.predictions:
            return True
        try:
            self.postprocessed = self.task.postprocess(dict(sorted(self.predictions.items())))
        except Exception:
            if are_all:
                raise
            return False
        return are_all or len(self.postprocessed.predictions) > 0

    def compute(self, taken: Collection[str]) -> Results:
        """Return what came of all that was added, after `postprocess`; `taken` are the names of other scores.

        Raises:
            UserError: a metric returns what it must not, or not as many references as predictions came.
        """
        task = self.task
        details: Mapping[str, Any] = {}
        quality: Mapping[str, Any] = {}
        scores: dict[str, float] = {}
        trivial: dict[str, float] = {}
        if self.postprocessed is not None:
            self.choose_examples(self.postprocessed)
        if task.metrics and (self.postprocessed is not None or self.pairs):
            predictions, references, baseline = self.for_metrics()
            scores = scores_of(task.metrics, predictions, references, taken)
            scores |= self.of_groups(predictions, references)
            if self.last and baseline is not None:
                trivial = scores_of(task.metrics, baseline, references, taken)
                trivial |= self.of_groups(baseline, references)
            if self.last:
                details = dict(task.details(predictions, references)) if task.details is not None else {}
                quality = self.quality(predictions, references)
        if self.last and task.baseline_scores is not None:
            trivial |= task.baseline_scores()
        examples = [{"sample": number, **self.examples[number]} for number in sorted(self.examples)]
        return Results(scores, trivial, examples, details, quality)

    def quality(self, predictions: Any, references: Any) -> dict[str, Any]:
        """Return what is known of the quality of single predictions, in the order of the metrics."""
        quality, show = self.task.quality, self.shown_row if self.task.show is not None else None
        if quality is None:
            return {}
        if (found := self.postprocessed) is None:
            ids = list(chain.from_iterable(self.ids))
            values = [self.qualities[number] for number in ids]
            return quality_of(self.task, predictions, references, values, ids, ids, show)
        items = range(len(found.predictions))
        values = [quality.of(predictions[item], references[item], self.sure.get(item)) for item in items]
        return quality_of(self.task, predictions, references, values, items, found.samples, show)

    def of_groups(self, predictions: Any, references: Any) -> dict[str, float]:
        """Return the scores of each group of the evaluation, such as "hard/accuracy"; of a trial, which has only some
        samples, those of the groups that it has."""
        groups = self.task.data.groups
        if not groups:
            return {}
        if (found := self.postprocessed) is not None:
            keys: Any = range(len(found.predictions)) if found.samples is None else found.samples
        else:
            keys = chain.from_iterable(self.ids)
        place = {key: number for number, key in enumerate(keys)}
        scores: dict[str, float] = {}
        for group, members in groups.items():
            places = [place[key] for key in members.tolist() if key in place]
            if places:
                own = scores_of(self.task.metrics, *(part_of(side, places) for side in (predictions, references)))
                scores |= {f"{group}/{name}": value for name, value in own.items()}
        return scores

    def for_metrics(self) -> tuple[Any, Any, Any]:
        """Return all predictions, what they are held against, and those of a trivial model (None without one)."""
        predictions: Any
        references: Any
        baseline: Any = None
        if (found := self.postprocessed) is not None:
            predictions, references, baseline = found.predictions, found.references, found.baseline
        else:
            predictions, references = (joined(side) for side in zip(*self.pairs, strict=True))
        if baseline is None and self.task.baseline is not None:
            baseline = [self.task.baseline] * len(references)
        if isinstance(predictions, np.ndarray) and baseline is not None:
            baseline = np.asarray(baseline)
        counts = [len(side) for side in (predictions, references, baseline) if side is not None]
        if len(set(counts)) > 1:
            raise UserError(
                f"the task gives {counts[0]:,} predictions for its metrics, and {counts[1]:,} references"
                + (f" and {counts[2]:,} of the baseline" if len(counts) > 2 else "")
                + "; there has to be one of each per sample, or per item of `postprocess`"
            )
        return predictions, references, baseline

    def choose_examples(self, postprocessed: Postprocessed) -> None:
        """Keep some of the items that were made of the predictions for the reader."""
        if postprocessed.samples is not None and self.sure:
            self.sure = {item: self.sure[sample] for item, sample in enumerate(postprocessed.samples)}
        else:
            self.sure = dict(enumerate(postprocessed.scores or ()))
        self.examples.clear()
        items = np.arange(len(postprocessed.predictions) if self.task.show is not None else 0)
        for number in sorted(evenly(items, self.shown)):
            self.example(number, postprocessed.predictions[number], postprocessed.references[number])

    def global_batch_loss(self) -> float:
        """Return the global-batch loss of all samples, taken in blocks of neighbouring ids, whoever computed what."""
        global_loss = self.task.loss
        assert isinstance(global_loss, GlobalBatchLoss)
        ids, total = sorted(self.embeddings), 0.0
        for start in range(0, len(ids), self.block):
            embeddings, extra = zip(
                *(self.embeddings[number] for number in ids[start : start + self.block]), strict=True
            )
            known = torch.stack(extra) if global_loss.extra is not None else None
            total += float(global_loss.loss(torch.stack(embeddings), known))
        return total


def to_host(values: Any) -> Any:
    """Return predictions as a numpy array if they are a tensor; numpy has no bfloat16."""
    if not isinstance(values, torch.Tensor):
        return values
    host = values.detach().cpu()
    array: np.ndarray[Any, Any] = (host.float() if host.dtype == torch.bfloat16 else host).numpy()
    return array
