"""Models with an encoder and a decoder: which are taken, how they are built, and their logits."""

from typing import Any

import torch
import torch.nn.functional as F

from toolkit.attention import padding_known
from toolkit.config.model import ModelConfig
from toolkit.data.text_columns import length_limit
from toolkit.errors import UserError
from toolkit.losses import NOT_COUNTED
from toolkit.models.changes import settle_generation
from toolkit.models.load import SEQ2SEQ_MODEL, check_architecture, load_model, model_settings
from toolkit.models.tiny import seq2seq
from toolkit.task import Batch
from toolkit.tasks.seq2seq.generation import GenerateConfig, prepare_generation

LIMITS = ("max_position_embeddings", "max_source_positions", "n_positions")
"""Where a model's configuration says how many positions it has."""


def longest_text(config: ModelConfig, tokenizer: Any) -> int | None:
    """Return how many tokens of a text the model takes, or None if any number will do."""
    known = [] if (limit := length_limit(tokenizer)) is None else [limit]
    if config.name is not None:
        own = model_settings(config)
        # T5 names a number of positions, but has none: it looks at distances.
        if own.model_type not in ("t5", "mt5", "umt5"):
            known += [value for name in LIMITS if isinstance(value := getattr(own, name, None), int)]
    return min(known, default=None)


def check_seq2seq(config: ModelConfig) -> None:
    """Refuse a model without encoder or decoder, before data and tokenizer are read."""
    if config.name is not None:
        check_architecture(config, model_settings(config), SEQ2SEQ_MODEL)


def seq2seq_model(
    config: ModelConfig, generate: GenerateConfig, vocabulary: int, longest_target: int, trained: bool = False
) -> torch.nn.Module:
    """Return a model that turns one text into another.

    Args:
        config: which one.
        generate: how it generates.
        vocabulary: the number of tokens that the tokenizer knows.
        longest_target: the longest target of the training data, in tokens.
        trained: all weights have to be there, as they are when nothing is trained.

    Raises:
        UserError: the folder or id holds no such model, or it does not say how its decoder begins.
    """
    module: Any = load_model(config, SEQ2SEQ_MODEL, seq2seq, vocabulary=vocabulary, trained=trained)
    if module.config.decoder_start_token_id is None:
        raise UserError(
            f"the configuration of {config.name} has no decoder_start_token_id, so nothing tells with what its decoder "
            "begins; add it to config.json"
        )
    prepare_generation(module, generate, longest_target)
    settle_generation(module, config)
    return module  # type: ignore[no-any-return]


def target_logits(model: torch.nn.Module, batch: Batch) -> torch.Tensor:
    """Return the logits of each target token, given those before it: (rows, tokens, vocabulary)."""
    with padding_known(batch):
        logits: torch.Tensor = model(
            input_ids=batch["input_ids"],
            attention_mask=batch["attention_mask"],
            decoder_input_ids=decoder_inputs(model, batch["labels"]),
            use_cache=False,
        ).logits
    return logits


def decoder_inputs(model: torch.nn.Module, labels: torch.Tensor) -> torch.Tensor:
    """Return what the decoder reads: the labels one place further on, behind the token it begins with.

    The model's own rule is taken where it has one: some begin with the language. Given the labels, a model would shift
    them itself, but also compute a loss of its own, which costs the memory of the logits once more.
    """
    module: Any = getattr(model, "module", model)  # what Accelerate wraps around a model keeps it under this name
    own = getattr(module, "prepare_decoder_input_ids_from_labels", None)
    if own is not None:
        shifted: torch.Tensor = own(labels)
        return shifted
    begin, pad = module.config.decoder_start_token_id, module.config.pad_token_id
    return F.pad(labels[:, :-1], (1, 0), value=begin).masked_fill(F.pad(labels[:, :-1] == NOT_COUNTED, (1, 0)), pad)
