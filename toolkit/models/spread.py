"""The layers of a model spread over the GPUs of one process (`model.device_map`): plain model parallelism.

Consecutive layers lie on one GPU, and what is outside of them, such as embeddings and head, on the first, where batches
go and losses are computed: so what travels is hidden states, and never logits. One GPU computes at a time.

Accelerate's own `dispatch_model` hooks every module with weights and brings logits back from the last GPU. What it says
of a model by `hf_device_map` is said here too, so that `Accelerator.prepare` leaves its parts where they are.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch.utils._pytree import tree_map

from toolkit.errors import UserError
from toolkit.models.changes import remark
from toolkit.models.parameters import layer_stacks
from toolkit.output.meters import with_prefix

KEPT = 4
"""What is kept of a trained weight: itself, its gradient, and the two averages of AdamW."""


class Copies:
    """What the layers of a stack were given from another device: one copy for all layers of a device."""

    def __init__(self) -> None:
        self.known: dict[tuple[int, torch.device], tuple[torch.Tensor, torch.Tensor]] = {}
        """The tensor and its copy, by the identity of the tensor, which nobody else has as long as it stands here."""

    def on(self, value: Any, device: torch.device) -> Any:
        """Return a tensor on a device; anything else as it is."""
        if not isinstance(value, torch.Tensor) or value.device == device:
            return value
        key = id(value), device
        if key not in self.known:
            self.known[key] = value, value.to(device, non_blocking=True)
        return self.known[key][1]


def spread_layers(model: torch.nn.Module, devices: Sequence[torch.device]) -> None:
    """Lay the layers of a model on several devices, in place, so that the one that holds most holds the least.

    Counted is what is kept of each weight under AdamW: 16 bytes of one in float32 that is trained, 4 of one that is
    not.

    Raises:
        UserError: the model has fewer layers than devices, or layers share weights.
    """
    stacks = layer_stacks(model, frozen=True)
    layers = [(f"{name}.{number}", layer) for name, stack in stacks.items() for number, layer in enumerate(stack)]
    if len(layers) < len(devices) - 1:
        raise UserError(
            f"model.device_map spreads layers over {len(devices)} GPUs, and the {type(model).__name__} has "
            + (f"only {len(layers)}" if layers else "no torch.nn.ModuleList of layers")
            + "; show the run fewer GPUs (CUDA_VISIBLE_DEVICES), or leave model.device_map out"
        )
    check_own_weights(model, layers)
    sizes = [kept(layer.parameters()) for _, layer in layers]
    outside = kept(model.parameters()) - sum(sizes)
    places = balanced(sizes, outside, len(devices))
    placed = {name: devices[place] for (name, _), place in zip(layers, places, strict=True)}
    for (_, layer), place in zip(layers, places, strict=True):
        layer.to(devices[place])
    inside = {module for _, layer in layers for module in layer.modules()}
    for module in model.modules():
        if module not in inside:
            # In place, so that weights which stand in two modules stay one.
            module._apply(lambda tensor: tensor.to(devices[0]), recurse=False)  # type: ignore[no-untyped-call]
    lies_on = {layer: devices[place] for (_, layer), place in zip(layers, places, strict=True)}
    for stack in stacks.values():
        copies = Copies()
        for layer in stack:
            device = lies_on[layer]
            layer.register_forward_pre_hook(partial(take, copies, device), with_kwargs=True)
        # A pass that failed half-way may have left some.
        stack[0].register_forward_pre_hook(lambda *_, copies=copies: copies.known.clear(), prepend=True)
        stack[-1].register_forward_hook(partial(give_back, copies, devices[0]))
    # Accelerate moves no model that says this, if it names more than one part.
    model.hf_device_map = {"": devices[0], **placed}  # type: ignore[assignment]
    loads = [sum(size for size, at in zip(sizes, places, strict=True) if at == place) for place in range(len(devices))]
    loads[0] += outside
    remark(model, {"device map": described([name for name, _ in layers], places, devices, loads)})


def take(
    copies: Copies, device: torch.device, layer: torch.nn.Module, args: Any, kwargs: Any
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return what a layer is called with, on its device."""
    moved: tuple[tuple[Any, ...], dict[str, Any]] = tree_map(partial(copies.on, device=device), (args, kwargs))
    return moved


def give_back(copies: Copies, device: torch.device, layer: torch.nn.Module, args: Any, output: Any) -> Any:
    """Return what the last layer of a stack returns, on the first device, and forget the copies."""
    copies.known.clear()
    return tree_map(lambda value: value.to(device) if isinstance(value, torch.Tensor) else value, output)


def kept(parameters: Iterator[torch.nn.Parameter]) -> int:
    """Return the bytes that these weights take, with gradient and averages of what is trained."""
    return sum(p.numel() * p.element_size() * (KEPT if p.requires_grad else 1) for p in parameters)


def check_own_weights(model: torch.nn.Module, layers: Sequence[tuple[str, torch.nn.Module]]) -> None:
    """Refuse layers that share a weight with anything else: it would have to lie in two places.

    Raises:
        UserError: there are such.
    """
    inside = {module: name for name, layer in layers for module in layer.modules()}
    owner: dict[torch.nn.Parameter, str] = {}
    for module in model.modules():
        name = inside.get(module, "what is outside of the layers")
        for parameter in module.parameters(recurse=False):
            if owner.setdefault(parameter, name) != name:
                raise UserError(
                    f"model.device_map can't spread the {type(model).__name__}: {owner[parameter]} and {name} share a "
                    "weight, which would have to lie on two GPUs; leave model.device_map out"
                )


def balanced(sizes: Sequence[int], outside: int, devices: int) -> list[int]:
    """Return for each layer the number of its device: ascending, and so that the largest load is the least.

    Args:
        sizes: of the layers, in their order; at least as many as there are devices but one.
        outside: what the first device holds besides; where that is much, it gets no layer. Each other one has a layer.
        devices: how many there are.
    """
    sums = [0, *accumulate(sizes)]
    # For each number of first layers: the least largest load, and where those of the last device begin.
    best: list[dict[int, tuple[int, int]]] = [{end: (outside + sums[end], 0) for end in range(len(sums))}]
    for device in range(1, devices):
        before = best[-1]
        best.append(
            {
                end: min((max(before[start][0], sums[end] - sums[start]), start) for start in range(device - 1, end))
                for end in range(device, len(sums))
            }
        )
    places, end = [0] * len(sizes), len(sizes)
    for device in range(devices - 1, 0, -1):
        start = best[device][end][1]
        places[start:end] = [device] * (end - start)
        end = start
    return places


def described(
    names: Sequence[str], places: Sequence[int], devices: Sequence[torch.device], loads: Sequence[int]
) -> str:
    """Return for the plan which layers lie where."""
    parts = []
    for place, (device, load) in enumerate(zip(devices, loads, strict=True)):
        own = [name for name, at in zip(names, places, strict=True) if at == place]
        spans = [own[0] if len(own) == 1 else f"{own[0]} to {own[-1]}"] if own else []
        what = [*spans, "all but the layers"] if place == 0 else spans
        parts.append(f"{device}: {' and '.join(what)}, {with_prefix(load)}B")
    return f"{'; '.join(parts)} (weights, gradients, AdamW); one GPU works at a time"


def check_holds_values(model: torch.nn.Module) -> None:
    """Refuse a model that a recipe has spread or offloaded by itself, by the hooks of Accelerate.

    Accelerate trains on then, though a weight that is offloaded gets no gradient, and no step changes it.

    Raises:
        UserError: it has.
    """
    kind = type(model).__name__
    instead = (
        "leave device_map out where it is loaded (from_pretrained, dispatch_model), and spread it with "
        "--model.device_map balanced, or with fsdp2_one_node.yaml of accelerate_configs/"
    )
    empty = [name for name, parameter in model.named_parameters() if parameter.is_meta]
    if empty:
        raise UserError(
            f"{len(empty)} weights of the {kind} hold no values ({empty[0]}, ...): it was built without "
            f"(init_empty_weights), or offloaded to the host or a disk, where a weight gets no gradient; {instead}"
        )
    for part in model.modules():
        placed: dict[str, Any] = getattr(part, "hf_device_map", {})
        if len(placed) > 1:
            places = ", ".join(dict.fromkeys(str(place) for place in placed.values()))
            raise UserError(
                f"the {kind} comes with a device map of its own ({len(placed)} parts on {places}), which the plan, the "
                f"seeds and the checkpoints of a run know nothing of; {instead}"
            )
