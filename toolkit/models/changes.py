"""What is changed in a model of Transformers before it is trained, and remarks on it for the plan."""

import inspect
import re
from collections.abc import Mapping
from typing import Any

import torch

from toolkit.config.model import ModelConfig
from toolkit.errors import UserError
from toolkit.models.errors import first_line

EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
"""Where configurations say how many experts a layer has."""
ROUTING = ("router_aux_loss_coef", "aux_loss_alpha", "router_z_loss_coef")
"""Where they say how much an auxiliary loss of the experts weighs."""
POOLS_PADDING = frozenset({"canine", "funnel"})
"""Kinds of encoders that shorten a text, padding included."""
WITHOUT_EFFECT = frozenset(
    {"temperature", "top_p", "min_p", "top_h", "typical_p", "top_k", "epsilon_cutoff", "eta_cutoff"}
    | {"early_stopping", "length_penalty", "cache_implementation", "cache_config", "pad_token_id"}
    | {"output_attentions", "output_hidden_states", "output_scores", "output_logits"}
)
"""Settings for generation that others can leave without any effect."""
APPLIED: dict[str, Any] = {
    "repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "encoder_repetition_penalty": 1.0,
    "encoder_no_repeat_ngram_size": 0,
    "min_length": 0,
    "min_new_tokens": 0,
    "bad_words_ids": None,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
    "sequence_bias": None,
    "exponential_decay_length_penalty": None,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "guidance_scale": 1.0,
    "stop_strings": None,
}
"""Settings that change which text is generated, without sampling too, and the value with which they do not."""


def remark(module: torch.nn.Module, lines: Mapping[str, str]) -> None:
    """Add lines, by their names, to what the plan shows of a model."""
    known: Mapping[str, str] = getattr(module, "plan_remarks", {})
    module.plan_remarks = {**known, **lines}  # type: ignore[assignment]


def set_dropout(settings: Any, probability: float | None) -> None:
    """Set every dropout probability of a Transformers configuration; None leaves them as they are.

    Raises:
        UserError: the configuration has none to set.
    """
    from huggingface_hub.errors import StrictDataclassError

    if probability is None:
        return
    # Some are null where they follow another one (`classifier_dropout`), and some are switches (`token_dropout`).
    found = {
        key: value
        for key, value in settings.to_dict().items()
        if "drop" in key and "layer" not in key and (value is None or type(value) in (float, int))
    }
    if not found:
        raise UserError(
            f"model.dropout is {probability}, but a model of type {settings.model_type} has no dropout; leave it out"
        )
    for key, value in found.items():
        try:
            # Some configurations insist on a whole number where the model has none.
            setattr(settings, key, 0 if type(value) is int and probability == 0 else probability)
        except StrictDataclassError:
            raise UserError(
                f"model.dropout is {probability}, but a model of type {settings.model_type} takes only whole numbers "
                f"for its {key}; leave it out"
            ) from None


def set_dropout_layers(module: torch.nn.Module, probability: float | None) -> None:
    """Set the probability of all dropout layers: some models do not ask their configuration. None leaves them."""
    if probability is not None:
        for layer in module.modules():
            if isinstance(layer, torch.nn.modules.dropout._DropoutNd):
                layer.p = probability


def without_layer_drop(settings: Any) -> dict[str, str]:
    """Switch off in a Transformers configuration that whole layers are left out at random; return a line for the plan.

    Each process would leave out others, and wait for the gradients of those that it used itself.
    """
    found = {key: value for key, value in settings.to_dict().items() if key.endswith("layerdrop") and value}
    for key in found:
        setattr(settings, key, 0.0)
    if not found:
        return {}
    were = ", ".join(f"{key} {value:g}" for key, value in found.items())
    return {"layer drop": f"switched off ({were} in the model): the processes would not leave out the same layers"}


def about_experts(settings: Any) -> dict[str, str]:
    """Return lines for the plan on a mixture of experts: what in it depends on how a batch is split."""
    own = settings.get_text_config()
    if not any(isinstance(count := getattr(own, key, None), int) and count > 1 for key in EXPERTS):
        return {}
    remarks = {}
    if any(getattr(own, key, None) for key in ROUTING):
        remarks["experts"] = "the loss that would balance them is left out: a mean over a batch depends on the cut"
    if capacity := getattr(own, "expert_capacity", None):
        remarks["capacity"] = (
            f"an expert takes {capacity} tokens at a time and leaves the others, so numbers differ between topologies"
        )
    return remarks


def about_padding(module: Any) -> dict[str, str]:
    """Return a line for the plan on an encoder that sees the padding of a text."""
    masked = "attention_mask" in inspect.signature(module.forward).parameters
    if masked and module.config.model_type not in POOLS_PADDING:
        return {}
    how = "pools tokens together with the padding" if masked else "takes no attention mask"
    return {
        "padding": f"a {type(module).__name__} {how}: what it makes of a text depends on those beside it, so numbers "
        "differ between topologies"
    }


def settle_generation(module: Any, config: ModelConfig) -> None:
    """Remove from a model's generation settings what Transformers would not save, with a remark for the plan.

    Published settings often name a temperature without `do_sample`, so that it counts for nothing. Transformers lets
    them pass as long as nothing in them is changed.

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
            # What is named again although it was left out would be named for ever.
            if not unused or not unused.keys() <= WITHOUT_EFFECT - left_out.keys():
                raise UserError(
                    f"the generation settings of {config.name} can't be saved again ({first_line(error)}); correct its "
                    "generation_config.json"
                ) from None
            for name in unused:
                setattr(settings, name, None)
            left_out |= unused
    own = {name: getattr(settings, name, None) for name in APPLIED}
    applied = {name: value for name, value in own.items() if value is not None and value != APPLIED[name]}
    parts = []
    if applied:
        parts.append(f"with the model's own {listed(applied)}")
    if left_out:
        parts.append(f"its {listed(left_out)} count for nothing without sampling or beams, and are left out")
    if parts:
        remark(module, {"generation": "; ".join(parts)})


def listed(settings: Mapping[str, Any]) -> str:
    """Return settings in words."""
    return ", ".join(f"{name} {value}" for name, value in settings.items())
