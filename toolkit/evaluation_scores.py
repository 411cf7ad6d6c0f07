"""From the predictions of all processes to scores and samples for a reader, in the main process."""

from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch

from toolkit.errors import UserError
from toolkit.evaluation_metrics import LOSS, Sides, joined, part_of
from toolkit.evaluation_quality import quality_of
from toolkit.task import GlobalBatchLoss, Postprocessed, Task


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
    probabilities: Any = None
    """Where metrics take them."""


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
    """Of `Task.details` and `Tuned.details`."""
    quality: Mapping[str, Any]
    """Of `Task.quality`."""
    undefined: dict[str, str]
    """Why scores of the model are not numbers, by the name of the metric."""


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
        self.probabilities: list[Any] = []
        self.probable_ids: list[tuple[int, ...]] = []
        """Of the samples in each of them."""
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
        if scored.probabilities is not None:
            self.probabilities.append(scored.probabilities)
            self.probable_ids.append(scored.ids)
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

    def compute(self, taken: Collection[str], losses: Mapping[str, float]) -> Results:
        """Return what came of all that was added, after `postprocess`; `taken` are the names of other scores, and
        `losses` the losses of groups.

        Raises:
            UserError: a metric returns what it must not, or not as many references as predictions came.
        """
        task = self.task
        details: dict[str, Any] = {}
        quality: Mapping[str, Any] = {}
        scores: dict[str, float] = {}
        trivial: dict[str, float] = {}
        if self.postprocessed is not None:
            self.choose_examples(self.postprocessed)
        if task.metrics and (self.postprocessed is not None or self.pairs):
            predictions, references, baseline = self.for_metrics()
            probabilities = self.of_items()
            tuned = task.tuned(probabilities, references) if task.tuned and probabilities is not None else None
            details |= tuned.details if tuned is not None else {}
            places = self.places_of_groups() if task.data.groups else {}
            sides = Sides(predictions, references, probabilities, None if tuned is None else tuned.predictions)
            scores = sides.scores(task.metrics, taken) | sides.scores_of_groups(task.metrics, places, losses)
            if self.last and baseline is not None:
                sides = Sides(baseline, references)
                trivial = sides.scores(task.metrics, taken) | sides.scores_of_groups(task.metrics, places, {})
            if self.last:
                details |= task.details(predictions, references) if task.details is not None else {}
                quality = self.quality(predictions, references)
        scores |= {f"{group}/{LOSS}": loss for group, loss in losses.items()}
        if self.last and task.baseline_scores is not None:
            trivial |= task.baseline_scores()
        examples = [{"sample": number, **self.examples[number]} for number in sorted(self.examples)]
        undefined = {
            name: getattr(value, "why", "the metric gave no number") for name, value in scores.items() if value != value
        }
        plain, trivial = ({name: float(value) for name, value in side.items()} for side in (scores, trivial))
        return Results(plain, trivial, examples, details, quality, undefined)

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

    def of_items(self) -> Any:
        """Return the probabilities that stand beside the predictions for the metrics, None where there are none.

        Raises:
            UserError: it is not known which they are.
        """
        if not self.probabilities:
            return None
        of_samples = joined(self.probabilities)
        if (found := self.postprocessed) is None:
            return of_samples
        if found.samples is None:
            raise UserError(
                "the task has metrics of probabilities, and its `postprocess` does not say which samples its items are "
                "of; give these as `Postprocessed.samples`"
            )
        place = {number: place for place, number in enumerate(chain.from_iterable(self.probable_ids))}
        return part_of(of_samples, [place[number] for number in found.samples])

    def places_of_groups(self) -> dict[str, list[int]]:
        """Return where the samples, or items, of each group stand beside the predictions; of a trial, which has only
        some samples, the groups that it has."""
        if (found := self.postprocessed) is not None:
            keys: Any = range(len(found.predictions)) if found.samples is None else found.samples
        else:
            keys = chain.from_iterable(self.ids)
        place = {key: number for number, key in enumerate(keys)}
        groups = self.task.data.groups.items()
        found_at = {group: [place[key] for key in members.tolist() if key in place] for group, members in groups}
        return {group: places for group, places in found_at.items() if places}

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
