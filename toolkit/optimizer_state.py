"""The state of any optimizer as tensors with names and plain JSON, so that reading it back can execute nothing.

Tensors are named by parameter and entry ("encoder.weight/exp_avg"): they find their way back however parameters are
numbered or grouped. Everything else (counts, flags, nested lists) is kept as JSON in which each container says what it is.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from toolkit.errors import UserError

Packed = Any
"""JSON: a scalar as it is; {"tensor": name}, {"list": [...]}, {"tuple": [...]} or {"dict": [[key, value], ...]}."""


def pack_optimizer(
    optimizer: torch.optim.Optimizer, names: Mapping[torch.Tensor, str]
) -> tuple[Packed, dict[str, torch.Tensor]]:
    """Return the structure of an optimizer's state and its tensors by name; nothing is copied.

    Args:
        optimizer: any.
        names: the name of every parameter.

    Raises:
        UserError: the state holds something that is neither a tensor nor plain data.
    """
    tensors: dict[str, torch.Tensor] = {}
    states = {
        names[parameter]: pack(dict(state), names[parameter], tensors) for parameter, state in optimizer.state.items()
    }
    groups = [
        pack({key: value for key, value in group.items() if key != "params"}, f"group {number}", tensors)
        for number, group in enumerate(optimizer.param_groups)
    ]
    return {"states": states, "groups": groups, "names": grouped_names(optimizer, names)}, tensors


def grouped_names(optimizer: torch.optim.Optimizer, names: Mapping[torch.Tensor, str]) -> list[list[str]]:
    """Return the names of the parameters in each group of an optimizer."""
    return [[names[parameter] for parameter in group["params"]] for group in optimizer.param_groups]


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


def restore_optimizer(
    optimizer: torch.optim.Optimizer,
    names: Mapping[torch.Tensor, str],
    packed: Packed,
    tensor: Callable[..., torch.Tensor],
) -> None:
    """Put a packed state back; `tensor(name, like=...)` returns one on the device of its parameter, laid out as that is."""
    for parameter, name in names.items():
        if name in packed["states"]:
            optimizer.state[parameter] = unpack(packed["states"][name], partial(tensor, like=parameter))
    for group, saved in zip(optimizer.param_groups, packed["groups"], strict=True):
        group.update(unpack(saved, partial(tensor, like=torch.empty(()))))
