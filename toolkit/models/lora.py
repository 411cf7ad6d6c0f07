"""Low-rank adapters (LoRA, arXiv 2106.09685) by `peft`, on frozen weights that may be quantised (arXiv 2305.14314)."""

import json
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from toolkit.config.model import ADAPTERS, LoraConfig, ModelConfig
from toolkit.errors import UserError, require
from toolkit.losses import full_precision

EXTRA, QUANTISED = "lora", "qlora"
MERGED = "adapter"
"""The folder of the adapters in the folder of a merged model."""
BLOCK = 64
"""Weights in 4 bits share a scale in blocks of so many."""


def add_adapters(module: Any, config: ModelConfig, new: Sequence[str] = ()) -> torch.nn.Module:
    """Return the model with adapters, everything else frozen but what has new weights.

    Args:
        module: the model.
        config: its settings.
        new: names of parameters that did not come with the weights, such as those of a new head; their layers are
            trained as a whole.

    Raises:
        UserError: peft is not installed, or no layer has the names that were given.
    """
    peft = require("peft", EXTRA, "model.lora")
    lora = config.lora
    assert lora.rank is not None
    linear = linear_layers(module)
    if lora.targets is not None:
        unknown = [name for name in lora.targets if name not in linear]
        if unknown:
            raise UserError(
                f"model.lora.targets names {', '.join(map(repr, unknown))}, which no linear layer of this "
                f"{type(module).__name__} is called; there are {', '.join(linear)}: name some of them, or leave it out "
                "for all"
            )
        named = {name.rpartition(".")[2]: layer for name, layer in module.named_modules()}
        if lora.merge and (tied := [name for name in lora.targets if is_tied(module, named[name])]):
            raise UserError(
                f"model.lora.targets names {', '.join(map(repr, tied))}, whose weights are those of the embeddings "
                "too, so that to merge its adapter would change both; leave it out of the targets, or leave out "
                "model.lora.merge"
            )
    elif not linear:
        raise UserError(
            f"model.lora.rank is {lora.rank}, but this {type(module).__name__} has no linear layers to adapt; leave "
            "model.lora out"
        )
    whole = list(dict.fromkeys(name.rpartition(".")[0] for name in new)) or None
    if tied := [name for name in whole or () if is_tied(module, module.get_submodule(name))]:
        raise UserError(
            f"{config.name} comes without {', '.join(tied)}, which shares weights with the embeddings, so that it "
            "can't be trained beside adapters; leave model.lora out, or name a model that comes with it"
        )
    # Where the base is found again: a relative path would hold in one folder only. peft takes it from the model.
    module.name_or_path = (
        str(Path(config.name).resolve()) if config.name and Path(config.name).is_dir() else config.name
    )
    settings = peft.LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha if lora.alpha is not None else 2 * lora.rank,
        lora_dropout=lora.dropout,
        target_modules=list(lora.targets) if lora.targets is not None else "all-linear",
        exclude_modules=whole,
        modules_to_save=whole,
        bias="none",
        task_type=task_type(module),
        base_model_name_or_path=module.name_or_path,
        revision=config.revision,
    )
    with without_peft_warnings():
        adapted: torch.nn.Module = peft.get_peft_model(module, settings)
    train_in_full_precision(adapted)
    return adapted


def train_in_full_precision(adapted: torch.nn.Module) -> bool:
    """Keep whole layers that are trained next to adapters in float32 or better; return whether any was not.

    In 16 bits a small update of a weight is rounded away. peft itself does the same for the adapters.
    """
    changed = False
    for layer in adapted.modules():
        own = [p for p in layer.parameters(recurse=False) if p.requires_grad and p.dtype.itemsize < 4]
        if own:
            changed = True
            layer.to(torch.float32)
            # What comes before it gives 16 bits, unless autocast does the same again.
            layer.register_forward_pre_hook(inputs_in_full_precision)
    return changed


def inputs_in_full_precision(layer: torch.nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return what a layer gets in float32 where it is less."""
    return tuple(full_precision(x) if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in inputs)


@contextmanager
def without_peft_warnings() -> Iterator[None]:
    """Silence warnings of peft 0.21 while it puts adapters in: they are neither news nor the user's doing."""
    with warnings.catch_warnings():
        # The older name of a property of Transformers, which peft asks for.
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
        # How a layer keeps its weights, which peft finds out by itself.
        warnings.filterwarnings("ignore", "fan_in_fan_out is set to")
        yield


def task_type(module: Any) -> str | None:
    """Return the name of a model's task in `peft`, which chooses the class of the wrapper; None for other tasks."""
    if type(module).__name__.endswith(("ForCausalLM", "LMHeadModel")):
        return "CAUSAL_LM"
    return None


def linear_layers(module: torch.nn.Module) -> list[str]:
    """Return the last part of the names of all linear layers, each once, in their order."""
    from transformers.pytorch_utils import Conv1D  # how a GPT-2 writes a linear layer

    kinds = (torch.nn.Linear, Conv1D)
    found = [name.rpartition(".")[2] for name, layer in module.named_modules() if isinstance(layer, kinds)]
    return list(dict.fromkeys(found))


def is_tied(module: torch.nn.Module, layer: torch.nn.Module) -> bool:
    """Return whether a layer of a module shares weights with an embedding elsewhere in it."""
    embeddings = [other.weight for other in module.modules() if isinstance(other, torch.nn.Embedding)]
    return any(own is weight for own in layer.parameters() for weight in embeddings)


def quantization(lora: LoraConfig, dtype: torch.dtype) -> Any:
    """Return how Transformers is to quantise the frozen weights, or None if it is not.

    Raises:
        UserError: bitsandbytes is not installed.
    """
    if lora.bits is None:
        return None
    require("bitsandbytes", QUANTISED, f"model.lora.bits {lora.bits}")
    from transformers import BitsAndBytesConfig

    if lora.bits == 8:
        return BitsAndBytesConfig(load_in_8bit=True)
    return BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=dtype
    )


def check_blocks(module: torch.nn.Module, config: ModelConfig) -> None:
    """Refuse weights in 4 bits on a CPU whose rows are no whole blocks: bitsandbytes could train, but not evaluate."""
    if config.lora.bits != 4:
        return
    widths = {
        layer.in_features: name
        for name, layer in module.named_modules()
        if type(layer).__name__ == "Linear4bit"
        and isinstance(layer, torch.nn.Linear)
        and layer.weight.device.type == "cpu"
        and layer.in_features % BLOCK
    }
    if widths:
        named = ", ".join(f"{name} has {width}" for width, name in widths.items())
        raise UserError(
            f"model.lora.bits is 4, and on a CPU that takes layers whose inputs are a multiple of {BLOCK} ({named}); "
            "give model.lora.bits 8, leave it out, or run on a GPU"
        )


def base_of(config: ModelConfig, only: bool) -> tuple[ModelConfig, Path | None]:
    """Return the model whose weights are loaded, and the folder with trained adapters for it, if model.name is one.

    Args:
        config: names a model, or a folder with adapters, whose base is then the one that it was trained on.
        only: nothing is trained.

    Raises:
        UserError: the folder does not say what its base is, or its adapters are not those that the settings ask for.
    """
    folder = Path(config.name) if config.name is not None else None
    if folder is None or not (folder / ADAPTERS).is_file():
        if not only or config.lora.rank is None:
            return config, None
        if folder is not None and (folder / MERGED / ADAPTERS).is_file():
            return replace(config, lora=LoraConfig()), None  # they are merged into this model already
        raise UserError(
            f"model.name is {config.name!r}, a model without trained adapters, and new ones change nothing, so there "
            "is nothing to evaluate; name the folder with the adapters, such as <output>/model, or leave model.lora out"
        )
    try:
        settings = json.loads((folder / ADAPTERS).read_text(encoding="utf-8"))
        base, rank = str(settings["base_model_name_or_path"] or ""), int(settings["r"])
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(f"{folder / ADAPTERS} is not what peft writes for LoRA; save the adapters again") from None
    if not base or (Path(base).is_absolute() and not Path(base).is_dir()):
        raise UserError(
            f"the adapters in {folder} are for the model {base or 'of no name'!r}, which is not there; bring it back, "
            f"or set base_model_name_or_path in {folder / ADAPTERS} to where it is"
        )
    asked = config.lora
    if asked.rank not in (None, rank) or (
        asked.targets is not None and set(asked.targets) != set(settings.get("target_modules") or ())
    ):
        raise UserError(
            f"the adapters in {folder} have rank {rank} on {', '.join(sorted(settings.get('target_modules') or ()))}, "
            "and model.lora asks for others; leave model.lora.rank and model.lora.targets out to train these further"
        )
    return replace(config, name=base, revision=settings.get("revision"), lora=LoraConfig(bits=asked.bits)), folder


def load_adapters(module: Any, folder: Path) -> torch.nn.Module:
    """Return the model with the adapters that a folder holds, to be trained further; everything else is frozen.

    Raises:
        UserError: peft is not installed, or the adapters don't fit the model.
    """
    peft = require("peft", EXTRA, f"the adapters in {folder}")
    try:
        with without_peft_warnings():
            adapted: torch.nn.Module = peft.PeftModel.from_pretrained(module, folder, is_trainable=True)
            if train_in_full_precision(adapted):
                # They were read into 16 bits.
                peft.set_peft_model_state_dict(adapted, peft.load_peft_weights(str(folder), device="cpu"))
    except (OSError, ValueError, RuntimeError) as error:
        raise UserError(
            f"the adapters in {folder} don't fit their model, a {type(module).__name__} ({str(error).splitlines()[0]})"
        ) from None
    return adapted


def has_adapters(module: Any) -> bool:
    """Return whether a model was adapted by `add_adapters` or `load_adapters`."""
    return hasattr(module, "peft_config") and hasattr(module, "merge_and_unload")


def save_adapters(module: Any, folder: Path, merge: bool) -> None:
    """Save an adapted model: its adapters alone, or the whole model with the adapters merged in, and them in a folder.

    Merging changes the model in place, to spare a copy of it: it is for the end of a run.
    """
    # peft would ask the hub whether the vocabulary has changed; the embeddings are frozen.
    place = folder / MERGED if merge else folder
    module.save_pretrained(place, save_embedding_layers=False)
    (place / "README.md").unlink(missing_ok=True)  # a form to be filled in; ours replaces it
    if merge:
        module.merge_and_unload().save_pretrained(folder)
