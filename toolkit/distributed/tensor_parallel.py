"""Tensor parallel: each layer is split over the processes that hold one copy of a model, by the model's own plan.

A plan says for each linear layer whether it is split by columns (its outputs) or by rows (its inputs); a pair of both
needs one all-reduce. What no plan names, such as norms, is whole in every process, and computes the same there.
"""

import re
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

from toolkit.errors import UserError

NAMED = 5
OUTPUTS, INPUTS = 0, 1
"""The dimension of a linear layer's weight, or an embedding's rows, that is split."""


def split_layers(model: torch.nn.Module, mesh: DeviceMesh) -> None:
    """Split the layers of a model over the processes of a mesh of one dimension, in place.

    Raises:
        UserError: the model has no plan, or one that can't be carried out with so many processes.
    """
    size = mesh.size()
    plan = getattr(model, "tp_plan", None) or getattr(model, "_tp_plan", None)
    kind = type(model).__name__
    if getattr(model, "peft_config", None) is not None:
        raise UserError(
            "the launch configuration asks for tensor parallel, which splits no model with adapters (model.lora); use "
            "ddp_one_node.yaml or fsdp2_one_node.yaml of accelerate_configs/"
        )
    if not plan:
        raise UserError(
            f"the launch configuration asks for tensor parallel over {size} processes, but a {kind} brings no plan of "
            "how to split its layers; use fsdp2_one_node.yaml (on CPU cpu_fsdp2.yaml) of accelerate_configs/, which "
            "shards any model, or a model with a plan (Llama, Qwen, Mistral, Gemma and most other decoders of "
            "Transformers)"
        )
    check_heads(model, size)
    styles: dict[str, ParallelStyle] = {}
    problems = []
    shared = shared_weights(model)
    for name, module in model.named_modules():
        style_name = planned_style(name, plan)
        if style_name is None or id(getattr(module, "weight", None)) in shared:
            # An embedding that is also the head is left whole: two plans would split its one weight in two ways.
            continue
        style, dimension = style_of(style_name)
        weight = getattr(module, "weight", None)
        if style is None or not isinstance(weight, torch.nn.Parameter):
            problems.append(f"{name} ({style_name})")
        elif weight.shape[dimension] % size == 0:
            styles[name] = style
        elif style_name in ("colwise", "rowwise"):
            raise UserError(
                f"tensor parallel over {size} processes does not divide {name} of the {kind}, whose size is "
                f"{weight.shape[dimension]}; choose another parallelism_config_tp_size"
            )
    if problems:
        raise UserError(
            f"the tensor-parallel plan of the {kind} asks for what this toolkit does not do: "
            f"{', '.join(problems[:NAMED])}"
            + (f" and {len(problems) - NAMED} more" if len(problems) > NAMED else "")
            + "; use fsdp2_one_node.yaml of accelerate_configs/"
        )
    parallelize_module(model, mesh, styles)
    # Accelerate asks the model for it; one of Transformers answers from the other name.
    setattr(model, "_tp_size" if hasattr(type(model), "tp_size") else "tp_size", size)


def check_heads(model: torch.nn.Module, size: int) -> None:
    """Check that the attention heads, which are never split, can be divided among the processes.

    Raises:
        UserError: it can't be divided.
    """
    settings: Any = getattr(model, "config", None)
    settings = settings.get_text_config() if hasattr(settings, "get_text_config") else settings
    for key in ("num_attention_heads", "num_key_value_heads"):
        heads = getattr(settings, key, None)
        if isinstance(heads, int) and heads % size:
            raise UserError(
                f"tensor parallel over {size} processes does not divide the {heads} heads ({key}) of the "
                f"{type(model).__name__}; set parallelism_config_tp_size to a divisor of {heads}"
            )


def shared_weights(model: torch.nn.Module) -> set[int]:
    """Return the identities of the parameters that more than one module holds."""
    seen: set[int] = set()
    shared: set[int] = set()
    for module in model.modules():
        for parameter in module._parameters.values():
            if parameter is not None:
                (shared if id(parameter) in seen else seen).add(id(parameter))
    return shared


def planned_style(name: str, plan: dict[str, str]) -> str | None:
    """Return the style that a plan names for a module; `*` in a plan stands for the number of a layer."""
    return plan.get(name) or plan.get(re.sub(r"\.\d+(?=\.|$)", ".*", name))


def style_of(name: str) -> tuple[ParallelStyle | None, int]:
    """Return torch's style for a name in a plan, and the dimension of the weight that it splits."""
    match name:
        case "colwise":
            return ColwiseParallel(), OUTPUTS
        case "rowwise":
            return RowwiseParallel(), INPUTS
        case "colwise_gather_output" | "colwise_rep":
            return ColwiseParallel(output_layouts=Replicate()), OUTPUTS
        case "rowwise_split_input" | "rowwise_rep":
            return RowwiseParallel(input_layouts=Replicate()), INPUTS
        case "embedding_rowwise":
            return RowwiseParallel(input_layouts=Replicate()), OUTPUTS
        case _:
            return None, OUTPUTS
