"""The models of `topology.py`, with random data to train them on.

Everything is float64, so that whatever differs between two layouts comes from the training itself; and every model has
dropout of 0.1 wherever it can have any.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch

VOCABULARY = 97
CLASSES = 3
SHORTEST, LONGEST = 3, 32
WIDTH, HEADS, LAYERS = 32, 4, 2
IGNORED = -100
DROPOUT = 0.1
CHANNELS, SIDE, PATCH = 3, 16, 4

Kind = Literal["texts", "images", "continuations", "answers"]
"""What is learnt: a class of texts or images, the next tokens of a text, or another text."""
Sample = tuple[torch.Tensor, torch.Tensor]


class Source:
    """Random token sequences of random length from a fixed seed, with a label per sequence or per token.

    Half of the tokens tell the class, so that there is something to learn. Where tokens are labelled, only those after
    a random position are, so that samples differ much in their number of units.
    """

    def __init__(self, samples: int, seed: int, token_labels: bool) -> None:
        generator = torch.Generator().manual_seed(seed)

        def draw(low: int, high: int, size: int) -> torch.Tensor:
            return torch.randint(low, high, (size,), generator=generator)

        lengths = draw(SHORTEST, LONGEST + 1, samples).tolist()
        self.samples: list[Sample] = []
        for length in lengths:
            kind = draw(0, CLASSES, 1).squeeze(0)
            anything = draw(1, VOCABULARY, length)
            telling = (anything - 1) // CLASSES * CLASSES + kind + 1
            tokens = torch.where(draw(0, 2, length) == 0, anything, telling)
            labels = kind
            if token_labels:
                labels = tokens.clone()
                labels[: int(draw(1, length, 1))] = IGNORED
            self.samples.append((tokens, labels))
        self.known_lengths = np.array(lengths, dtype=np.int64)
        self.name = f"random-{samples}-{seed}-{token_labels}"

    def __len__(self) -> int:
        return len(self.samples)

    def fetch(self, ids: Sequence[int]) -> list[Sample]:
        """Return the samples with these ids."""
        return [self.samples[number] for number in ids]

    def lengths(self, ids: np.ndarray) -> np.ndarray:
        """Return the lengths of these samples in tokens."""
        return self.known_lengths[ids]

    def digest(self) -> str:
        """Return what the content follows from."""
        return self.name


class Images:
    """Random images from a fixed seed, each a little brighter in one of its channels, which is its class."""

    def __init__(self, samples: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(0, CLASSES, (samples,), generator=generator)
        self.images = torch.randn(samples, CHANNELS, SIDE, SIDE, generator=generator, dtype=torch.float64)
        self.images[torch.arange(samples), self.labels] += 0.5
        self.name = f"images-{samples}-{seed}"

    def __len__(self) -> int:
        return len(self.labels)

    def fetch(self, ids: Sequence[int]) -> list[Sample]:
        """Return the samples with these ids."""
        return [(self.images[number], self.labels[number]) for number in ids]

    def lengths(self, ids: np.ndarray) -> None:
        """Images are of one size."""

    def digest(self) -> str:
        """Return what the content follows from."""
        return self.name


def collate(kind: Kind, samples: Sequence[Sample]) -> dict[str, torch.Tensor]:
    """Pad to the longest sample; labels of tokens are padded with the value that no loss counts."""
    inputs, labels = zip(*samples, strict=True)
    if kind == "images":
        return {"pixel_values": torch.stack(inputs), "labels": torch.stack(labels)}
    if kind == "answers":  # what is labelled of a text is its answer
        labels = tuple(label[label != IGNORED] for label in labels)
    padded = torch.nn.utils.rnn.pad_sequence(list(inputs), batch_first=True)
    return {
        "input_ids": padded,
        "attention_mask": (padded > 0).long(),
        "labels": torch.stack(labels)
        if kind == "texts"
        else torch.nn.utils.rnn.pad_sequence(list(labels), batch_first=True, padding_value=IGNORED),
    }


class PlainTransformer(torch.nn.Module):
    """A classifier from PyTorch's own layers alone."""

    # For tensor parallel: what a model of Transformers has in its configuration.
    tp_plan: ClassVar = {"layers.layers.*.linear1": "colwise", "layers.layers.*.linear2": "rowwise"}

    def __init__(self) -> None:
        super().__init__()
        self.tokens = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.positions = torch.nn.Embedding(LONGEST, WIDTH)
        layer = torch.nn.TransformerEncoderLayer(
            WIDTH, HEADS, 2 * WIDTH, dropout=DROPOUT, batch_first=True, norm_first=True
        )
        self.layers = torch.nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = torch.nn.Linear(WIDTH, CLASSES)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Return logits, shape (samples, classes), from tokens and mask of shape (samples, longest)."""
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)
        hidden = self.tokens(input_ids) + self.positions(positions)
        hidden = self.layers(hidden, src_key_padding_mask=attention_mask == 0)
        mask = attention_mask.unsqueeze(-1)
        return self.head((hidden * mask).sum(1) / mask.sum(1))


def plain_transformer() -> torch.nn.Module:
    """Return the plain PyTorch transformer."""
    return PlainTransformer().double()


def bert() -> torch.nn.Module:
    """Return a small BERT classifier with new weights."""
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=2 * WIDTH,
        max_position_embeddings=LONGEST,
        hidden_dropout_prob=DROPOUT,
        attention_probs_dropout_prob=DROPOUT,
        num_labels=CLASSES,
    )
    return BertForSequenceClassification(config).double()


def vit() -> torch.nn.Module:
    """Return a small ViT classifier with new weights."""
    from transformers import ViTConfig, ViTForImageClassification

    return ViTForImageClassification(ViTConfig(**of_images())).double()


def dinov2() -> torch.nn.Module:
    """Return a small DINOv2 classifier with new weights, which also leaves out whole branches (stochastic depth)."""
    from transformers import Dinov2Config, Dinov2ForImageClassification

    model = Dinov2ForImageClassification(Dinov2Config(**of_images(), drop_path_rate=DROPOUT)).double()
    # Used in pre-training alone: distributed data parallel would wait for its gradient, in the other methods.
    model.dinov2.embeddings.mask_token.requires_grad_(False)
    return model


def of_images() -> dict[str, Any]:
    """Return the settings of a small model of images."""
    return {
        "image_size": SIDE,
        "patch_size": PATCH,
        "num_channels": CHANNELS,
        "hidden_size": WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "intermediate_size": 2 * WIDTH,
        "hidden_dropout_prob": DROPOUT,
        "attention_probs_dropout_prob": DROPOUT,
        "num_labels": CLASSES,
    }


def t5() -> torch.nn.Module:
    """Return a small T5 with new weights; its norms compute in float32 all the same."""
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=VOCABULARY,
        d_model=WIDTH,
        d_kv=WIDTH // HEADS,
        d_ff=2 * WIDTH,
        num_layers=LAYERS,
        num_heads=HEADS,
        dropout_rate=DROPOUT,
        decoder_start_token_id=0,
        use_cache=False,
    )
    return T5ForConditionalGeneration(config).double()


def llama(dropout: float = DROPOUT) -> torch.nn.Module:
    """Return a small Llama with new weights; its norms and rotary embedding compute in float32 all the same."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS // 2,
        intermediate_size=2 * WIDTH,
        max_position_embeddings=LONGEST,
        attention_dropout=dropout,
        use_cache=False,
    )
    return LlamaForCausalLM(config).double()


def llama_with_adapters() -> torch.nn.Module:
    """Return a small Llama, frozen but for adapters with dropout."""
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=4, lora_dropout=DROPOUT, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    return get_peft_model(llama(dropout=0.0), config).double()


@dataclass(frozen=True)
class Model:
    """A model and what it learns."""

    build: Callable[[], torch.nn.Module]
    kind: Kind
    bound: float = 1e-12
    """How far apart two layouts of the toolkit may be. Parts in float32 round at 6e-8, whatever the order of sums."""
    packs: bool = False
    """Whether it can compute without padding."""


MODELS = {
    "plain transformer": Model(plain_transformer, "texts"),
    "BERT": Model(bert, "texts", packs=True),
    "ViT": Model(vit, "images"),
    "DINOv2": Model(dinov2, "images"),
    "T5": Model(t5, "answers", bound=1e-7),
    "Llama": Model(llama, "continuations", bound=1e-7, packs=True),
    "Llama, LoRA": Model(llama_with_adapters, "continuations", bound=1e-7, packs=True),
}
