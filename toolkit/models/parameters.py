"""The tensors of a model by the names that its own code gives them, however it was wrapped or sharded since."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import torch

from toolkit.errors import UserError

if TYPE_CHECKING:
    from toolkit.distributed.shards import Held

WRAPPERS = {"_checkpoint_wrapped_module", "_orig_mod"}
"""Parts of names that activation checkpointing and compilation put in."""

MASTERS = "_master_weights"
"""The attribute of a model under which its master weights are found (`toolkit/distributed/zero.py`)."""

HEADS = ("classifier", "qa_outputs", "score", "head", "fc")
"""What heads are called."""
LAST = ("final_", "project_out")
"""How names begin of what is used last and named before the layers, as in OPT."""


def canonical(name: str) -> str:
    """Return the name of a tensor without what wrappers put into it."""
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)


def parameter_names(model: torch.nn.Module) -> dict[torch.Tensor, str]:
    """Return the name of every parameter; one that stands twice in a model has one name."""
    reshard(model)
    return {parameter: canonical(name) for name, parameter in model.named_parameters()}


def freeze(model: torch.nn.Module, names: Iterable[str]) -> None:
    """Have these parameters not be trained."""
    unwanted = set(names)
    for parameter, name in parameter_names(model).items():
        if name in unwanted:
            parameter.requires_grad_(False)


def is_of_head(model: Any, name: str) -> bool:
    """Return whether a name in a model of Transformers is of its head: of what a task adds to the base model."""
    base = getattr(model, model.base_model_prefix, None)
    if isinstance(base, torch.nn.Module) and base is not model:
        return not name.startswith(f"{model.base_model_prefix}.")
    # CLIP, for one, classifies images by a part of its base model.
    return name.partition(".")[0] in HEADS


def frozen_parameters(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the parameters that are not trained, by every name that they have."""
    reshard(model)
    named = model.named_parameters(remove_duplicate=False)
    return {canonical(name): parameter for name, parameter in named if not parameter.requires_grad}


def named_state(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield all parameters and persistent buffers, and what else the state of a model holds, by every name."""
    reshard(model)
    for name, tensor in model.state_dict(keep_vars=True).items():
        yield canonical(name), tensor


def attach_masters(model: torch.nn.Module, masters: Any) -> None:
    """Have the state of a model be that of its master weights (`toolkit/distributed/zero.py`)."""
    # No submodule, and no part of the model's own state.
    vars(model)[MASTERS] = masters


def held_of(model: torch.nn.Module, tensor: torch.Tensor) -> "Held | None":
    """Return what this process holds of the state of a model: the tensor itself, or under ZeRO its master weights, of
    which there are none for what is not trained."""
    masters = vars(model).get(MASTERS)
    held: Held | None = tensor if masters is None else masters.held(tensor)
    return held


def size_of(parameter: torch.Tensor) -> int:
    """Return how many numbers a whole parameter has: ZeRO 3 leaves an empty one in the model."""
    return int(getattr(parameter, "ds_numel", None) or parameter.numel())


def weights_of(model: torch.nn.Module) -> "dict[str, Held]":
    """Return trainable parameters and persistent buffers by name, each tensor once.

    Frozen parameters follow from the configuration: a checkpoint holds only their digest (`digest_of_frozen`).

    Raises:
        UserError: the model keeps a state that is no tensor.
    """
    weights: dict[str, Held] = {}
    seen = set()
    frozen = frozen_parameters(model)
    for name, tensor in named_state(model):
        # A quantised parameter keeps its scales under names that begin with its own.
        parts = name.split(".")
        if any(".".join(parts[:depth]) in frozen for depth in range(1, len(parts) + 1)):
            continue
        check_is_tensor(name, tensor)
        if id(tensor) not in seen:
            seen.add(id(tensor))
            held = held_of(model, tensor)
            assert held is not None
            weights[name] = held
    return weights


def digest_of_frozen(model: torch.nn.Module) -> str | None:
    """Return a hash of the parameters that are not trained, or None if all are. About 1 s for 1 GB.

    They have to lie whole in this process: it is asked for before a model is sharded.
    """
    from toolkit.distributed.shards import as_bytes

    frozen = frozen_parameters(model)
    if not frozen:
        return None
    state = blake2b(digest_size=16)
    for name, tensor in frozen.items():
        state.update(name.encode())
        content = as_bytes(tensor.detach().contiguous().cpu()).numpy()
        state.update(memoryview(content))  # type: ignore[arg-type]  # an array is a buffer
    return state.hexdigest()


def check_is_tensor(name: str, value: object) -> None:
    """Refuse what can't be written as a tensor.

    Raises:
        UserError: the value is no tensor.
    """
    if not isinstance(value, torch.Tensor):
        raise UserError(
            f"the model keeps a {type(value).__name__} under {name} (get_extra_state), which a checkpoint can't hold; "
            "make it a tensor"
        )


def reshard(model: torch.nn.Module) -> None:
    """Have a sharded model hold only its shards: after a forward pass without a backward pass some layers are whole."""
    # Half a second, which `--help` is not to wait for.
    from torch.distributed.fsdp import FSDPModule

    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def layer_stacks(model: torch.nn.Module, frozen: bool = False) -> dict[str, list[torch.nn.Module]]:
    """Return the repeated layers of a model, in its own order: by the name of the list that holds them.

    That is a `torch.nn.ModuleList` of at least two modules that are made of others, with weights of which some are
    trained, or none if `frozen` ones are wanted too. A list inside a layer (experts, say) is part of that layer.
    """
    stacks: dict[str, list[torch.nn.Module]] = {}
    for name, module in model.named_modules():
        inside = any(name.startswith(f"{outer}.") for outer in stacks)
        if isinstance(module, torch.nn.ModuleList) and len(module) > 1 and not inside:
            composed = all(any(True for _ in layer.children()) for layer in module)
            if composed and any(frozen or parameter.requires_grad for parameter in module.parameters()):
                stacks[name] = list(module)
    return {canonical(name): layers for name, layers in stacks.items()}


def layer_numbers(model: torch.nn.Module) -> dict[torch.Tensor, int]:
    """Return for each parameter the number of its layer, from 1; 0 for embeddings, and for what comes before all
    layers.

    What stands outside of the layers has the number of the one that would follow: the head one more than the last, also
    where the code names it before them, as XLM-RoBERTa's does. A weight that stands in two places has the number of the
    first.
    """
    reshard(model)
    layers = [layer for stack in layer_stacks(model).values() for layer in stack]
    inside = {id(parameter) for layer in layers for parameter in layer.parameters()}
    starts = {id(layer): number for number, layer in enumerate(layers, start=1)}
    numbers: dict[torch.Tensor, int] = {}
    passed = 0
    for module in model.modules():  # each before what is in it, in the order of the model
        if id(module) in starts:
            passed = starts[id(module)]
            for parameter in module.parameters():
                numbers.setdefault(parameter, passed)
        else:
            outside = 0 if isinstance(module, torch.nn.Embedding) or not passed else passed + 1
            for parameter in module.parameters(recurse=False):
                if id(parameter) not in inside:
                    numbers.setdefault(parameter, outside)
    embedded = {p for m in model.modules() if isinstance(m, torch.nn.Embedding) for p in m.parameters(recurse=False)}
    for part in models_of_transformers(model):
        for name, parameter in part.named_parameters():
            if numbers.get(parameter) == 0 and parameter not in embedded and stands_last(part, canonical(name)):
                numbers[parameter] = len(layers) + 1
    return numbers


def stands_last(model: Any, name: str) -> bool:
    """Return whether a weight is used after all layers of a model of Transformers, wherever its code names it."""
    return is_of_head(model, name) or any(part.startswith(LAST) for part in name.split("."))


def models_of_transformers(model: torch.nn.Module) -> Iterator[Any]:
    """Yield the models of Transformers in a network, each the outermost. Transformers is not imported for that."""
    inside: set[torch.nn.Module] = set()
    for module in model.modules():
        # Sharding gives a module a class of its own, below that of the model.
        kind = next(kind for kind in type(module).__mro__ if not kind.__module__.startswith("torch.distributed."))
        own = kind.__module__.partition(".")[0] == "transformers" and hasattr(module, "base_model_prefix")
        if own and module not in inside:
            inside.update(module.modules())
            yield module


@contextmanager
def buffers_kept(module: torch.nn.Module) -> Iterator[list[tuple[str, torch.Tensor, torch.Tensor]]]:
    """Give the buffers of a module the values back after the block that they had before it: what is only tried may not
    go into the statistics of a batch norm. Yields the name of each, itself, and that value."""
    buffers = [(name, buffer, buffer.clone()) for name, buffer in module.named_buffers()]
    try:
        yield buffers
    finally:
        with torch.no_grad():
            for _, buffer, before in buffers:
                buffer.copy_(before)
