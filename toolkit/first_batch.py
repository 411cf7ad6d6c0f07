"""What is tried on the first micro-batch, before any step, because it would hang or fail obscurely later."""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from typing import Any

import torch

from toolkit.errors import UserError
from toolkit.joint import loss_of_batch
from toolkit.loading import LoadedMicroBatch
from toolkit.runtime import Runtime
from toolkit.task import Task
from toolkit.weights import canonical, is_of_head, parameter_names

NAMED = 8


def without_gradient(task: Task, runtime: Runtime, model: torch.nn.Module, micro: LoadedMicroBatch) -> list[str]:
    """Run one micro-batch forward and backward without changing anything, and name the parameters that got no gradient.

    Raises:
        UserError: the loss is not a differentiable scalar.
    """
    # A batch norm in training mode would take this batch into its statistics.
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    # A sharded gradient exists only once it was reduced; elsewhere nothing has to be sent.
    with nullcontext() if runtime.strategy.sharded else runtime.accelerator.no_sync(model):
        total = loss_of_batch(task, model, runtime.to_device(micro.batch))
        if not isinstance(total, torch.Tensor) or total.ndim != 0 or not total.requires_grad:
            raise UserError(
                f"the task's loss returned {described(total)}; it must return a scalar tensor that depends on the weights: "
                "the sum (never the mean) over the units of the batch"
            )
        runtime.accelerator.backward(total)
    names = parameter_names(runtime.accelerator.unwrap_model(model))
    without = [name for parameter, name in names.items() if parameter.requires_grad and parameter.grad is None]
    model.zero_grad(set_to_none=True)
    with torch.no_grad():
        for buffer, before in buffers:
            buffer.copy_(before)
    return without


def unused_parameters(model: torch.nn.Module, without: Sequence[Sequence[str]]) -> list[str]:
    """Return the parameters that the task leaves unused, which are to be frozen: no process has a gradient for them.

    With several processes each would wait for their gradients in vain, and with one they would be saved as if they had
    been trained.

    Args:
        model: unwrapped.
        without: of each process the names of the parameters that got no gradient.

    Raises:
        UserError: some of them look forgotten rather than unused, or have a gradient in other processes.
    """
    everywhere = [name for name in without[0] if all(name in names for names in without)]
    elsewhere = [name for name in dict.fromkeys(name for names in without for name in names) if name not in everywhere]
    problems = []
    if elsewhere:
        problems.append(
            f"{len(elsewhere)} trainable parameter(s) get a gradient in some processes and none in others: "
            f"{named(elsewhere)}. Training would hang or fail; let the loss depend on them whatever a batch holds, or "
            "freeze them (requires_grad_(False))"
        )
    if forgotten := forgotten_parameters(model, everywhere):
        problems.append(
            f"{len(forgotten)} trainable parameter(s) get no gradient from the loss: {named(forgotten)}. With several "
            "processes training would hang or fail; freeze them (requires_grad_(False)), remove them, or let the loss "
            "depend on them"
        )
    if problems:
        raise UserError(*problems)
    return everywhere


def forgotten_parameters(model: torch.nn.Module, without: Iterable[str]) -> list[str]:
    """Return of the parameters without a gradient those that somebody must have meant to train.

    The code of a model of Transformers is not the user's, and a task may well leave a part of it unused: a pooler, the
    token that stands for a mask, a table of positions that is computed and never learnt (`from_pretrained` makes it
    trainable again). Nobody leaves these unused on purpose: a part of a network that is not Transformers' own; the head
    of a model; some layers of a stack, as where the loss looks at an earlier one; anything, if it is more than half of
    a model. Embeddings do not count for that: where the vocabulary is large, they are more than all layers together.
    """
    names, without = parameter_names(model), set(without)
    lacking = {parameter for parameter in model.parameters() if names[parameter] in without}
    forgotten = set(lacking)
    for part in models_of_transformers(model):
        trained = {parameter for parameter in part.parameters() if parameter.requires_grad}
        tables = {p for module in part.modules() if isinstance(module, torch.nn.Embedding) for p in module.parameters()}
        unused = trained & lacking
        if 2 * elements(unused - tables) <= elements(trained - tables):
            forgotten -= unused - head_of(part) - layers_left_out(part, trained, lacking)
    return [names[parameter] for parameter in model.parameters() if parameter in forgotten]


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


def head_of(model: Any) -> set[torch.nn.Parameter]:
    """Return the parameters of the head of a model of Transformers."""
    found = {parameter for name, parameter in model.named_parameters() if is_of_head(model, name)}
    with suppress(NotImplementedError, AttributeError):  # a model of images has no output embeddings
        found.update(model.get_output_embeddings().parameters())
    return found


def layers_left_out(
    model: torch.nn.Module, trained: set[torch.nn.Parameter], lacking: set[torch.nn.Parameter]
) -> set[torch.nn.Parameter]:
    """Return the parameters of whole layers without a gradient, where other layers of the same stack have one."""
    found: set[torch.nn.Parameter] = set()
    for stack in model.modules():
        if isinstance(stack, torch.nn.ModuleList):
            layers = [own for layer in stack if (own := trained.intersection(layer.parameters()))]
            without = [layer for layer in layers if layer <= lacking]
            if len(without) < len(layers):
                found.update(*without)
    return found


def parts_of(model: torch.nn.Module, chosen: Iterable[str]) -> list[str]:
    """Return parameters in the largest parts of a model that consist of them; `*` stands for the number of a layer."""
    names, chosen = parameter_names(model), set(chosen)
    left = {parameter for parameter in model.parameters() if names[parameter] in chosen}
    found = []
    for part, module in model.named_modules():  # the outer ones come first
        inside = set(module.parameters())
        if inside and inside <= left:
            found.append(canonical(part))
            left -= inside
    found += [names[parameter] for parameter in model.parameters() if parameter in left]
    return list(dict.fromkeys(re.sub(r"\.\d+(?=\.|$)", ".*", name) for name in found))


def elements(parameters: Iterable[torch.Tensor]) -> int:
    """Return how many numbers these hold together."""
    return sum(parameter.numel() for parameter in parameters)


def named(names: Sequence[str]) -> str:
    """Return some of the names in words."""
    return ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")


def described(total: object) -> str:
    """Say what a loss returned that is no scalar tensor with a gradient."""
    if not isinstance(total, torch.Tensor):
        return f"a {type(total).__name__}"
    if total.ndim:
        return f"a tensor of shape {tuple(total.shape)}"
    return "a scalar that no gradient flows through (detached, or computed under no_grad)"


def batch_norms(model: torch.nn.Module) -> list[str]:
    """Return the names of batch-norm layers that are in training mode: their statistics depend on the cut."""
    return [
        name
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm) and module.training
    ]


def active_dropout(model: torch.nn.Module) -> float:
    """Return the largest dropout probability in the model, as far as its layers tell."""
    features = [m.p for m in model.modules() if isinstance(m, torch.nn.modules.dropout._DropoutNd)]
    # What models of images call so leaves out whole branches of some samples (stochastic depth).
    branches = [p for m in model.modules() if isinstance(p := getattr(m, "drop_prob", None), float)]
    return max([*features, *branches], default=0.0)
