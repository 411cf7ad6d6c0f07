"""What a masked language model puts in the place of each mask."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch

from toolkit.config.model import ModelConfig
from toolkit.data.collate import fillers_of, pad
from toolkit.data.columns import TEXT_NAMES
from toolkit.data.text_columns import length_limit
from toolkit.errors import UserError
from toolkit.losses import full_precision, output_of
from toolkit.models.tokenizer import tokenizer
from toolkit.predictor import EMPTY, Encoded, Predictor, Request, Row, encoded_texts, rounded
from toolkit.task import Batch
from toolkit.tasks.language_modeling.models import language_model

GUESSES = 5
"""Tokens that `--scores` shows for each mask."""
Guess = tuple[int, float]
"""A token and its probability."""


def predictor(config: ModelConfig, request: Request) -> Predictor:
    """Return what fills in the masks of the texts in a file.

    Raises:
        UserError: the model can't be loaded, has no mask, or it can't be told which column holds the text.
    """
    column = request.column("text", TEXT_NAMES)
    tokens = tokenizer(config, (), "")
    if tokens.mask_token_id is None:
        raise UserError(f"the tokenizer of {config.name} has no mask token, so that nothing can be filled in")
    fillers = fillers_of(tokens, "texts")
    return Predictor(
        language_model(config, "masked", len(tokens), trained=True).eval(),
        {"prediction": "texts", "score": "vector", **({"scores": "guesses"} if request.scores else {})},
        ("text",),
        partial(encode, tokens, column, length_limit(tokens)),
        lambda samples: pad(samples, fillers, tokens.padding_side),
        partial(guesses, tokens.mask_token_id),
        partial(decode, tokens, request.scores),
        {"text": repr(column), "mask": f"{tokens.mask_token} in a text is filled in"},
    )


def encode(tokens: Any, column: str, limit: int | None, rows: Sequence[Row]) -> Encoded:
    """Return the token ids of the texts that have a mask."""
    found = encoded_texts(tokens, [column], limit, rows)
    kept = [number for number, sample in enumerate(found.samples) if tokens.mask_token_id in sample["input_ids"]]
    without = sorted({*found.owners} - {found.owners[number] for number in kept})
    remarks = {**found.remarks, **({f"without the mask {tokens.mask_token}: {EMPTY}": without} if without else {})}
    return Encoded(
        [found.samples[number] for number in kept],
        [found.owners[number] for number in kept],
        [found.lengths[number] for number in kept],
        remarks,
    )


def guesses(mask: int, model: torch.nn.Module, batch: Batch) -> list[list[list[Guess]]]:
    """Return for each sample, for each of its masks, the likeliest tokens with their probabilities."""
    masked = batch["input_ids"] == mask
    logits = full_precision(output_of(model, batch).logits[masked])
    likely, ids = logits.softmax(-1).topk(min(GUESSES, logits.shape[-1]))
    of_masks = [list(zip(*one, strict=True)) for one in zip(ids.tolist(), likely.tolist(), strict=True)]
    counts = masked.sum(1).tolist()
    return [[of_masks.pop(0) for _ in range(count)] for count in counts]


def decode(
    tokens: Any, scores: bool, rows: Sequence[Row], encoded: Encoded, found: Sequence[list[list[Guess]]]
) -> Mapping[int, Mapping[str, Any]]:
    """Return for each row the likeliest token of each mask, in the order of the masks, and its probability."""
    made: dict[int, dict[str, Any]] = {}
    for place, masks in zip(encoded.owners, found, strict=True):
        named = [
            [{"token": tokens.decode([token]).strip(), "score": rounded(score)} for token, score in mask]
            for mask in masks
        ]
        made[place] = {
            "prediction": [mask[0]["token"] for mask in named],
            "score": [mask[0]["score"] for mask in named],
        }
        made[place] |= {"scores": named} if scores else {}
    return made
