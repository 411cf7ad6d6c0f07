"""Vectors of texts."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from toolkit.config.model import ModelConfig
from toolkit.data.collate import fillers_of, pad
from toolkit.data.columns import TEXT_NAMES
from toolkit.data.text_columns import length_limit
from toolkit.losses import full_precision, output_of
from toolkit.models.tokenizer import tokenizer
from toolkit.predictor import Encoded, Predictor, Request, Row, encoded_texts, rounded
from toolkit.task import Batch
from toolkit.tasks.sentence_embedding.models import EmbeddingModelConfig, Pooling, embedding_model, pooled, pooling_of

NAMES = (*TEXT_NAMES, ("anchor", "sentence1", "sentence_1", "sentence_a"))


def predictor(config: ModelConfig, request: Request) -> Predictor:
    """Return what makes vectors of the texts in a file.

    Raises:
        UserError: the model can't be loaded, or it can't be told which column holds the text.
    """
    column = request.column("text", NAMES)
    own = EmbeddingModelConfig(**{entry.name: getattr(config, entry.name) for entry in fields(ModelConfig)})
    pooling = pooling_of(own)
    tokens = tokenizer(config, (), "")
    limit = request.setting("data", "max_length", None) or length_limit(tokens)
    return Predictor(
        embedding_model(own, len(tokens), only=True).eval(),
        {"vector": "vector"},
        ("text",),
        partial(encoded_texts, tokens, [column], limit),
        partial(pad, fillers=fillers_of(tokens, "texts"), side=tokens.padding_side),
        partial(vectors, pooling),
        decode,
        {"text": repr(column), "pooling": pooling},
    )


def vectors(pooling: Pooling, model: torch.nn.Module, batch: Batch) -> list[list[float]]:
    """Return the vector of each sample, of length 1."""
    states = full_precision(output_of(model, batch).last_hidden_state)
    found: list[list[float]] = F.normalize(pooled(states, batch["attention_mask"], pooling), dim=-1).cpu().tolist()
    return found


def decode(rows: Sequence[Row], encoded: Encoded, found: Sequence[list[float]]) -> Mapping[int, Mapping[str, Any]]:
    """Return the vector of each row."""
    return {
        place: {"vector": [rounded(x) for x in vector]} for place, vector in zip(encoded.owners, found, strict=True)
    }
