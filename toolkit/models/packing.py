"""No padding: inside a model the rows of a batch lie end to end, and outside they are as they always were.

A batch comes padded, as everybody expects it, which for token ids costs next to nothing. On its way into the model the
padding is taken out, all layers compute the tokens of all rows in one row, where positions begin again with each of
them and attention stays inside it (`toolkit.attention`), and what the layers return is laid back into the padded shape,
with zeros, for whatever head the model has.
"""

from collections.abc import Callable, Mapping
from functools import cache
from inspect import Signature, signature
from typing import Any

import torch

from toolkit.batch_layout import EndToEnd, end_to_end, layout
from toolkit.models.parameters import models_of_transformers

MODELS = frozenset(
    {"bert", "roberta", "xlm-roberta", "camembert", "electra", "albert", "distilbert", "modernbert", "ernie"}
    | {"llama", "mistral", "qwen2", "qwen3", "gemma", "gemma3_text", "gpt2", "opt", "gpt_neox", "phi", "olmo2"}
    | {"granite", "cohere", "stablelm", "starcoder2", "smollm3"}
)
"""The kinds of models that were tried: their numbers are the same with and without padding (tests/models)."""
OF_TOKENS = ("input_ids", "token_type_ids")
"""What a model takes for each token."""
SILENT = ("attention_mask", "position_ids", "use_cache")
"""What it takes besides, and need not know."""


def take_padding_out(model: torch.nn.Module) -> str | None:
    """Have a model compute without padding whenever the layout of a batch is known; return why not, if it can't.

    Nothing is done if any part of it can't.
    """
    found = list(models_of_transformers(model))
    if not found:
        return "it is no model of Transformers"
    for part in found:
        if (reason := why_not(part)) is not None:
            return reason
    for part in found:
        base = part.base_model
        base = getattr(base, "decoder", base)  # OPT's head calls that by itself
        base.register_forward_pre_hook(lay_end_to_end, with_kwargs=True)
        # Where a pooler follows inside, it reads the first token of each row.
        last = base.encoder if isinstance(getattr(base, "encoder", None), torch.nn.Module) else base
        last.register_forward_hook(lay_back)
    return None


def why_not(part: Any) -> str | None:
    """Return why a model of Transformers can't compute without padding, or None if it can."""
    if not hasattr(part, "config"):
        return f"a {type(part).__name__} has no configuration that says what it is"
    settings = part.config.get_text_config()
    if settings.model_type not in MODELS:
        return f"a model of type {settings.model_type} was not tried without it"
    if settings._attn_implementation != "sdpa":
        return f"its attention is {settings._attn_implementation}, and only sdpa is computed for each text by itself"
    return None


def lay_end_to_end(
    base: Any, args: tuple[Any, ...], options: Mapping[str, Any]
) -> tuple[tuple[()], dict[str, Any]] | None:
    """Take the padding out of what a model is given, where it is known: a hook before its forward pass."""
    own = layout()
    if own.trial is not None and own.lengths is not None:
        own.trial.knows_lengths = True
    if own.lengths is None or not own.padded or len(own.lengths) < 2:
        return None
    form = form_of(type(base).forward)
    given = form.bind(base, *args, **options).arguments
    given = {name: value for name, value in {**given, **given.pop("kwargs", {})}.items() if value is not None}
    del given["self"]
    ids = given.get("input_ids")
    others = {name for name, value in given.items() if isinstance(value, torch.Tensor)} - {*OF_TOKENS, *SILENT}
    if ids is None or ids.shape != own.shape or others or "past_key_values" in given or "position_ids" in given:
        return None
    placed = end_to_end(own.lengths, ids.shape[1], ids.device)
    own.end_to_end = placed
    for name in OF_TOKENS:
        if name in given:
            given[name] = given[name].flatten()[placed.place].unsqueeze(0)
    given.pop("attention_mask", None)
    given["position_ids"] = (placed.position + first_position(base)).unsqueeze(0)
    if "use_cache" in form.parameters:
        given["use_cache"] = False
    return (), given


@cache
def form_of(forward: Callable[..., Any]) -> Signature:
    """Return the signature of a forward method; to look at it takes longer than to bind it."""
    return signature(forward)


def first_position(base: Any) -> int:
    """Return the number of the first position: RoBERTa and its kin count from the one after their padding token."""
    embeddings: Any = getattr(base, "embeddings", None)
    return embeddings.padding_idx + 1 if hasattr(embeddings, "create_position_ids_from_input_ids") else 0


def lay_back(module: torch.nn.Module, _: Any, output: Any) -> Any:
    """Lay what the layers returned back into the padded shape: a hook after their forward pass."""
    own = layout()
    placed, own.end_to_end = own.end_to_end, None
    if placed is not None:
        assert own.shape is not None
        output["last_hidden_state"] = padded(output["last_hidden_state"], placed, own.shape)
    return output


def padded(states: torch.Tensor, placed: EndToEnd, shape: torch.Size) -> torch.Tensor:
    """Return states (1, all tokens, features) as (rows, tokens, features), with zeros for the padding."""
    places = states.new_zeros(shape.numel(), states.shape[-1])
    return places.index_copy(0, placed.place, states.squeeze(0)).view(*shape, -1)
