"""Texts for sources without targets."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from toolkit.config.model import ModelConfig
from toolkit.data.collate import pad, padding_token
from toolkit.models.load import SEQ2SEQ_MODEL, load_model
from toolkit.models.tiny import seq2seq
from toolkit.models.tokenizer import SEQ2SEQ, tokenizer
from toolkit.predictor import Encoded, Predictor, Request, Row, encoded_texts, text_of
from toolkit.tasks.seq2seq.columns import SOURCE_NAMES, texts_in
from toolkit.tasks.seq2seq.generation import generated_texts
from toolkit.tasks.seq2seq.models import longest_text

USUAL_TOKENS = 256
"""Of the longest text, where neither the user nor the model says it."""


def predictor(config: ModelConfig, request: Request) -> Predictor:
    """Return what writes a text for each source in a file.

    Raises:
        UserError: the model can't be loaded, or it can't be told which column holds the source.
    """
    column = request.column("source", SOURCE_NAMES)
    language = request.given.get("language") or request.trained_on.get("language")
    tokens = tokenizer(config, (), "", SEQ2SEQ)
    limit = request.setting("data", "max_length", None) or longest_text(config, tokens)
    model: Any = load_model(config, SEQ2SEQ_MODEL, seq2seq, vocabulary=len(tokens), trained=True)
    own = model.generation_config
    own.do_sample, own.temperature, own.top_k, own.top_p = False, None, None, None
    own.num_return_sequences, own.return_dict_in_generate = 1, False
    if request.tokens is not None or own.max_new_tokens is None:
        own.max_new_tokens, own.max_length = request.tokens or USUAL_TOKENS, None
    return Predictor(
        model.eval(),
        {"prediction": "text"},
        ("source", "language"),
        partial(encode, tokens, column, language, request.setting("data", "prefix", ""), limit),
        partial(pad, fillers={"input_ids": padding_token(tokens, "texts")}),
        lambda model, batch: generated_texts(model, batch, tokens),
        decode,
        {"source": repr(column), "text": f"at most {own.max_new_tokens} tokens"},
    )


def encode(
    tokens: Any, column: str, language: str | None, prefix: str, limit: int | None, rows: Sequence[Row]
) -> Encoded:
    """Return the token ids of sources; of longer ones the first `limit`."""
    values = [row.get(column) for row in rows]
    sources = [value.get(language) if isinstance(value, dict) else value for value in values]
    stripped = [{"source": " ".join(texts_in(text_of(source)))} for source in sources]
    return encoded_texts(tokens, ["source"], limit, stripped, prefix)


def decode(rows: Sequence[Row], encoded: Encoded, found: Sequence[str]) -> Mapping[int, Mapping[str, Any]]:
    """Return the text for each row."""
    return {place: {"prediction": text} for place, text in zip(encoded.owners, found, strict=True)}
