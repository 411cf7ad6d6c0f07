"""Models of Hugging Face Transformers: the embedded one, a local folder, or a hub id."""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from toolkit.adapters import add_adapters, base_of, check_blocks, load_adapters, quantization
from toolkit.embedded_models import encoder
from toolkit.errors import UserError
from toolkit.model_config import ModelConfig
from toolkit.model_errors import cannot_load, first_line, no_attention
from toolkit.weights import is_of_head

NAMED = 5
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
"""Where configurations say how many experts a layer has."""
ROUTING = ("router_aux_loss_coef", "aux_loss_alpha", "router_z_loss_coef")
"""Where they say how much an auxiliary loss of the experts weighs."""
WITHOUT_EFFECT = frozenset(
    {"temperature", "top_p", "min_p", "top_h", "typical_p", "top_k", "epsilon_cutoff", "eta_cutoff"}
    | {"early_stopping", "length_penalty", "cache_implementation", "cache_config", "pad_token_id"}
    | {"output_attentions", "output_hidden_states", "output_scores", "output_logits"}
)
"""Settings for generation that others can leave without any effect."""


@dataclass(frozen=True)
class Architecture:
    """What a recipe wants of a model: which of the classes of Transformers, and how to say so."""

    auto: str
    """The name of the class in Transformers that loads it."""
    purpose: str
    """What such a model can do, such as "classify texts"."""
    head: str
    """What it has for that, such as "a sequence classification head"."""

    @property
    def loader(self) -> Any:
        """The class itself; to import it takes seconds."""
        import transformers

        return getattr(transformers, self.auto)


SEQUENCE_CLASSIFIER = Architecture(
    "AutoModelForSequenceClassification", "classify texts", "a sequence classification head"
)
TOKEN_CLASSIFIER = Architecture("AutoModelForTokenClassification", "tag tokens", "a token classification head")
QUESTION_ANSWERER = Architecture("AutoModelForQuestionAnswering", "mark answers in a text", "a question answering head")
SEQ2SEQ_MODEL = Architecture("AutoModelForSeq2SeqLM", "turn one text into another", "an encoder and a decoder")
CAUSAL_MODEL = Architecture("AutoModelForCausalLM", "continue texts", "a causal language modelling head")
MASKED_MODEL = Architecture("AutoModelForMaskedLM", "fill in masked words", "a masked language modelling head")
TEXT_ENCODER = Architecture("AutoModel", "represent texts", "an encoder")
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
            and `settings`: one of `toolkit.embedded_models`.
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
        raise UserError(cannot_load("weights", config, error)) from None
    check_input(config, module, architecture)
    new = check_weights(config, module, info, architecture, trained)
    check_blocks(module, config)
    remark(module, remarks | about_padding(module, architecture))
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


def remark(module: torch.nn.Module, lines: Mapping[str, str]) -> None:
    """Have a model say lines in the plan, by their names."""
    known: Mapping[str, str] = getattr(module, "plan_remarks", {})
    module.plan_remarks = {**known, **lines}  # type: ignore[assignment]


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
            f"model.name is {config.name!r}, a {settings.model_type} model, which can't {architecture.purpose}; "
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


def set_dropout(settings: Any, probability: float | None) -> None:
    """Set every dropout probability of a Transformers configuration.

    Raises:
        UserError: the configuration has none to set.
    """
    from huggingface_hub.errors import StrictDataclassError

    if probability is None:
        return
    # `classifier_dropout` and the like are null where they follow another one; a switch such as `token_dropout` is none.
    found = {
        key: value
        for key, value in settings.to_dict().items()
        if "drop" in key and "layer" not in key and (value is None or type(value) in (float, int))
    }
    if not found:
        raise UserError(
            f"model.dropout is {probability}, but a {settings.model_type} model has no dropout; leave it out"
        )
    for key, value in found.items():
        try:
            # Some configurations insist on a whole number where the model has none.
            setattr(settings, key, 0 if type(value) is int and probability == 0 else probability)
        except StrictDataclassError:
            raise UserError(
                f"model.dropout is {probability}, but a {settings.model_type} model takes only whole numbers for its {key}; "
                "leave it out"
            ) from None


def without_layer_drop(settings: Any) -> dict[str, str]:
    """Switch off in a Transformers configuration that whole layers are left out at random; return a line for the plan.

    Each process would leave out others, and wait for the gradients of those that it used itself.
    """
    found = {k: v for k, v in settings.to_dict().items() if k.endswith("layerdrop") and v}
    for key in found:
        setattr(settings, key, 0.0)
    if not found:
        return {}
    were = ", ".join(f"{key} {value:g}" for key, value in found.items())
    return {"layer drop": f"switched off (the model's own: {were}): the processes would not leave out the same layers"}


def about_experts(settings: Any) -> dict[str, str]:
    """Return a line for the plan on a mixture of experts, whose auxiliary loss is not computed."""
    own = settings.get_text_config()
    experts = next((n for k in EXPERTS if isinstance(n := getattr(own, k, None), int) and n > 1), None)
    weight = next((w for k in ROUTING if (w := getattr(own, k, None))), None)
    if experts is None or weight is None:
        return {}
    return {
        "experts": f"{experts} in a layer; their auxiliary loss, which would balance them, is not added: it is a mean over "
        "whatever batch it sees, and so would depend on the cut"
    }


def about_padding(module: Any, architecture: Architecture) -> dict[str, str]:
    """Return a line for the plan on a model that sees the padding of a text."""
    sees = architecture not in (CAUSAL_MODEL, IMAGE_CLASSIFIER)
    if not sees or "attention_mask" in inspect.signature(module.forward).parameters:
        return {}
    return {
        "padding": f"a {type(module).__name__} takes no attention mask: what it makes of a text depends on the padding beside it, "
        "so numbers differ between topologies"
    }


def check_input(config: ModelConfig, module: Any, architecture: Architecture) -> None:
    """Refuse a model that has the right class and takes something else than this task's texts or images."""
    wanted = "pixel_values" if architecture is IMAGE_CLASSIFIER else "input_ids"
    takes = str(getattr(module, "main_input_name", wanted))
    if takes != wanted:
        raise UserError(
            f"model.name is {config.name!r}, whose {type(module).__name__} takes {takes}, and not the {wanted} that a task which is "
            f"to {architecture.purpose} has; give another model"
        )


def settle_generation(module: Any, config: ModelConfig) -> None:
    """Leave out of a model's generation settings what Transformers would refuse to save, and say so in the plan.

    Published settings often name a temperature without `do_sample`, so that it counts for nothing. Transformers lets them pass
    as long as nothing is changed in them.

    Raises:
        UserError: something else is wrong with them.
    """
    settings = module.generation_config
    left_out: dict[str, Any] = {}
    while True:
        try:
            settings.validate(strict=True)
            break
        except ValueError as error:
            unused = {name: getattr(settings, name) for name in re.findall(r"^- `(\w+)`:", str(error), re.MULTILINE)}
            if not unused or not unused.keys() <= WITHOUT_EFFECT:
                raise UserError(
                    f"the generation settings of {config.name} can't be saved again ({first_line(error)}); correct its "
                    "generation_config.json"
                ) from None
            for name in unused:
                setattr(settings, name, None)
            left_out |= unused
    if left_out:
        said = ", ".join(f"{name} {value}" for name, value in left_out.items())
        remark(module, {"generation": f"the model's own {said} are left out: as it generates they count for nothing"})
