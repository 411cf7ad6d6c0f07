"""Which tokens cost the loss: it is shown on the text itself."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

import torch
import torch.nn.functional as F

from toolkit.attention_masks import UNPADDED
from toolkit.errors import UserError
from toolkit.grad_cache import loss_of_batch
from toolkit.losses import NOT_COUNTED, logits_of
from toolkit.notebook.batches import decoder, pieces, some_samples
from toolkit.notebook.keeping import as_it_was
from toolkit.train_state import TrainState

# A sum of thousands of float32 terms, taken in another order.
NEAR = 1e-4
INPUTS = ("input_ids", "attention_mask", "token_type_ids", UNPADDED)
"""What of a batch a model takes; the rest is for the loss."""


@dataclass(frozen=True)
class TokenLoss:
    """A token of a text, and what it costs."""

    text: str
    loss: float | None
    """In nats; None where the token does not count."""


@dataclass(frozen=True, repr=False)
class TokenLosses:
    """The loss of each token of some texts; a notebook shows it as colour on the text."""

    texts: list[list[TokenLoss]]
    total: float
    """The loss that the recipe itself computes for these texts: the sum of those of their tokens."""
    units: int

    @property
    def worst(self) -> list[TokenLoss]:
        """All tokens that count, the most expensive first."""
        counted = [token for text in self.texts for token in text if token.loss is not None]
        return sorted(counted, key=lambda token: -(token.loss or 0.0))

    def __repr__(self) -> str:
        return f"{self.units} tokens count, mean loss {self.total / max(1, self.units):.3f}"

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
    """Return the loss of each token of the first samples of a step, as the weights are now, without dropout.

    For recipes whose loss is a cross-entropy over tokens: language models, masked ones, chat, tagging. It is compared with the
    loss that the recipe computes, so what is shown is what is trained.

    Raises:
        UserError: the recipe's loss is another one, or its tokens can't be shown as text.
    """
    decode = decoder(training)
    micro = some_samples(training, samples, step)
    with as_it_was(training), torch.no_grad():
        training.model.eval()
        batch = training.runtime.to_device(micro.batch)
        if "labels" not in batch or batch["labels"].shape != batch["input_ids"].shape:
            raise UserError(
                "the loss of single tokens is known where every token of a batch has a label; this recipe's batches have "
                f"{by_name(batch)}"
            )
        total = float(loss_of_batch(training.task, training.model, batch))
        taken = {name: values for name, values in batch.items() if name in INPUTS}
        losses, shifted = agreeing(logits_of(training.model, taken), batch["labels"], total)
    inputs, labels = micro.batch["input_ids"], micro.batch["labels"]
    mask = micro.batch.get("attention_mask", torch.zeros_like(inputs))
    texts = []
    for row in range(len(inputs)):
        ids, costs = tokens_and_losses(inputs[row], labels[row], losses[row].cpu(), shifted)
        # What follows both is padding; of a block the last token that counts comes after the last one that is read.
        real = max([last_counted(costs), *mask[row].nonzero().flatten().tolist()]) + 1
        texts.append([TokenLoss(*pair) for pair in zip(pieces(decode, ids[:real]), costs[:real], strict=True)])
    return TokenLosses(texts, total, micro.units)


def agreeing(logits: torch.Tensor, labels: torch.Tensor, total: float) -> tuple[torch.Tensor, bool]:
    """Return the loss at each place of the batch, and whether it is of the label one place further on: what adds up to `total`.

    Raises:
        UserError: neither does.
    """
    sums = []
    for shifted in (False, True):
        wanted = labels if not shifted else F.pad(labels[:, 1:], (0, 1), value=NOT_COUNTED)
        losses = F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), ignore_index=NOT_COUNTED, reduction="none")
        sums.append(float(losses.double().sum()))
        if abs(sums[-1] - total) <= NEAR * max(1.0, abs(total)):
            losses = losses.view(labels.shape)
            return losses.masked_fill(wanted == NOT_COUNTED, float("nan")), shifted
    raise UserError(
        f"this recipe's loss of these samples is {total:.6g}, and the cross-entropies of their labelled tokens add up to {sums[0]:.6g} "
        f"(or {sums[1]:.6g} with labels one place further on): its loss is another one, and is not shown by token"
    )


def tokens_and_losses(
    inputs: torch.Tensor, labels: torch.Tensor, losses: torch.Tensor, shifted: bool
) -> tuple[list[int], list[float | None]]:
    """Return the tokens of a text, and beside each what it cost to predict it."""
    costs = [None if loss != loss else loss for loss in losses.tolist()]
    counted = labels[:-1] != NOT_COUNTED
    if shifted:
        return inputs.tolist(), [None, *costs[:-1]]
    if bool(counted.any()) and torch.equal(labels[:-1][counted], inputs[1:][counted]):
        # Each label is the token that follows: the last one follows the block.
        last = [] if labels[-1] == NOT_COUNTED else [int(labels[-1])]
        return [*inputs.tolist(), *last], [None, *costs[: len(inputs) - 1 + len(last)]]
    # Hidden tokens, or classes of tokens: a hidden one is shown as what it was.
    hidden = mostly_equal(inputs, labels)
    return torch.where(hidden, labels, inputs).tolist(), costs


def mostly_equal(inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return where a label is the token that was hidden; nowhere if the labels are classes.

    A masked model hides most of its places behind one and the same token, which no text of classes does.
    """
    counted = labels != NOT_COUNTED
    hidden = inputs[counted]
    same = len(hidden) > 0 and int(torch.bincount(hidden).max()) >= 0.5 * len(hidden)
    return counted & torch.tensor(same)


def last_counted(costs: Sequence[float | None]) -> int:
    """Return the place of the last token that counts."""
    return max((place for place, cost in enumerate(costs) if cost is not None), default=-1)


def coloured(token: TokenLoss, highest: float) -> str:
    """Return a token as HTML: the more it costs, the deeper its colour; what it costs is said under the pointer."""
    text = escape(token.text).replace("\n", "⏎<br>").replace("  ", " &nbsp;")
    if token.loss is None:
        return f"<span style='color:#8a8a8a'>{text}</span>"
    part = token.loss / highest if highest > 0 else 0.0
    style = f"background:rgba(217,114,43,{0.85 * part:.2f});border-radius:2px"
    return f"<span style='{style}' title='{token.loss:.3f}'>{text}</span>"


def by_name(batch: Mapping[str, torch.Tensor]) -> str:
    """Return the names and shapes of a batch."""
    return ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in batch.items())
