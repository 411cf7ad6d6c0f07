"""Which language model is trained: the objective that it was made for, its tokenizer, and the model itself."""

from dataclasses import replace
from typing import Literal

import torch

from toolkit.config.model import ModelConfig
from toolkit.errors import UserError
from toolkit.models.load import CAUSAL_MODEL, MASKED_MODEL, load_model, model_settings, reads_both_ways
from toolkit.models.tiny import causal, encoder
from toolkit.models.tokenizer import CAUSAL, ENCODER, EmbeddedTokenizer

Objective = Literal["causal", "masked"]

VOCABULARY = 2048
"""Of the embedded models: with little text, rarer tokens are seen too seldom to be learned."""


def find_objective(config: ModelConfig, asked: Literal["auto", "causal", "masked"]) -> Objective:
    """Return the objective that was asked for, or else the one that the model was made for.

    Raises:
        UserError: the model was made for the other one, or for none.
    """
    if config.name is None:
        return "causal" if asked == "auto" else asked
    settings = model_settings(config)
    if settings.is_encoder_decoder:
        raise UserError(
            f"model.name is {config.name!r}, a model of type {settings.model_type} with encoder and decoder; give a "
            "model that continues texts (causal), or one that fills in masked words (masked)"
        )
    fills = reads_both_ways(settings)
    continues = type(settings) in CAUSAL_MODEL.loader._model_mapping and not fills
    if not fills and not continues:
        raise UserError(
            f"model.name is {config.name!r}, a model of type {settings.model_type}, which is no language model; give "
            "one that continues texts (causal), or one that fills in masked words (masked)"
        )
    own: Objective = "masked" if fills else "causal"
    if asked not in ("auto", own):
        does = {
            "masked": "an encoder, which reads in both directions",
            "causal": "a causal model, which reads forwards",
        }
        raise UserError(
            f"objective is {asked}, but model.name is {config.name!r}, a model of type {settings.model_type}: "
            f"{does[own]}; give --objective {own}, or another model"
        )
    return own


def embedded_tokenizer(objective: Objective) -> EmbeddedTokenizer:
    """Return what the tokenizer of the embedded model is like."""
    return replace(CAUSAL if objective == "causal" else ENCODER, vocabulary=VOCABULARY)


def language_model(config: ModelConfig, objective: Objective, vocabulary: int, trained: bool) -> torch.nn.Module:
    """Return a model for an objective; `trained` means that its head has to come with the weights.

    Raises:
        UserError: the folder or id holds no such model, or one that does not fit the tokenizer.
    """
    architecture, embedded = (CAUSAL_MODEL, causal) if objective == "causal" else (MASKED_MODEL, encoder)
    return load_model(config, architecture, embedded, vocabulary=vocabulary, trained=trained)
