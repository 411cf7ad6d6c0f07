"""The samples of a step as a person reads them: decoded, with labels and padding."""

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from html import escape
from typing import Any

import torch

from toolkit.data.loader import LoadedMicroBatch
from toolkit.data.split import MicroBatch
from toolkit.errors import UserError
from toolkit.losses import NOT_COUNTED
from toolkit.train_state import TrainState

LONGEST_SHOWN = 200


@dataclass(frozen=True, repr=False)
class DecodedBatch:
    """A global batch, micro-batch by micro-batch; a notebook shows it as a table."""

    micro_batches: list[LoadedMicroBatch]
    rows: list[dict[str, Any]]
    """One for each row of each micro-batch: its `micro` batch, `sample` id, `tokens`, `padding`, `label` and `text`, as far as
    the batch has them."""

    @property
    def units(self) -> int:
        """What the loss of the step is averaged over."""
        return sum(micro.units for micro in self.micro_batches)

    @property
    def padding(self) -> float | None:
        """The share of padding among the elements; None where the batch has no attention mask."""
        real = sum(row["tokens"] for row in self.rows if "tokens" in row)
        empty = sum(row["padding"] for row in self.rows if "padding" in row)
        return empty / (real + empty) if real + empty else None

    @property
    def shapes(self) -> list[dict[str, tuple[int, ...]]]:
        """The shapes of the tensors of each micro-batch."""
        return [{name: tuple(tensor.shape) for name, tensor in micro.batch.items()} for micro in self.micro_batches]

    def __repr__(self) -> str:
        padding = "" if self.padding is None else f", {self.padding:.1%} padding"
        return f"{len(self.rows)} rows in {len(self.micro_batches)} micro-batch(es), {self.units} units{padding}"

    def _repr_html_(self) -> str:
        """Return the table that a notebook shows. (IPython looks for this name.)"""
        names = list(dict.fromkeys(name for row in self.rows for name in row))
        head = "".join(f"<th style='text-align:left'>{name}</th>" for name in names)
        body = "".join(
            "<tr>" + "".join(f"<td style='text-align:left'>{shown(row.get(name, ''))}</td>" for name in names) + "</tr>"
            for row in self.rows
        )
        return f"<p>{escape(repr(self))}</p><table><tr>{head}</tr>{body}</table>"


def first_batch(training: TrainState, step: int = 0) -> DecodedBatch:
    """Return the global batch of a step, counted from 0, decoded: what the model sees, and what it is to learn from it."""
    micro_batches = micro_batches_of(training, step)
    rows = [
        {"micro": number, **row} for number, micro in enumerate(micro_batches) for row in decoded_rows(training, micro)
    ]
    return DecodedBatch(micro_batches, rows)


def micro_batches_of(training: TrainState, step: int) -> list[LoadedMicroBatch]:
    """Return the micro-batches of a step, made here and now by the run's own sampler and data."""
    sampler = copy(training.loader.batch_sampler)
    sampler.first, sampler.end = step, step + 1
    return [training.loader.dataset.__getitems__(plan) for plan in sampler]


def some_samples(training: TrainState, count: int, step: int = 0) -> LoadedMicroBatch:
    """Return the first so many samples of a step as one micro-batch."""
    ids = tuple(training.order.global_batch(step)[:count].tolist())
    micro: LoadedMicroBatch = training.loader.dataset.__getitems__(MicroBatch(step, 1, ids))
    return micro


def decoded_rows(training: TrainState, micro: LoadedMicroBatch) -> Iterator[dict[str, Any]]:
    """Yield what there is to say of each row of a micro-batch."""
    batch = micro.batch
    count = len(next(iter(batch.values())))
    for row in range(count):
        # A row need not be a sample: a long text has several windows, a pair two sides.
        said: dict[str, Any] = {"sample": micro.ids[row]} if count == len(micro.ids) else {"row": row}
        mask = batch.get("attention_mask")
        if mask is not None and mask.ndim == 2:
            said |= {"tokens": int(mask[row].sum()), "padding": int((mask[row] == 0).sum())}
        if (label := label_of(training.model, batch, row)) is not None:
            said["label"] = label
        ids = batch.get("input_ids")
        if ids is not None and ids.ndim == 2 and training.task.decode is not None:
            real = ids[row] if mask is None else ids[row][mask[row] != 0]
            said["text"] = training.task.decode(real.tolist())
        yield said


def label_of(model: torch.nn.Module, batch: Mapping[str, torch.Tensor], row: int) -> str | None:
    """Return the label of a row in words: its name where the model knows one; of many, how many of them count."""
    labels = batch.get("labels")
    if labels is None or labels.ndim > 2:
        return None
    if labels.ndim == 2:
        counted = int((labels[row] != NOT_COUNTED).sum())
        return f"{counted} of {labels.shape[1]} count"
    value = labels[row].item()
    names = getattr(getattr(model, "config", None), "id2label", None) or {}
    return f"{value} ({names[value]})" if value in names else str(value)


def decoder(training: TrainState) -> Any:
    """Return what makes texts of token ids.

    Raises:
        UserError: the recipe has none.
    """
    if training.task.decode is None:
        raise UserError(
            "this recipe's task has no `decode`, so its tokens can't be shown as text; give it one, such as decode=tokenizer.decode"
        )
    return training.task.decode


def shown(value: Any) -> str:
    """Return a value as it stands in a cell of a table: escaped, and not too long."""
    text = str(value)
    return escape(text if len(text) <= LONGEST_SHOWN else text[: LONGEST_SHOWN - 1] + "…").replace("\n", "⏎")


def pieces(decode: Any, ids: Sequence[int]) -> list[str]:
    """Return the text of each token on its own."""
    return [decode([number]) for number in ids]
