"""The samples of a step, readable: decoded, with labels and padding."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from html import escape
from typing import Any

import torch

from toolkit.data.loader import LoadedMicroBatch
from toolkit.data.micro_batches import MicroBatch
from toolkit.errors import UserError
from toolkit.losses import NOT_COUNTED
from toolkit.notebook.plots import html_table
from toolkit.train_state import TrainState

MAX_SHOWN = 200
"""Characters of a text in a table."""


@dataclass(frozen=True, repr=False)
class DecodedBatch:
    """A global batch, micro-batch by micro-batch; a notebook shows it as a table."""

    micro_batches: list[LoadedMicroBatch]
    rows: list[dict[str, Any]]
    """One for each row of each micro-batch: its `micro` batch, `sample` id, `tokens`, `padding`, `label` and `text`, as
    far as the batch has them."""

    @property
    def units(self) -> float:
        """The number of units, over which the loss of the step is averaged."""
        return sum(micro.units for micro in self.micro_batches)

    @property
    def padding(self) -> float | None:
        """The share of padding among the elements; None where the batch has no attention mask."""
        tokens = sum(row["tokens"] for row in self.rows if "tokens" in row)
        padding = sum(row["padding"] for row in self.rows if "padding" in row)
        return padding / (tokens + padding) if tokens + padding else None

    @property
    def shapes(self) -> list[dict[str, tuple[int, ...]]]:
        """The shapes of the tensors of each micro-batch."""
        return [{name: tuple(tensor.shape) for name, tensor in micro.batch.items()} for micro in self.micro_batches]

    def __repr__(self) -> str:
        padding = "" if self.padding is None else f", {self.padding:.1%} padding"
        return f"{len(self.rows)} rows in {len(self.micro_batches)} micro-batch(es), {self.units:.10g} units{padding}"

    def _repr_html_(self) -> str:
        """Return the table that a notebook shows. (IPython looks for this name.)"""
        names = list(dict.fromkeys(name for row in self.rows for name in row))
        cells = [[cell(row.get(name, "")) for name in names] for row in self.rows]
        return f"<p>{escape(repr(self))}</p>{html_table([names, *cells])}"


def first_batch(training: TrainState, step: int = 0) -> DecodedBatch:
    """Return the global batch of a step, counted from 0, with decoded texts and the labels that the model learns."""
    micro_batches = micro_batches_of(training, step)
    rows = [
        {"micro": number, **row} for number, micro in enumerate(micro_batches) for row in decoded_rows(training, micro)
    ]
    return DecodedBatch(micro_batches, rows)


def micro_batches_of(training: TrainState, step: int) -> list[LoadedMicroBatch]:
    """Return the micro-batches of a step, made in this process by the run's own sampler and data."""
    sampler = copy(training.loader.batch_sampler)
    sampler.first, sampler.end = step, step + 1
    return [training.loader.dataset.__getitems__(plan) for plan in sampler]


def some_samples(training: TrainState, count: int, step: int = 0) -> LoadedMicroBatch:
    """Return the first `count` samples of a step as one micro-batch."""
    ids = tuple(training.order.global_batch(step)[:count].tolist())
    micro: LoadedMicroBatch = training.loader.dataset.__getitems__(MicroBatch(step, 1, ids))
    return micro


def decoded_rows(training: TrainState, micro: LoadedMicroBatch) -> Iterator[dict[str, Any]]:
    """Yield the cells of each row of a micro-batch, by the name of their column."""
    batch = micro.batch
    ids, mask = batch.get("input_ids"), batch.get("attention_mask")
    count = len(next(iter(batch.values())))
    for row in range(count):
        # A row need not be a sample: a long text has several windows, a pair two sides.
        cells: dict[str, Any] = {"sample": micro.ids[row]} if count == len(micro.ids) else {"row": row}
        if mask is not None and mask.ndim == 2:
            cells |= {"tokens": int(mask[row].sum()), "padding": int((mask[row] == 0).sum())}
        if (label := label_text(training.model, batch, row)) is not None:
            cells["label"] = label
        if ids is not None and ids.ndim == 2 and training.task.decode is not None:
            tokens = ids[row] if mask is None else ids[row][mask[row] != 0]
            cells["text"] = training.task.decode(tokens.tolist())
        yield cells


def label_text(model: torch.nn.Module, batch: Mapping[str, torch.Tensor], row: int) -> str | None:
    """Return the label of a row, with its name where the model knows one; of several labels, how many count."""
    labels = batch.get("labels")
    if labels is None or labels.ndim > 2:
        return None
    if labels.ndim == 2:
        counted = int((labels[row] != NOT_COUNTED).sum())
        return f"{counted} of {labels.shape[1]} count"
    value = labels[row].item()
    names = getattr(getattr(model, "config", None), "id2label", None) or {}
    return f"{value} ({names[value]})" if value in names else str(value)


def decoder(training: TrainState) -> Callable[[Sequence[int]], str]:
    """Return the function that decodes token ids.

    Raises:
        UserError: the recipe has none.
    """
    if training.task.decode is None:
        raise UserError(
            "this recipe's task has no `decode`, so its tokens can't be shown as text; give it one, such as "
            "decode=tokenizer.decode"
        )
    return training.task.decode


def cell(value: Any) -> str:
    """Return a value as the text of a table's cell, truncated to `MAX_SHOWN`."""
    text = str(value)
    return (text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 1] + "…").replace("\n", "⏎")
