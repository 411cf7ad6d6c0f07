"""The loss of each token, shown on the text."""

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape

import torch
import torch.nn.functional as F

from toolkit.batch_layout import NOTES
from toolkit.errors import UserError
from toolkit.grad_cache import loss_of_batch
from toolkit.losses import NOT_COUNTED, logits_of
from toolkit.notebook.batches import decoder, some_samples
from toolkit.notebook.session import as_it_was
from toolkit.train_state import TrainState

# The relative difference of two sums of thousands of float32 terms, added in different orders.
NEAR = 1e-4
INPUTS = ("input_ids", "attention_mask", "token_type_ids", *NOTES)
"""The tensors of a batch that a model takes; the others are for the loss."""


@dataclass(frozen=True)
class TokenLoss:
    """A token of a text, and its loss."""

    text: str
    loss: float | None
    """In nats; None where the token does not count."""


@dataclass(frozen=True, repr=False)
class TokenLosses:
    """The loss of each token of some texts; a notebook shows it as the colour of the text."""

    texts: list[list[TokenLoss]]
    total: float
    """The loss that the recipe itself computes for these texts, which is the sum over their tokens."""
    units: float

    @property
    def worst(self) -> list[TokenLoss]:
        """All tokens that count, those with the largest loss first."""
        counted = [token for text in self.texts for token in text if token.loss is not None]
        return sorted(counted, key=lambda token: -(token.loss or 0.0))

    def __repr__(self) -> str:
        return f"{self.units:.10g} tokens count, mean loss {self.total / (self.units or 1):.3f}"

    def _repr_html_(self) -> str:
        """Return the coloured text that a notebook shows. (IPython looks for this name.)"""
        highest = max((token.loss or 0.0 for token in self.worst), default=0.0)
        paragraphs = "".join(
            f"<p style='line-height:1.9'>{''.join(coloured(token, highest) for token in text)}</p>"
            for text in self.texts
        )
        scale = "".join(
            coloured(TokenLoss(f" {highest * part:.1f} ", highest * part), highest)
            for part in (0.0, 0.25, 0.5, 0.75, 1.0)
        )
        return f"<p>{escape(repr(self))}. Loss in nats: {scale}; grey does not count.</p>{paragraphs}"


def loss_per_token(training: TrainState, samples: int = 3, step: int = 0) -> TokenLosses:
    """Return the loss of each token of a step's first samples, with the present weights and without dropout.

    For recipes whose loss is a cross-entropy over tokens: causal and masked language models, chat, tagging. The sum is
    compared with the loss that the recipe computes, so that what is shown is what is trained.

    Raises:
        UserError: the recipe has another loss, or its tokens can't be shown as text.
    """
    decode = decoder(training)
    micro = some_samples(training, samples, step)
    with as_it_was(training), torch.no_grad():
        training.model.eval()
        batch = training.runtime.to_device(micro.batch)
        if "labels" not in batch or batch["labels"].shape != batch["input_ids"].shape:
            raise UserError(
                "the loss of single tokens is known where every token of a batch has a label; this recipe's batches "
                f"have {shapes_text(batch)}"
            )
        total = float(loss_of_batch(training.task, training.model, batch))
        inputs_of_model = {name: values for name, values in batch.items() if name in INPUTS}
        losses, shifted = matching_losses(logits_of(training.model, inputs_of_model), batch["labels"], total)
    inputs, labels = micro.batch["input_ids"], micro.batch["labels"]
    mask = micro.batch.get("attention_mask", torch.ones_like(inputs))
    texts = []
    for row, real in enumerate(mask.bool()):
        # Padding is left out. In a block of text the last token that counts comes after it.
        ids, token_losses = tokens_and_losses(inputs[row][real], labels[row][real], losses[row].cpu()[real], shifted)
        texts.append([TokenLoss(decode([token]), loss) for token, loss in zip(ids, token_losses, strict=True)])
    return TokenLosses(texts, total, micro.units)


def matching_losses(logits: torch.Tensor, labels: torch.Tensor, total: float) -> tuple[torch.Tensor, bool]:
    """Return the loss at each place of the batch, and whether the label of a place is that of the next one.

    The losses sum to `total`; that decides where the labels are.

    Raises:
        UserError: they do not in either case.
    """
    sums = []
    for shifted in (False, True):
        targets = labels if not shifted else F.pad(labels[:, 1:], (0, 1), value=NOT_COUNTED)
        losses = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=NOT_COUNTED, reduction="none")
        sums.append(float(losses.double().sum()))
        if abs(sums[-1] - total) <= NEAR * max(1.0, abs(total)):
            losses = losses.view(labels.shape)
            return losses.masked_fill(targets == NOT_COUNTED, float("nan")), shifted
    raise UserError(
        f"this recipe's loss of these samples is {total:.6g}, and the cross-entropies of their labelled tokens add up "
        f"to {sums[0]:.6g} (or {sums[1]:.6g} with labels one place further on): its loss is another one, and is not "
        "shown by token"
    )


def tokens_and_losses(
    inputs: torch.Tensor, labels: torch.Tensor, losses: torch.Tensor, shifted: bool
) -> tuple[list[int], list[float | None]]:
    """Return the tokens of a text, and the loss of predicting each."""
    values = [None if loss != loss else loss for loss in losses.tolist()]
    counted = labels[:-1] != NOT_COUNTED
    if shifted:
        return inputs.tolist(), [None, *values[:-1]]
    if bool(counted.any()) and torch.equal(labels[:-1][counted], inputs[1:][counted]):
        # Each label is the next token; the last one comes after the block.
        last = [] if labels[-1] == NOT_COUNTED else [int(labels[-1])]
        return [*inputs.tolist(), *last], [None, *values[: len(inputs) - 1 + len(last)]]
    # The labels are masked tokens, which are shown as they were, or classes of tokens.
    hidden = masked_places(inputs, labels)
    return torch.where(hidden, labels, inputs).tolist(), values


def masked_places(inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return where a label is the token that was masked; nowhere if the labels are classes.

    A masked language model has the same token at most of the places that count; a text with classes does not.
    """
    counted = labels != NOT_COUNTED
    hidden = inputs[counted]
    same = len(hidden) > 0 and int(torch.bincount(hidden).max()) >= 0.5 * len(hidden)
    return counted & torch.tensor(same)


def coloured(token: TokenLoss, highest: float) -> str:
    """Return a token as HTML: the larger its loss, the deeper its colour. Its loss is shown under the pointer."""
    text = escape(token.text).replace("\n", "⏎<br>").replace("  ", " &nbsp;")
    if token.loss is None:
        return f"<span style='color:#8a8a8a'>{text}</span>"
    part = token.loss / highest if highest > 0 else 0.0
    style = f"background:rgba(217,114,43,{0.85 * part:.2f});border-radius:2px"
    return f"<span style='{style}' title='{token.loss:.3f}'>{text}</span>"


def shapes_text(batch: Mapping[str, torch.Tensor]) -> str:
    return ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in batch.items())
