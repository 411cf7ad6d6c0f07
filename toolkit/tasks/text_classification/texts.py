"""Texts with labels after they were read: what a recipe asks of them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from toolkit.data.cache import digest_of
from toolkit.data.labelled_rows import LabelledData
from toolkit.data.text_columns import TextColumn, length_limit, tokenize_columns
from toolkit.data.tokenized import TokenizedDataset

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Texts(LabelledData):
    """Training and evaluation texts with numbered labels."""

    max_length: int | None
    """What longer texts are truncated to, in tokens; None truncates nothing."""

    def training_texts(self) -> Iterator[str]:
        """Yield every training text (of a pair both), to train a tokenizer on; few are in memory at once."""
        return self.train.texts()

    @property
    def training_digest(self) -> str:
        """A hash of the training texts: the key under which a tokenizer that was trained on them can be kept."""
        return self.train.digest

    def show(self, number: int, prediction: Any, reference: Any) -> dict[str, Any]:
        """Return what a reader sees of an evaluated text; see `Task.show`."""

        def named(value: Any) -> Any:
            match self.kind:
                case "single":
                    return self.labels[int(value)]
                case "multi":
                    return [name for name, has in zip(self.labels, value, strict=True) if has]
                case _:
                    return float(value)

        row = {"row": int(self.evaluate.rows[number]) + 1}
        return {**row, **self.evaluate.table[number], "prediction": named(prediction), "reference": named(reference)}

    def tokenize(self, tokenizer: Any, limit: int | None = None) -> tuple[TokenizedDataset, TokenizedDataset]:
        """Return training and evaluation samples: "text", what the tokenizer made of it, "label", and "weight" if rows
        have any.

        `limit` is the longest text that the model takes, in tokens; None asks the tokenizer. Raises UserError if texts
        are longer and data.max_length does not truncate them, or if it truncates to more than the limit or to nothing.
        """
        limit = length_limit(tokenizer) if limit is None else limit
        column = TextColumn(self.train.table.column_names, tokenizer, self.max_length, limit)
        tokens = tokenize_columns(self.train, self.evaluate, {"text": column}, self.summary)
        samples = []
        for texts, rows in zip(tokens, (self.train, self.evaluate), strict=True):
            weights = {} if rows.weights is None else {"weight": rows.weights}
            content = digest_of(texts["text"].content, *rows.labels.content, *weights.values())
            samples.append(TokenizedDataset(texts, {"label": rows.labels, **weights}, texts["text"].lengths, content))
        train, evaluate = samples
        return train, evaluate


def pad_texts(tokenizer: Any, kind: str) -> Callable[[list[dict[str, Any]]], "dict[str, torch.Tensor]"]:
    """Return a collate function: samples with a "text" and a "label" to tensors, padded on the tokenizer's side.

    Next to what `pad` makes there is "labels": int64 (samples), float32 (samples, labels) for kind multi, float32
    (samples) for regression; and `SAMPLE_WEIGHTS`, float32 (samples), where samples have a "weight". Raises UserError
    if the tokenizer has no padding token.
    """
    import torch

    from toolkit.data.collate import fillers_of, pad
    from toolkit.losses import SAMPLE_WEIGHTS

    fillers, label_type = fillers_of(tokenizer, "texts"), torch.int64 if kind == "single" else torch.float32

    def collate(samples: list[dict[str, Any]]) -> "dict[str, torch.Tensor]":
        batch = pad([sample["text"] for sample in samples], fillers, tokenizer.padding_side)
        batch["labels"] = torch.tensor([sample["label"] for sample in samples], dtype=label_type)
        if "weight" in samples[0]:
            batch[SAMPLE_WEIGHTS] = torch.tensor([sample["weight"] for sample in samples], dtype=torch.float32)
        return batch

    return collate
