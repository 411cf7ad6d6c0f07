"""Causal models that reply, with their adapters; what they generate ends where the assistant's turn does."""

from collections.abc import Sequence
from typing import Any

import torch

from toolkit.config.model import ModelConfig
from toolkit.data.text_columns import length_limit
from toolkit.errors import UserError
from toolkit.models.changes import settle_generation
from toolkit.models.load import CAUSAL_MODEL, check_architecture, load_model, model_settings, reads_both_ways
from toolkit.models.tiny import causal
from toolkit.tasks.conversations.template import CHAT


def causal_model(config: ModelConfig, vocabulary: int, only: bool, **embedded: Any) -> torch.nn.Module:
    """Return a causal model, or the base and the adapters that a folder with adapters names.

    Args:
        config: which one.
        vocabulary: the number of tokens that the tokenizer knows.
        only: nothing is trained.
        embedded: further settings for the configuration of the embedded model.

    Raises:
        UserError: there is no such model, or it does not fit.
    """
    named = config.name is not None
    settings = {} if named else embedded
    # A head with new weights would have to learn the whole language.
    return load_model(config, CAUSAL_MODEL, causal, vocabulary=vocabulary, settings=settings, trained=named, only=only)


def chat_model(config: ModelConfig, vocabulary: int, stops: Sequence[int], only: bool) -> torch.nn.Module:
    """Return the model, or the base and the adapters that a folder with adapters names.

    Args:
        config: which one.
        vocabulary: the number of tokens that the tokenizer knows.
        stops: tokens that end a reply; they are saved with the model, so that it stops there elsewhere too.
        only: nothing is trained.

    Raises:
        UserError: there is no such model, or it does not fit.
    """
    module: Any = causal_model(config, vocabulary, only, max_position_embeddings=CHAT.max_length)
    known = module.generation_config.eos_token_id
    own = known if isinstance(known, list) else [] if known is None else [known]
    module.generation_config.eos_token_id = sorted({*own, *stops})
    if module.generation_config.pad_token_id is None:
        module.generation_config.pad_token_id = stops[0]
    settle_generation(module, config)
    return module  # type: ignore[no-any-return]


def token_limit(config: ModelConfig, tokenizer: Any) -> int | None:
    """Return the most tokens that model and tokenizer take, or None if neither names a limit.

    Raises:
        UserError: the model can't be found, or is no causal language model.
    """
    known = length_limit(tokenizer)
    limits = [] if known is None else [known]
    if config.name is None:
        return min([*limits, CHAT.max_length])
    settings = model_settings(config)
    check_architecture(config, settings, CAUSAL_MODEL)
    if settings.is_encoder_decoder or reads_both_ways(settings):
        how = "has an encoder beside its decoder" if settings.is_encoder_decoder else "reads a text in both directions"
        raise UserError(
            f"model.name is {config.name!r}, a model of type {settings.model_type}, which {how} and so is no causal "
            "language model; give one that only continues texts, such as a Llama or a Qwen"
        )
    positions = getattr(settings.get_text_config(), "max_position_embeddings", None)
    return min([*limits, *([int(positions)] if positions else [])], default=None)
