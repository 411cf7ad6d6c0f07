"""Models of Hugging Face Transformers: the embedded one, a local folder, or a hub id."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

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
from toolkit.models.errors import cannot_load, misplaced, no_attention, wrong_generation
from toolkit.models.lora import add_adapters, base_of, check_blocks, load_adapters, quantization
from toolkit.models.parameters import is_of_head
from toolkit.models.tiny import encoder

NAMED = 5


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
        only: nothing is trained; None says that `trained` says so.

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
    check_input(config, module, architecture)
    new = check_weights(config, module, info, architecture, trained)
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
    """Add what the configuration asks for beside the weights; parameters with `new` weights are trained beside adapters."""
    if config.checkpoint_activations:
        if not getattr(module, "supports_gradient_checkpointing", False):
            raise UserError(
                f"model.checkpoint_activations is true, but a {type(module).__name__} can't do that; leave it out"
            )
        # The older, reentrant kind needs inputs with a gradient, which adapters on frozen weights do not have.
        if hasattr(module, "activation_checkpointing_enable"):
            module.activation_checkpointing_enable({"use_reentrant": False})
        else:  # its name before Transformers 5.2x
            module.gradient_checkpointing_enable({"use_reentrant": False})
    return add_adapters(module, config, new) if config.lora.rank is not None else module


def saved_labels(config: ModelConfig, architecture: Architecture = SEQUENCE_CLASSIFIER) -> list[str] | None:
    """Return the label names of the model's head in the order of their ids, or None if it has no head that was named.

    A number stands for the label of a regression: the list is empty then.

    Raises:
        UserError: the model is not to be had, or is of a kind that lacks the architecture.
    """
    if config.name is None:
        return None
    settings = model_settings(config)
    # Here, before data and tokenizer are read: what they lack is then no riddle.
    check_architecture(config, settings, architecture)
    ending = architecture.auto.removeprefix("AutoModel")
    if not any(name.endswith(ending) for name in settings.architectures or []):
        return None
    if settings.problem_type == "regression":
        return []
    names = [name for _, name in sorted((settings.id2label or {}).items())]
    return None if names == [f"LABEL_{number}" for number in range(len(names))] else names


def labels_of_head(labels: Sequence[str]) -> dict[str, Any]:
    """Return what a model's configuration says of the labels of its head."""
    return {
        "num_labels": len(labels),
        "id2label": dict(enumerate(labels)),
        "label2id": {name: number for number, name in enumerate(labels)},
    }


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
    if folder.is_file() or (
        not folder.exists() and (config.name.startswith((".", "/", "~")) or config.name.count("/") > 1)
    ):
        raise UserError(
            f"model.name is {config.name!r}, which is no folder; give a model folder or a hub id (owner/name)"
        )
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


def sequence_classifier(
    config: ModelConfig,
    labels: Sequence[str],
    kind: str,
    vocabulary: int,
    trained_head: bool = False,
    padding: int | None = None,
) -> torch.nn.Module:
    """Return an encoder with a classification head.

    Args:
        config: which one.
        labels: the label names in the order of their ids; empty for regression.
        kind: single, multi or regression.
        vocabulary: the number of tokens that the tokenizer knows.
        trained_head: the head has to come with the weights, as it does when nothing is trained.
        padding: the tokenizer's padding token, for a model that names none and reads a text by its last token.

    Raises:
        UserError: the folder or id holds no such model, no weights in a safe format, or weights of another one.
    """
    problem = {
        "single": "single_label_classification",
        "multi": "multi_label_classification",
        "regression": "regression",
    }[kind]
    own = model_settings(config) if config.name is not None else None
    known = own.problem_type if trained_head and own is not None else None
    if known not in (None, problem):
        raise UserError(
            f"{config.name} was trained for {known.replace('_', ' ')}, and the labels here are for {problem.replace('_', ' ')}; "
            "say with --data.kind what the labels are (single, multi, regression), or name another model"
        )
    settings = {**labels_of_head(list(labels) or ["value"]), "problem_type": problem}
    if own is not None and padding is not None and own.get_text_config().pad_token_id is None:
        settings["pad_token_id"] = padding
    return load_model(
        config, SEQUENCE_CLASSIFIER, encoder, vocabulary=vocabulary, settings=settings, trained=trained_head
    )


def check_architecture(config: ModelConfig, settings: Any, architecture: Architecture) -> None:
    """Refuse a model that Transformers has no such class for."""
    if type(settings) not in architecture.loader._model_mapping:
        raise UserError(
            f"model.name is {config.name!r}, a model of type {settings.model_type}, which can't {architecture.purpose}; "
            f"give a model that Transformers has {architecture.head} for"
        )


def check_weights(
    config: ModelConfig, module: torch.nn.Module, info: dict[str, Any], architecture: Architecture, trained: bool
) -> list[str]:
    """Return the names of the head's parameters that are new, since they did not come with the weights.

    Refuses weights that leave the model itself, or a head that has to be trained already, with new numbers.

    A pooler counts as part of the head: models that were trained on masked words alone come without one.
    """
    strange = sorted(
        {str(key[0] if isinstance(key, tuple) else key) for key in (*info["missing_keys"], *info["mismatched_keys"])}
    )
    in_base = [key for key in strange if not is_of_head(module, key) and "pooler." not in key]
    if in_base:
        named = ", ".join(in_base[:NAMED]) + (f" and {len(in_base) - NAMED} more" if len(in_base) > NAMED else "")
        raise UserError(
            f"the weights in {config.name} do not fit its config.json (architecture {type(module).__name__}): "
            f"{named} missing or of another size; the folder mixes two models or is incomplete: save or download it again"
        )
    if trained and strange:
        raise UserError(
            f"{config.name} has no trained head to {architecture.purpose} with ({', '.join(strange[:NAMED])}), so there is "
            "nothing to evaluate; name a model that was saved after training, such as the model folder of a run"
        )
    return strange


def check_head(config: ModelConfig, adapters: Path | None, new: Sequence[str], relabelled: bool) -> None:
    """Refuse adapters that would be saved alone and leave a head behind that is nowhere else.

    A folder of adapters names its base, from which a head of another size or the names of other labels can't be known.
    """
    if config.lora.merge or not (new or relabelled):
        return
    what = f"a new head ({', '.join(new[:NAMED])})" if new else "a head whose labels have other names here"
    if adapters is not None:
        raise UserError(
            f"the adapters in {adapters} are for {config.name}, which gets {what}: what it was trained with is not in that "
            "folder; save the whole model (--model.lora.merge true where it is trained) and name its folder"
        )
    bits = "" if config.lora.bits is None else " and leave model.lora.bits out"
    trained = ": the head is then trained beside the adapters" if new else ""
    raise UserError(
        f"{config.name} gets {what}, which adapters saved alone would lack; save the whole model with --model.lora.merge true"
        f"{bits}{trained}"
    )


def check_input(config: ModelConfig, module: Any, architecture: Architecture) -> None:
    """Refuse a model that has the right class and takes something else than this task's texts or images."""
    wanted = "pixel_values" if architecture is IMAGE_CLASSIFIER else "input_ids"
    takes = str(getattr(module, "main_input_name", wanted))
    if takes != wanted:
        raise UserError(
            f"model.name is {config.name!r}, whose {type(module).__name__} takes {takes}, and not the {wanted} of a "
            f"task that is to {architecture.purpose}; give another model"
        )
