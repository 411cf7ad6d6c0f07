"""How a model is divided among the stages of a pipeline: which process holds which of its weights.

The layers of its one list are dealt out in their order; what stands before them goes to the first stage, what stands
after them to the last. The weights of other stages are left without content (on the device `meta`), under their own
names: so names, groups of the optimizer and checkpoints are the same in all processes.
"""

from collections.abc import Callable, Iterator
from math import nan
from typing import Any

import torch
from torch.nn import Parameter

from toolkit.distributed.pipeline import ATTRIBUTE, Stage
from toolkit.distributed.runtime import Runtime
from toolkit.distributed.tensor_parallel import shared_weights
from toolkit.errors import UserError
from toolkit.models.compiled import is_compiled
from toolkit.models.parameters import layer_numbers, layer_stacks

NAMED = 5


def divide(model: Any, runtime: Runtime) -> None:
    """Leave this process its stage of a model, in place; all processes call it together.

    Raises:
        UserError: the model can't be divided, or not among so many.
    """
    index, stages = runtime.rank, runtime.strategy.stages
    if problems := list(unfit(model, stages)):
        raise UserError(
            *(
                f"batch.stages is {stages}, and {problem}; leave batch.stages out, and use fsdp2_one_node.yaml (on CPU "
                "cpu_fsdp2.yaml) of accelerate_configs/, which shards any model"
                for problem in problems
            )
        )
    ((_, layers),) = layer_stacks(model).items()
    numbers, shared = layer_numbers(model), shared_weights(model)
    in_others = {p for m in model.modules() if not isinstance(m, torch.nn.Embedding) for p in m._parameters.values()}
    # An embedding that is also the head, and not a second embedding.
    tied = [
        p
        for p, number in numbers.items()
        if number == 0 and id(p) in shared and p in in_others and isinstance(p, Parameter)
    ]
    first, last = len(layers) * index // stages, len(layers) * (index + 1) // stages

    def is_own(parameter: Parameter) -> bool:
        number = numbers[parameter]
        at_end = number > len(layers) or any(parameter is one for one in tied)
        return first < number <= last or (number == 0 and index == 0) or (at_end and index == stages - 1)

    # First, so that what stands in for it still knows its shape.
    if index > 0:
        for _, module in before_the_layers(model):
            module.forward = stand_in(module)
    drop_weights(model, is_own)
    move(model, runtime.device)
    width = model.config.get_text_config().hidden_size
    dtype = next(iter(layers[first].parameters())).dtype
    stage = Stage(index, stages, width, dtype, runtime.device, tied)
    for number, layer in enumerate(layers):
        if not first <= number < last:
            layer.forward = hand_on
            # Or what stands here would be run again in the backward pass.
            setattr(layer, "gradient_checkpointing", False)  # noqa: B010
    if index > 0:
        layers[first - 1].forward = stage.enter
    if not stage.is_last:
        layers[last].forward = stage.leave
    setattr(model, ATTRIBUTE, stage)


def drop_weights(model: torch.nn.Module, is_own: Callable[[Parameter], bool]) -> None:
    """Leave the parameters of other stages without content; one that stands in two places stays one."""
    empty: dict[Parameter, Parameter] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is None or is_own(parameter):
                continue
            if parameter not in empty:
                values = torch.empty_like(parameter, device="meta")
                empty[parameter] = Parameter(values, requires_grad=parameter.requires_grad)
            module._parameters[name] = empty[parameter]


def move(model: torch.nn.Module, device: torch.device) -> None:
    """Put what a stage holds on its device; Accelerate would try to copy the weights of other stages too."""
    for module in model.modules():
        for parameter in module._parameters.values():
            if parameter is not None and not parameter.is_meta:
                parameter.data = parameter.data.to(device)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = buffer.to(device)


def hand_on(hidden: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    """Stand for a layer of another stage."""
    return hidden


def stand_in(module: torch.nn.Module) -> Callable[..., torch.Tensor]:
    """Return what runs in place of a module that stands before the layers: the shape that it returns, of no numbers.

    The first own layer gets what the stage before has sent. Where anything else is computed from what stands here, it
    is seen in the loss, which then is no number either (`toolkit/rehearsal/first_batch.py`).
    """
    if isinstance(module, torch.nn.Embedding):
        width, dtype = module.embedding_dim, module.weight.dtype
        return lambda ids, *_, **__: torch.full((), nan, dtype=dtype, device=ids.device).expand(*ids.shape, width)
    features = getattr(module, "out_features", None)
    return lambda values: values.new_full((), nan).expand(*values.shape[:-1], features or values.shape[-1])


def before_the_layers(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """Yield the modules that have weights of their own and stand before all layers, with their names."""
    numbers, shared = layer_numbers(model), shared_weights(model)
    for name, module in model.named_modules():
        own = [parameter for parameter in module._parameters.values() if parameter is not None]
        # A head that is also the embedding stands after them.
        is_head = not isinstance(module, torch.nn.Embedding) and any(id(parameter) in shared for parameter in own)
        if own and not is_head and all(numbers[parameter] == 0 for parameter in own):
            yield name, module


def unfit(model: Any, stages: int) -> Iterator[str]:
    """Yield why a model can't be divided among so many stages."""
    kind = type(model).__name__
    if getattr(model, "peft_config", None) is not None:
        yield "a model with adapters (model.lora) is not trained in a pipeline"
        return
    if not hasattr(model, "config") or not hasattr(model.config, "get_text_config"):
        yield f"a {kind} is no model of Transformers, whose layers alone are known"
        return
    stacks = layer_stacks(model)
    if len(stacks) != 1:
        yield f"the layers of a {kind} do not stand in one list, but in {', '.join(stacks) or 'none'}"
        return
    ((name, layers),) = stacks.items()
    if len(layers) < stages:
        yield f"the {kind} has {len(layers)} layers ({name}): fewer than one for each stage"
    if is_compiled(model):
        yield "model.compile is true: layers are not compiled in a pipeline"
    returned = {str(type(layer).forward.__annotations__.get("return")) for layer in layers}
    if any("tuple" in annotation.lower() for annotation in returned):
        yield f"the layers of a {kind} return more than one tensor"
    inside = {id(parameter) for layer in layers for parameter in layer.parameters()}
    if inside & shared_weights(model):
        yield f"the layers of a {kind} share weights with each other"
    buffers = [other for other, _ in model.named_buffers() if other in model.state_dict()]
    if buffers:
        yield f"the model keeps a state that is no weight ({', '.join(buffers[:NAMED])})"
    strange = [
        f"{other or kind} ({type(module).__name__})"
        for other, module in before_the_layers(model)
        if not isinstance(module, torch.nn.Embedding | torch.nn.Linear) and "Norm" not in type(module).__name__
    ]
    if strange:
        yield f"it is not known what {', '.join(strange[:NAMED])} before the layers of a {kind} would return"
