"""FSDP2: which parts of a model are sharded one by one, and what is checked before.

Accelerate 1.15 shards a model by itself when it prepares it, but fails for encoders whose embeddings count as a layer
(ModernBERT) and for models that tie three weights (T5). It takes a model that is sharded already as it is.
"""

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import torch
from accelerate.utils import FullyShardedDataParallelPlugin
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from toolkit.batch_layout import CHECKPOINTING
from toolkit.errors import UserError

NAMED = 12
LAYERS, SIZE = "TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP"


def shard(model: torch.nn.Module, mesh: DeviceMesh, plugin: FullyShardedDataParallelPlugin) -> None:
    """Shard a model over a mesh, in place, unit by unit; weights in no unit are gathered for the whole step.

    Args:
        model: whole in every process; tensor parallelism has split its layers already.
        mesh: weights are sharded over its last dimension, and replicated over the first of two (hybrid sharding).
        plugin: the settings of the launch file.
    """
    options: dict[str, Any] = {
        "mesh": mesh,
        "offload_policy": plugin.cpu_offload,
        "mp_policy": plugin.mixed_precision_policy or MixedPrecisionPolicy(),
    }
    for unit in chosen_units(model):
        fully_shard(unit, reshard_after_forward=plugin.reshard_after_forward, **options)
    fully_shard(model, **options)


def chosen_units(model: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """Yield the parts of a model that are to be gathered one after another, the inner ones first.

    The launch file says how they are chosen: the layers that the model itself names, the classes that the file names,
    or all parts above a size. With layers the embedding is a unit too. A part that shares a weight is none.
    """
    policy = os.environ.get("FSDP_AUTO_WRAP_POLICY", "").upper()
    if policy not in (LAYERS, SIZE):
        return
    # Of each part: a task may hold a model of Transformers, or two, in a module of its own.
    own_choice = {name for part in model.modules() for name in getattr(part, "_no_split_modules", None) or ()}
    classes = named_classes() or own_choice
    smallest = int(os.environ.get("FSDP_MIN_NUM_PARAMS", "0"))
    embeddings = set(embeddings_of(model)) if policy == LAYERS else set()
    taken: set[torch.nn.Parameter] = set()
    for module in inner_first(model):
        own = set(module.parameters()) - taken
        fits = type(module).__name__ in classes or module in embeddings
        if policy == SIZE:
            fits = sum(parameter.numel() for parameter in own) >= max(1, smallest)
        # The inner part of a part that is taken whole would be gathered twice.
        if fits and own and own == set(module.parameters()) and not shares_weights(model, module):
            taken |= own
            yield module


def embeddings_of(model: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """Yield what the parts of a model call their embedding."""
    for part in model.modules():
        # Models of images have the method too, and raise.
        with suppress(NotImplementedError):
            embedding = getattr(part, "get_input_embeddings", lambda: None)()
            if isinstance(embedding, torch.nn.Module):
                yield embedding


def inner_first(model: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """Yield all modules below a model, each after those in it."""
    for child in model.children():
        yield from inner_first(child)
        yield child


def shares_weights(model: torch.nn.Module, part: torch.nn.Module) -> bool:
    """Return whether a weight of a part of a model stands elsewhere in the model too."""
    own = {id(parameter) for parameter in part.parameters()}
    inside = {id(module) for module in part.modules()}
    return any(
        id(parameter) in own
        for module in model.modules()
        if id(module) not in inside
        for parameter in module._parameters.values()
        if parameter is not None
    )


def named_classes() -> set[str]:
    """Return the classes that the launch file names as layers, if any."""
    names = os.environ.get("FSDP_TRANSFORMER_CLS_TO_WRAP", "").split(",")
    return {name.strip() for name in names if name.strip()}


def check_units(model: torch.nn.Module) -> None:
    """Compare the classes that the launch file wants to shard one by one with those in the model.

    Raises:
        UserError: the model has no layer of a class that was named, or its weights can't be sharded.
    """
    quantised = [name for name, p in model.named_parameters() if not (p.is_floating_point() or p.is_complex())]
    if quantised:
        raise UserError(
            f"the launch configuration asks for FSDP2, which does not shard quantised weights ({quantised[0]}, ...); "
            "leave model.lora.bits out, or use ddp_one_node.yaml of accelerate_configs/"
        )
    check_weights(model)
    policy = os.environ.get("FSDP_AUTO_WRAP_POLICY", "").upper()
    classes = Counter(type(module).__name__ for module in model.modules() if any(True for _ in module.parameters()))
    unknown = sorted(named_classes() - set(classes))
    if policy == LAYERS and unknown:
        # A layer that comes several times is what one wants to shard by.
        likely = sorted(name for name, count in classes.items() if count > 1)
        once = sorted(name for name, count in classes.items() if count == 1)
        raise UserError(
            f"fsdp_transformer_layer_cls_to_wrap names {', '.join(unknown)}, which the {type(model).__name__} has no "
            f"layer of; it has {', '.join([*likely, *once][:NAMED])}. Name one of these, or leave the setting out to "
            "take the model's own choice"
        )


def check_weights(model: torch.nn.Module) -> None:
    """Refuse weights at which FSDP2 would fail later, with a message that does not help.

    Raises:
        UserError: one is a lone number, or those that are gathered together are of several types.
    """
    lone = [name for name, parameter in model.named_parameters() if parameter.ndim == 0]
    if lone:
        raise UserError(
            "the launch configuration asks for FSDP2, which does not shard a parameter that is a lone number "
            f"({', '.join(lone[:NAMED])}); give it the shape [1] in the model, or use ddp_one_node.yaml of "
            "accelerate_configs/"
        )
    taken: set[torch.nn.Parameter] = set()
    for part in (*chosen_units(model), model):
        together = set(part.parameters()) - taken
        taken |= together
        dtypes = sorted(str(p.dtype).removeprefix("torch.") for p in together if p.requires_grad)
        if len(set(dtypes)) > 1:
            kinds = ", ".join(f"{count} {dtype}" for dtype, count in Counter(dtypes).items())
            raise UserError(
                "the launch configuration asks for FSDP2, which gathers weights of one type together, and those of a "
                f"{type(part).__name__} are of several ({kinds}); give all weights one type, or use ddp_one_node.yaml "
                "of accelerate_configs/"
            )


def units(model: torch.nn.Module) -> int:
    """Return how many parts of a model are gathered one after another."""
    return sum(isinstance(module, FSDPModule) for module in model.modules())


def checkpoint_activations(model: torch.nn.Module) -> None:
    """Have the model compute its activations again in the backward pass, with the same dropout.

    Raises:
        UserError: the model can't do that.
    """
    if not getattr(model, "supports_gradient_checkpointing", False):
        raise UserError(
            f"the launch configuration asks for fsdp_activation_checkpointing, but a {type(model).__name__} can't do "
            "that; leave it out"
        )
    # Its name before Transformers 5.2x was another one.
    begin: Any = getattr(model, "activation_checkpointing_enable", None) or getattr(
        model, "gradient_checkpointing_enable", None
    )
    begin(CHECKPOINTING)
