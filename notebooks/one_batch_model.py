"""What the notebook sends through every way of training: eight sentences, and a language model that reads their bytes.

Everything is float64, so that two ways of adding up one sum differ by about 1e-16, and a mistake cannot hide in
rounding.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCABULARY, WIDTH, HEADS, LAYERS = 256, 64, 4, 2
NO_LABEL = -100

SENTENCES = (
    "The sea was calm.",
    "Nobody had opened the small green door at the end of the corridor for eleven years.",
    "Rain.",
    "She counted the coins twice, and then once more, and they were still too few.",
    "A good map leaves things out.",
    "The train to the coast leaves at seven; the one after it does not leave at all.",
    "Why?",
    "Bread, salt and a little time are all that this soup asks of you.",
    "He wrote the letter, read it aloud to the cat, and put it in the stove.",
)


class Block(nn.Module):
    """Attention and a small network, each added to what came in."""

    def __init__(self) -> None:
        super().__init__()
        self.before_attention, self.before_network = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.network = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the hidden states (rows, length, WIDTH) of the next layer."""
        heads = self.attention(self.before_attention(hidden)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(heads[0], heads[1], heads[2], is_causal=True)
        hidden = hidden + self.out(attended.transpose(1, 2).flatten(-2))
        return hidden + self.network(self.before_network(hidden))


class SmallModel(nn.Module):
    """Guesses the next byte at every position: 137,600 weights, about 1.1 MB in float64."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(128, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits (rows, length, VOCABULARY)."""
        hidden = self.embedding(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden)


def build_model() -> SmallModel:
    """Return the model with the same first weights each time."""
    torch.manual_seed(0)
    return SmallModel().double()


def batch_of(sentences: Sequence[str]) -> dict[str, Tensor]:
    """Return tokens and labels (rows, longest): the label of a byte is the byte after it; padding has none."""
    rows = [list(sentence.encode()) for sentence in sentences]
    longest = max(len(row) for row in rows)
    tokens = torch.zeros(len(rows), longest, dtype=torch.long)
    labels = torch.full((len(rows), longest), NO_LABEL)
    for number, row in enumerate(rows):
        tokens[number, : len(row)] = torch.tensor(row)
        labels[number, : len(row) - 1] = torch.tensor(row[1:])
    return {"tokens": tokens, "labels": labels}


def units_of(batch: dict[str, Tensor]) -> int:
    """Return how many tokens have a label: what a loss is averaged over."""
    return int((batch["labels"] != NO_LABEL).sum())


def summed_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the loss summed over the labelled tokens."""
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=NO_LABEL, reduction="sum")


def mean_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the loss averaged over the labelled tokens of this batch: what most models return as `loss`."""
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=NO_LABEL)


def gradients_of(model: nn.Module) -> dict[str, Tensor]:
    """Return a copy of the gradients by the name of their weight."""
    return {name: weight.grad.detach().clone() for name, weight in model.named_parameters() if weight.grad is not None}


def norm_of(gradients: dict[str, Tensor]) -> float:
    """Return the length of all gradients taken as one vector: the gradient norm."""
    return float(torch.cat([gradient.flatten() for gradient in gradients.values()]).norm())


def largest_difference(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """Return the largest absolute difference between two sets of tensors."""
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def relative_difference(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """Return ||one - other|| / ||other|| over all tensors together."""
    return norm_of({name: one[name] - other[name] for name in one}) / norm_of(other)
