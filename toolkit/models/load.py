"""Models of Hugging Face Transformers: the embedded one, a local folder, or a hub id."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from toolkit.batch_layout import CHECKPOINTING
from toolkit.config.model import ModelConfig
from toolkit.errors import UserError
from toolkit.models.changes import (
    about_experts,
    about_padding,
    remark,
    set_dropout,
    set_dropout_layers,
    without_layer_drop,
)
from toolkit.models.compiled import compile_layers
from toolkit.models.errors import (
    cannot_load,
    check_head,
    check_input,
    check_weights,
    misplaced,
    no_attention,
    no_such_model,
    wrong_generation,
)
from toolkit.models.lora import add_adapters, base_of, check_blocks, load_adapters, quantization


@dataclass(frozen=True)
class Architecture:
    """What a recipe wants of a model: which of the classes of Transformers, and how to say so."""

    auto: str
    """The name of the class in Transformers that loads it."""
    purpose: str
    """What such a model can do, such as "classify texts"."""
    head: str
    """What it has for that, such as "a sequence classification head"."""

    encodes: bool = False
    """Whether it reads texts in both directions, so that padding has to be hidden from it."""

    @property
    def loader(self) -> Any:
        """The class itself; to import it takes seconds."""
        import transformers

        return getattr(transformers, self.auto)


SEQUENCE_CLASSIFIER = Architecture(
    "AutoModelForSequenceClassification", "classify texts", "a sequence classification head", encodes=True
)
TOKEN_CLASSIFIER = Architecture(
    "AutoModelForTokenClassification", "tag tokens", "a token classification head", encodes=True
)
QUESTION_ANSWERER = Architecture(
    "AutoModelForQuestionAnswering", "mark answers in a text", "a question answering head", encodes=True
)
SEQ2SEQ_MODEL = Architecture(
    "AutoModelForSeq2SeqLM", "turn one text into another", "an encoder and a decoder", encodes=True
)
CAUSAL_MODEL = Architecture("AutoModelForCausalLM", "continue texts", "a causal language modelling head")
MASKED_MODEL = Architecture(
    "AutoModelForMaskedLM", "fill in masked words", "a masked language modelling head", encodes=True
)
TEXT_ENCODER = Architecture("AutoModel", "represent texts", "an encoder", encodes=True)
IMAGES_AND_TEXTS = Architecture("AutoModelForZeroShotImageClassification", "compare images with texts", "two encoders")
IMAGE_CLASSIFIER = Architecture("AutoModelForImageClassification", "classify images", "an image classification head")


def load_model(
    config: ModelConfig,
    architecture: Architecture,
    embedded: Callable[..., Any],
    *,
    vocabulary: int | None = None,
    settings: Mapping[str, Any] | None = None,
    trained: bool = False,
    only: bool | None = None,
) -> torch.nn.Module:
    """Return a model, with adapters and activation checkpointing where the configuration asks for them.

    Of a folder with adapters it is their base with them.

    Args:
        config: which one.
        architecture: which class of Transformers.
        embedded: returns the configuration of the embedded model, given the size of the vocabulary (where there is one)
            and `settings`: one of `toolkit.models.tiny`.
        vocabulary: the number of tokens that the tokenizer knows; None for a model without one.
        settings: what the model's own configuration is to say, such as the labels of its head.
        trained: the head has to come with the weights, as it does when nothing is trained; otherwise it may be new.
        only: nothing is trained; None means the same as `trained`.

    Raises:
        UserError: the folder or id holds no such model, no weights in a safe format, or weights of another one.
    """
    from safetensors import SafetensorError

    dtype = getattr(torch, config.dtype)
    if config.name is None:
        sizes = () if vocabulary is None else (vocabulary,)
        new = embedded(*sizes, **(settings or {}))
        set_dropout(new, config.dropout)
        try:
            module: torch.nn.Module = architecture.loader.from_config(new, attn_implementation=config.attention)
        except (ValueError, ImportError) as error:
            raise UserError(no_attention(config, error)) from None
        set_dropout_layers(module, config.dropout)
        return ready(module.to(dtype), config)
    config, adapters = base_of(config, trained if only is None else only)
    own = model_settings(config)
    check_architecture(config, own, architecture)
    known = getattr(own.get_text_config(), "vocab_size", None)
    if vocabulary is not None and known is not None and vocabulary > known:
        raise UserError(
            f"the tokenizer of {config.name} knows {vocabulary} tokens, but the model only {known}; "
            "they do not belong together: give a folder in which both were saved together"
        )
    labels = dict(own.id2label or {})
    own.update(dict(settings or {}))
    set_dropout(own, config.dropout)
    remarks = without_layer_drop(own) | about_experts(own)
    if torch.get_default_device().type == "meta":
        # Another process reads the weights and sends them.
        bare: torch.nn.Module = architecture.loader.from_config(own, dtype=dtype, attn_implementation=config.attention)
        set_dropout_layers(bare, config.dropout)
        remark(bare, remarks)
        return ready(bare, config)
    try:
        module, info = architecture.loader.from_pretrained(
            config.name,
            config=own,
            revision=config.revision,
            dtype=dtype,
            attn_implementation=config.attention,
            quantization_config=quantization(config.lora, dtype),
            # Pickled weights are not read: a pickle can run code.
            use_safetensors=True,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    except (OSError, ValueError, RuntimeError, SafetensorError, ImportError) as error:
        if config.attention is not None and "attention" in str(error).lower():
            raise UserError(no_attention(config, error)) from None
        raise UserError(wrong_generation(config) or cannot_load("weights", config, error)) from None
    check_input(
        config, module, "pixel_values" if architecture is IMAGE_CLASSIFIER else "input_ids", architecture.purpose
    )
    new = check_weights(config, module, info, architecture.purpose, trained)
    check_blocks(module, config)
    set_dropout_layers(module, config.dropout)
    remark(module, remarks | (about_padding(module) if architecture.encodes else {}))
    if architecture is TEXT_ENCODER:
        new = []  # a pooler, which is not used
    if config.lora.rank is not None or adapters is not None:
        check_head(config, adapters, new, relabelled=labels != (own.id2label or {}))
    module = ready(module, config, new)
    return module if adapters is None else load_adapters(module, adapters)


def ready(module: Any, config: ModelConfig, new: Sequence[str] = ()) -> torch.nn.Module:
    """Return a model with the activation checkpointing, compilation and adapters that the configuration asks for.

    Parameters with `new` weights are trained next to the adapters.
    """
    if config.checkpoint_activations:
        if not getattr(module, "supports_gradient_checkpointing", False):
            raise UserError(
                f"model.checkpoint_activations is true, but a {type(module).__name__} can't do that; leave it out"
            )
        if hasattr(module, "activation_checkpointing_enable"):
            module.activation_checkpointing_enable(CHECKPOINTING)
        else:  # its name before Transformers 5.2x
            module.gradient_checkpointing_enable(CHECKPOINTING)
    if config.compile:
        compile_layers(module)
    return add_adapters(module, config, new) if config.lora.rank is not None else module


def model_settings(config: ModelConfig) -> Any:
    """Return the Transformers configuration of a model folder or hub id; of a folder with adapters that of their base.

    Raises:
        UserError: it is not to be had, or not a model.
    """
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig

    config, _ = base_of(config, only=False)
    assert config.name is not None
    folder = Path(config.name)
    if (hint := misplaced(folder)) is not None:
        raise UserError(hint)
    if not folder.is_dir() and (problem := no_such_model(config.name)) is not None:
        raise UserError(problem)
    if folder.is_dir() and not (folder / "config.json").is_file():
        raise UserError(
            f"the model folder {config.name} has no config.json; give the folder that `save_pretrained` wrote"
        )
    try:
        return AutoConfig.from_pretrained(config.name, revision=config.revision)
    except (OSError, ValueError, KeyError, StrictDataclassError) as error:  # the last: a value of a wrong type
        raise UserError(cannot_load("configuration", config, error)) from None


def reads_both_ways(settings: Any) -> bool:
    """Return whether a model fills in masked words: as it is it sees the text that it would have to continue.

    Most such models also come with a class that continues texts.
    """
    return type(settings) in MASKED_MODEL.loader._model_mapping and not getattr(settings, "is_decoder", False)


def check_architecture(config: ModelConfig, settings: Any, architecture: Architecture) -> None:
    """Refuse a model that Transformers has no such class for."""
    if type(settings) not in architecture.loader._model_mapping:
        raise UserError(
            f"model.name is {config.name!r}, a model of type {settings.model_type}, which can't "
            f"{architecture.purpose}; give a model that Transformers has {architecture.head} for"
        )


def read_json(config: ModelConfig, file: str) -> Any:
    """Return a JSON file of a model's folder or hub id, or None if it has none."""
    from transformers.utils import cached_file

    path = cached_file(
        config.name,
        file,
        revision=config.revision,
        _raise_exceptions_for_gated_repo=False,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    if path is None:
        return None
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{file} of {config.name} is no JSON ({error}); save or download the model again") from None
