"""Tags for words without any."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from toolkit.config.model import ModelConfig
from toolkit.data.collate import fillers_of, pad
from toolkit.data.columns import plain_name
from toolkit.losses import full_precision, logits_of
from toolkit.models.load import TOKEN_CLASSIFIER, load_model, model_settings
from toolkit.models.tiny import encoder
from toolkit.models.tokenizer import tokenizer
from toolkit.predictor import EMPTY, Encoded, Predictor, Request, Row, rounded
from toolkit.task import Batch
from toolkit.tasks.token_classification.data import WORD_NAMES
from toolkit.tasks.token_classification.tags import OUTSIDE
from toolkit.tasks.token_classification.window_sizes import window_sizes
from toolkit.tasks.token_classification.windows import (
    frame_of_windows,
    framed,
    prepare_for_words,
    tokens_of_words,
    word_windows,
)
from toolkit.tasks.token_classification.word_rows import SENTENCE_NAMES


def predictor(config: ModelConfig, request: Request) -> Predictor:
    """Return what tags the words of a file.

    Raises:
        UserError: the model can't be loaded, or it can't be told which column holds the words.
    """
    column = request.column("tokens", WORD_NAMES)
    own = model_settings(config)
    labels = [name for _, name in sorted((own.id2label or {}).items())]
    tokens = prepare_for_words(tokenizer(config, (), ""))
    sizes = window_sizes(tokens, *(request.setting("data", name, None) for name in ("max_length", "overlap")))
    # For words that the tokenizer makes nothing of.
    unknown = OUTSIDE if OUTSIDE in labels else request.settings.get("commonest_tag")
    return Predictor(
        load_model(config, TOKEN_CLASSIFIER, encoder, vocabulary=len(tokens), trained=True).eval(),
        {"prediction": "texts", "score": "number"},
        ("tokens",),
        partial(encode, tokens, column, *sizes),
        partial(pad, fillers={**fillers_of(tokens, "sentences"), "word": -1}, side=tokens.padding_side),
        tags,
        partial(decode, column, labels, unknown),
        {"words": repr(column), "tags": ", ".join(labels)},
    )


def words_of(value: Any) -> list[str]:
    """Return the words of a cell, none where one of them is null; a text is a list in JSON, or is split at its white
    space."""
    if isinstance(value, str) and value[:1] == "[" and value[-1:] == "]":
        with suppress(ValueError):
            value = json.loads(value)
    if isinstance(value, list):
        return [] if any(word is None for word in value) else [str(word) for word in value]
    return [] if value is None else str(value).split()


def encode(tokens: Any, column: str, max_length: int, overlap: int, rows: Sequence[Row]) -> Encoded:
    """Return the windows of sentences, as `tokenize_words` makes them."""
    frame, place_of_tokens, room = frame_of_windows(tokens, max_length)
    sentences = [words_of(row.get(column)) for row in rows]
    asked = [place for place, words in enumerate(sentences) if words]
    remarks: dict[str, list[int]] = {}
    if len(asked) < len(rows):
        remarks[f"without words, or with one that is null: {EMPTY}"] = sorted(set(range(len(rows))) - set(asked))
    if alone := single_words(rows, column, sentences):
        remarks["with one word of a sentence: a row was taken for a sentence; join its words with spaces"] = alone
    samples: list[Any] = []
    owners: list[int] = []
    found = tokens_of_words(tokens, [sentences[place] for place in asked]) if asked else ()
    for place, (ids, counts) in zip(asked, found, strict=True):
        if (counts > room).any():
            remarks.setdefault(f"with a word of more than {room} tokens: the rest was not read", []).append(place)
        for inner, word in word_windows(ids, counts, room, overlap):
            samples.append(framed(inner, word, frame, place_of_tokens))
            owners.append(place)
    return Encoded(samples, owners, [len(sample["input_ids"]) for sample in samples], remarks)


def single_words(rows: Sequence[Row], column: str, sentences: Sequence[Sequence[str]]) -> list[int]:
    """Return the rows that are no sentence, but one word of it, as a column says that tells sentences apart: it is
    empty there, or as in the row above."""
    name = next((name for name in rows[0] if name != column and plain_name(name) in SENTENCE_NAMES), None)
    if name is None:
        return []
    values = [row.get(name) for row in rows]
    pairs = enumerate(pairwise(values), start=1)
    return [place for place, (above, value) in pairs if value in (None, "", above) and len(sentences[place]) == 1]


def tags(model: torch.nn.Module, batch: Batch) -> list[list[list[float]]]:
    """Return for each window, of the words that belong to it, which these are, their tags, and how probable each is:
    (3, words)."""
    words = batch["word"]
    logits = full_precision(logits_of(model, {name: values for name, values in batch.items() if name != "word"}))
    best = logits.softmax(-1).max(-1)
    together = torch.stack([words.to(best.values.dtype), best.indices.to(best.values.dtype), best.values], 1).cpu()
    return [row[:, row[0] >= 0].tolist() for row in together]


def decode(
    column: str,
    labels: Sequence[str],
    unknown: str | None,
    rows: Sequence[Row],
    encoded: Encoded,
    found: Sequence[list[list[float]]],
) -> Mapping[int, Mapping[str, Any]]:
    """Return the tag of each word, and how probable the least probable one is."""
    made: dict[int, dict[str, Any]] = {}
    for place, row in enumerate(rows):
        # A sentence that the tokenizer makes nothing of has no window.
        if words := words_of(row.get(column)):
            made[place] = {"prediction": [unknown] * len(words), "score": None}
    for place, (numbers, best, sure) in zip(encoded.owners, found, strict=True):
        row = made[place]
        for number, tag in zip(numbers, best, strict=True):
            row["prediction"][int(number)] = labels[int(tag)]
        least = float(np.min(sure))
        row["score"] = rounded(least if row["score"] is None else min(row["score"], least))
    return made
