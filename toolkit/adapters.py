"""Low-rank adapters (LoRA, arXiv 2106.09685) through `peft`, on frozen weights that may be quantised (arXiv 2305.14314)."""

from typing import Any

import torch

from toolkit.errors import UserError
from toolkit.extras import require
from toolkit.model_config import LoraConfig, ModelConfig

EXTRA = "lora"


def add_adapters(module: Any, config: ModelConfig) -> torch.nn.Module:
    """Return the model with adapters, everything else frozen.

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
                f"{type(module).__name__} is called; there are {', '.join(linear)}: name some of them, or leave it out for all"
            )
    settings = peft.LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha if lora.alpha is not None else 2 * lora.rank,
        lora_dropout=lora.dropout,
        target_modules=list(lora.targets) if lora.targets is not None else "all-linear",
        bias="none",
    )
    adapted: torch.nn.Module = peft.get_peft_model(module, settings, autocast_adapter_dtype=False)
    return adapted


def linear_layers(module: torch.nn.Module) -> list[str]:
    """Return the last part of the names of all linear layers, each once, in their order."""
    found = [name.rpartition(".")[2] for name, layer in module.named_modules() if isinstance(layer, torch.nn.Linear)]
    return list(dict.fromkeys(found))


def quantization(lora: LoraConfig, dtype: torch.dtype) -> Any:
    """Return how Transformers is to quantise the frozen weights, or None if it is not.

    Raises:
        UserError: bitsandbytes is not installed.
    """
    if lora.bits is None:
        return None
    require("bitsandbytes", EXTRA, f"model.lora.bits {lora.bits}")
    from transformers import BitsAndBytesConfig

    if lora.bits == 8:
        return BitsAndBytesConfig(load_in_8bit=True)
    return BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=dtype
    )
