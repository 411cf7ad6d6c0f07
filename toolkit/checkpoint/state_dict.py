"""The state of a run as tensors with names and plain JSON, so that reading it back can execute nothing.

Tensors of an optimizer are named by parameter and entry ("encoder.weight/exp_avg"): they are found again however
parameters are numbered or grouped. Everything else (counts, flags, nested lists) is JSON in which each container says
what it is.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from toolkit.checkpoint.reader import OPTIMIZER, WEIGHTS, file_of, index_entries
from toolkit.checkpoint.sharded import shard_map_of
from toolkit.checkpoint.writer import Content
from toolkit.distributed.runtime import Runtime
from toolkit.distributed.shards import Held, held_shards
from toolkit.distributed.zero import MasterWeights
from toolkit.errors import UserError
from toolkit.models.parameters import parameter_names, weights_of

Packed = Any
"""JSON: a scalar as it is; {"tensor": name}, {"list": [...]}, {"tuple": [...]} or {"dict": [[key, value], ...]}."""


def content_of(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    step: int,
    epoch: float,
    state: Mapping[str, Any],
    sharded: Runtime | None = None,
) -> Content:
    """Return the content of a checkpoint, nothing copied yet: all of it, or what this process owns.

    With `sharded` every process writes the shards that it owns, and all processes call this together.
    """
    packed, averages = pack_optimizer(optimizer, trained_names(model, optimizer))
    if sharded is not None and sharded.strategy.stages > 1:
        add_other_stages(packed, averages, sharded)
    kinds: dict[str, Mapping[str, Held]] = {WEIGHTS: weights_of(model), OPTIMIZER: averages}
    if isinstance(optimizer, MasterWeights):
        kinds[OPTIMIZER] = optimizer.stretched(averages)
    state = {"step": step, "epoch": epoch, **state, "optimizer": packed}
    if sharded is None:
        # Each is whole here.
        files = {
            kind: {name: held_shards(held)[0][1].to(held.dtype) for name, held in tensors.items()}
            for kind, tensors in kinds.items()
        }
        return Content(epoch, files, state)
    return sharded_content(kinds, epoch, state, sharded)


def add_other_stages(packed: Packed, averages: dict[str, torch.Tensor], runtime: Runtime) -> None:
    """Add what the optimizers in the other stages of a pipeline keep, in place: tensors without content.

    All processes call it together.
    """
    mine = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in averages.items()}
    for states, tensors in runtime.gather_all((packed["states"], mine)):
        packed["states"] |= states
        for name, (shape, dtype) in tensors.items():
            averages.setdefault(name, torch.empty(shape, dtype=dtype, device="meta"))


def sharded_content(
    kinds: Mapping[str, Mapping[str, Held]], epoch: float, state: Mapping[str, Any], runtime: Runtime
) -> Content:
    """Return what this process writes of tensors that are sharded over all processes."""
    both = {f"{kind}/{name}": tensor for kind, tensors in kinds.items() for name, tensor in tensors.items()}
    together = shard_map_of(both, runtime)
    files: dict[str, dict[str, torch.Tensor]] = {}
    shards = {}
    for kind, tensors in kinds.items():
        shard_map = together.of(f"{kind}/")
        shards[kind.removesuffix(".safetensors")] = index_entries(kind, shard_map, tensors)
        if runtime.rank in shard_map.owners:
            owned = files[file_of(kind, shard_map, runtime.rank)] = {}
            for name in shard_map.owned(runtime.rank):
                keys, owner = shard_map.keys(name), dict(shard_map.shards(name))
                for shard, local in held_shards(tensors[name]):
                    if owner[shard] == runtime.rank:
                        owned[keys[shard]] = local.to(tensors[name].dtype)
    return Content(epoch, files, state, shards, tuple(together.owners))


def trained_names(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[torch.Tensor, str]:
    """Return the name of every parameter that an optimizer changes; those of ZeRO's are its master weights."""
    return optimizer.names if isinstance(optimizer, MasterWeights) else parameter_names(model)


def pack_optimizer(
    optimizer: torch.optim.Optimizer, names: Mapping[torch.Tensor, str]
) -> tuple[Packed, dict[str, torch.Tensor]]:
    """Return the structure of an optimizer's state and its tensors by name; nothing is copied.

    The structure does not depend on how the model is sharded, which may need more groups than the settings do.

    Args:
        optimizer: any.
        names: the name of every parameter, in the order of the model.

    Raises:
        UserError: the state holds something that is neither a tensor nor plain data.
    """
    tensors: dict[str, torch.Tensor] = {}
    states = {
        name: pack(dict(optimizer.state[parameter]), name, tensors)
        for parameter, name in names.items()
        if parameter in optimizer.state
    }
    groups, members = logical_groups(optimizer, names, tensors)
    return {"states": states, "groups": groups, "names": members}, tensors


def logical_groups(
    optimizer: torch.optim.Optimizer, names: Mapping[torch.Tensor, str], tensors: dict[str, torch.Tensor]
) -> tuple[list[Packed], list[list[str]]]:
    """Return the settings of each group of an optimizer and the names in it; groups with the same settings are one."""
    order = {name: number for number, name in enumerate(names.values())}
    merged: list[tuple[dict[str, Any], list[str]]] = []
    for group, members in zip(optimizer.param_groups, grouped_names(optimizer, names), strict=True):
        settings = settings_of(group)
        # What can't be packed is named by its group.
        pack(settings, f"group {len(merged)}", {})
        alike = [held for other, held in merged if are_alike(other, settings)]
        if alike:
            alike[0].extend(members)
        else:
            merged.append((settings, list(members)))
    for _, members in merged:
        members.sort(key=order.__getitem__)
    merged.sort(key=lambda entry: min((order[name] for name in entry[1]), default=len(order)))
    groups = [pack(settings, f"group {number}", tensors) for number, (settings, _) in enumerate(merged)]
    return groups, [members for _, members in merged]


def settings_of(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a group, and whether its weights decay: the decay may be 0 for now."""
    settings = {key: value for key, value in group.items() if key != "params"}
    if "weight_decay" in settings:
        settings.setdefault("decayed", bool(settings["weight_decay"]))
    return settings


def are_alike(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Return whether two groups have the same settings; those that keep tensors are each their own."""
    kept: dict[str, torch.Tensor] = {}
    packed = [pack(dict(settings), "", kept) for settings in (first, second)]
    return not kept and bool(packed[0] == packed[1])


def grouped_names(optimizer: torch.optim.Optimizer, names: Mapping[torch.Tensor, str]) -> list[list[str]]:
    """Return the names of the parameters in each group of an optimizer."""
    return [[names[parameter] for parameter in group["params"]] for group in optimizer.param_groups]


def regrouped(optimizer: torch.optim.Optimizer, names: Mapping[torch.Tensor, str], packed: Packed) -> bool:
    """Return whether parameters with different settings in a packed state share a group now, or decay differently."""
    previous = {
        name: settings for settings, members in zip(packed["groups"], packed["names"], strict=True) for name in members
    }
    for group, members in zip(optimizer.param_groups, grouped_names(optimizer, names), strict=True):
        found = [previous[name] for name in members]
        if any(settings != found[0] for settings in found):
            return True
        now = settings_of(group)
        before = unpack(found[0], lambda name: torch.empty(())) if found else now
        if any(key in before and key in now and before[key] != now[key] for key in ("decayed", "weight_decay")):
            return True
    return False


def pack(value: Any, name: str, tensors: dict[str, torch.Tensor]) -> Packed:
    """Return a value as JSON, and put the tensors in it under names that begin with `name`."""
    match value:
        case torch.Tensor():
            # Two keys of a mapping can read alike: 0 and "0".
            while name in tensors:
                name += "'"
            tensors[name] = value
            return {"tensor": name}
        case None | bool() | int() | float() | str():
            return value
        case list() | tuple():
            kind = "list" if isinstance(value, list) else "tuple"
            return {kind: [pack(entry, f"{name}/{number}", tensors) for number, entry in enumerate(value)]}
        case dict():
            return {"dict": [[pack(k, name, tensors), pack(v, f"{name}/{k}", tensors)] for k, v in value.items()]}
        case _:
            raise UserError(
                f"the optimizer keeps a {type(value).__name__} under {name}, which a checkpoint can't hold; "
                "it takes tensors, numbers, texts, lists, tuples and mappings of these"
            )


def unpack(packed: Packed, tensor: Callable[[str], torch.Tensor]) -> Any:
    """Return the value that was packed; `tensor` finds a tensor by its name."""
    match packed:
        case {"tensor": str(name)}:
            return tensor(name)
        case {"list": list(entries)}:
            return [unpack(entry, tensor) for entry in entries]
        case {"tuple": list(entries)}:
            return tuple(unpack(entry, tensor) for entry in entries)
        case {"dict": list(entries)}:
            return {unpack(key, tensor): unpack(value, tensor) for key, value in entries}
        case None | bool() | int() | float() | str():
            return packed
        case _:
            raise ValueError(f"not the state of an optimizer: {packed!r}")


def load_optimizer(
    optimizer: torch.optim.Optimizer,
    names: Mapping[torch.Tensor, str],
    packed: Packed,
    tensor: Callable[..., torch.Tensor],
) -> None:
    """Put a packed state back; `tensor(name, like=...)` returns a tensor on the device of its parameter."""
    for parameter, name in names.items():
        if name in packed["states"]:
            optimizer.state[parameter] = unpack(packed["states"][name], partial(tensor, like=parameter))
    group_of = {name: number for number, members in enumerate(packed["names"]) for name in members}
    for group in optimizer.param_groups:
        if group["params"]:
            saved = packed["groups"][group_of[names[group["params"][0]]]]
            settings = unpack(saved, partial(tensor, like=torch.empty(())))
            group.update({key: value for key, value in settings.items() if key in group or key != "decayed"})
