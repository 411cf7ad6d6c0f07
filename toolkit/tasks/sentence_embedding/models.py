"""Encoders whose last states become one vector, and the folder in which `sentence_transformers` finds all of it."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F

from toolkit.config.model import ModelConfig
from toolkit.data.text_columns import length_limit
from toolkit.errors import UserError
from toolkit.losses import full_precision, output_of
from toolkit.models.export import pretrained_folder
from toolkit.models.load import IMAGES_AND_TEXTS, TEXT_ENCODER, load_model, model_settings, read_json
from toolkit.models.tiny import encoder
from toolkit.models.usage import VECTORS

Pooling = Literal["mean", "cls"]
MODULES = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
"""What a folder for `sentence_transformers` is made of; all its versions know these older names."""


@dataclass(frozen=True)
class EmbeddingModelConfig(ModelConfig):
    """The `model` section of a recipe that makes texts into vectors."""

    pooling: Pooling | None = None
    """A text's vector is the mean of its tokens' states, or that of the first (cls); null takes what the model folder
    says, or mean."""


def embedding_model(config: EmbeddingModelConfig, vocabulary: int, only: bool = False) -> torch.nn.Module:
    """Return the encoder.

    Args:
        config: which one.
        vocabulary: the number of tokens that the tokenizer knows.
        only: nothing is trained.

    Raises:
        UserError: the model is not to be had, or is no encoder.
    """
    own = model_settings(config) if config.name is not None else None
    if own is not None and own.is_encoder_decoder:
        raise UserError(
            f"model.name is {config.name!r}, an encoder with a decoder, whose states are not those of the text alone; "
            "give an encoder, such as a BERT"
        )
    if own is not None and type(own) in IMAGES_AND_TEXTS.loader._model_mapping:
        raise UserError(
            f"model.name is {config.name!r}, a model of type {own.model_type}, which sees images and texts; give an "
            "encoder of texts alone, such as a BERT"
        )
    return load_model(config, TEXT_ENCODER, encoder, vocabulary=vocabulary, only=only)


def embed(model: torch.nn.Module, batch: Mapping[str, torch.Tensor], pooling: Pooling) -> torch.Tensor:
    """Return vectors of length 1, shape (samples, sides, dimension), of a batch that `pad_sides` made."""
    states = full_precision(output_of(model, batch, "identities", "scores").last_hidden_state)
    vectors = F.normalize(pooled(states, batch["attention_mask"], pooling), dim=-1)
    return vectors.view(len(batch["identities"]), -1, vectors.shape[-1])


def pooled(states: torch.Tensor, mask: torch.Tensor, pooling: Pooling) -> torch.Tensor:
    """Return one vector for each text from the states of its tokens, without the padding.

    `states` has the shape (texts, tokens, dimension), `mask` (texts, tokens).
    """
    if pooling == "cls":
        return states[torch.arange(len(states), device=states.device), mask.argmax(dim=1)]
    weights = mask.unsqueeze(-1).to(states.dtype)
    return (states * weights).sum(dim=1) / weights.sum(dim=1)


def pooling_of(config: EmbeddingModelConfig) -> Pooling:
    """Return how the states become a vector: as it was asked for, or as the model's folder says, or their mean.

    Raises:
        UserError: the folder says something that is not done here.
    """
    if config.pooling is not None or config.name is None:
        return config.pooling or "mean"
    modules = read_json(config, "modules.json") or []
    others = [str(module["type"]) for module in modules if str(module["type"]).rpartition(".")[2] not in MODULES]
    if others:
        raise UserError(
            f"{config.name} has further layers after its encoder ({', '.join(others)}), which are not trained here; "
            "say with --model.pooling mean (or cls) that they are to be left out, or take another model"
        )
    path = next((str(module["path"]) for module in modules if str(module["type"]).endswith(".Pooling")), "1_Pooling")
    found = read_json(config, f"{path}/config.json")
    if found is None:
        return "mean"
    modes = [name for name, names in POOLING_KEYS.items() if any(found.get(key) for key in names)]
    given = found.get("pooling_mode", [])
    modes += [given] if isinstance(given, str) else list(given)
    others = [key for key, value in found.items() if key.startswith("pooling_mode_") and value is True]
    if modes == ["mean"] or modes == ["cls"]:
        return modes[0]  # type: ignore[return-value]
    raise UserError(
        f"{config.name} pools the states of its tokens by {', '.join(modes or others) or 'nothing'}, which is not done "
        "here; give --model.pooling mean or cls, or take another model"
    )


POOLING_KEYS = {
    "cls": ("pooling_mode_cls_token",),
    "mean": ("pooling_mode_mean_tokens",),
    "max": ("pooling_mode_max_tokens",),
    "other": ("pooling_mode_mean_sqrt_len_tokens", "pooling_mode_weightedmean_tokens", "pooling_mode_lasttoken"),
}


def embedding_folder(
    tokenizer: Any, max_length: int | None, pooling: Pooling
) -> Callable[[torch.nn.Module, Path, Mapping[str, Any]], None]:
    """Return a task's `export`: a folder for `AutoModel` of Transformers and `SentenceTransformer`."""
    write = pretrained_folder(
        tokenizer, max_length, "Sentence embeddings", "feature-extraction", VECTORS, "sentence-transformers"
    )

    def export(module: Any, folder: Path, results: Mapping[str, Any]) -> None:
        write(module, folder, results)
        modules = [
            {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{name}"}
            for number, (name, path) in enumerate(MODULES.items())
        ]
        pool = {
            "word_embedding_dimension": module.config.hidden_size,
            "pooling_mode_cls_token": pooling == "cls",
            "pooling_mode_mean_tokens": pooling == "mean",
            "pooling_mode_max_tokens": False,
            "pooling_mode_mean_sqrt_len_tokens": False,
        }
        limit = max_length if max_length is not None else length_limit(tokenizer)
        length = {"max_seq_length": limit} if limit is not None else {}
        _write(folder / "modules.json", modules)
        _write(folder / "1_Pooling" / "config.json", pool)
        _write(folder / "2_Normalize" / "config.json", {})
        _write(folder / "sentence_bert_config.json", {**length, "do_lower_case": False})
        _write(folder / "config_sentence_transformers.json", {"similarity_fn_name": "cosine", "prompts": {}})

    return export


def _write(path: Path, content: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
