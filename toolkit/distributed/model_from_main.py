"""A sharded model that the main process alone builds: the others begin with shapes, and are sent their shards.

Otherwise every process builds the whole model in host memory before it is sharded. Asked for by
`fsdp_cpu_ram_efficient_loading` in the launch file.
"""

from collections.abc import Callable, Iterator

import torch

from toolkit.distributed.runtime import Runtime
from toolkit.distributed.shards import Shard as Block
from toolkit.distributed.shards import all_of, as_bytes, held_shards, local_shards
from toolkit.errors import UserError

Place = tuple[torch.nn.Module, str]
"""Where a parameter stands: a module, and the name there."""


def build_on_main(build: Callable[[], torch.nn.Module], runtime: Runtime) -> torch.nn.Module:
    """Return the model as `build` makes it; without any values where the main process alone is to have them.

    Raises:
        UserError: the model keeps tensors that are neither parameters nor buffers, which could not be sent.
    """
    if runtime.is_main or not runtime.strategy.built_by_main:
        return build()
    with torch.device("meta"):
        model = build()
    for name, module in model.named_modules():
        outside = [key for key, value in vars(module).items() if isinstance(value, torch.Tensor)]
        if outside:
            raise UserError(
                f"the launch configuration sets fsdp_cpu_ram_efficient_loading, but {name or type(model).__name__} "
                f"keeps the tensor {outside[0]}, which is neither a parameter nor a buffer; leave the setting out, or "
                "register it as a buffer"
            )
    return model


def shard_from_main(model: torch.nn.Module, shard: Callable[[torch.nn.Module], None], runtime: Runtime) -> None:
    """Shard a model of `build_on_main` in place with `shard`, and send each process its shards from the main one.

    The main process holds the whole model on the host meanwhile, the others one more shard of one tensor.
    """
    # Kept under the names of the beginning; the memory is that of the model itself.
    values = {name: parameter.detach() for name, parameter in model.named_parameters()} if runtime.is_main else {}
    tied = list(places_of_tied(model))
    shard(model)
    if not runtime.is_main:
        make_room(model, runtime)
        # What was one parameter became several.
        for first, *others in tied:
            for module, name in others:
                setattr(module, name, getattr(*first))
    parameters = dict(model.named_parameters())
    everybody = runtime.gather_all(local_shards(parameters))
    with torch.no_grad():
        for name, parameter in parameters.items():
            for rank in range(1, runtime.size):
                if runtime.is_main:
                    for block in everybody[rank][name][1]:
                        part = values[name][Block(*block).within(all_of(parameter.shape))]
                        torch.distributed.send(as_bytes(part.cpu().contiguous()), dst=rank, group=runtime.control)
                elif runtime.rank == rank:
                    for block, local in held_shards(parameter):
                        received = torch.empty(block.size, dtype=parameter.dtype, device="cpu")
                        torch.distributed.recv(as_bytes(received), src=0, group=runtime.control)
                        local.copy_(received)
    for buffer in model.buffers():
        runtime.share(buffer)


def make_room(model: torch.nn.Module, runtime: Runtime) -> None:
    """Allocate the tensors of a model that was built without values, each where FSDP2 wants it.

    Buffers lie on the device; shards too, or on the host where they are offloaded.
    """
    model.to_empty(device="cpu" if runtime.strategy.offloaded else runtime.device)
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = torch.empty_like(buffer, device=runtime.device)


def places_of_tied(model: torch.nn.Module) -> Iterator[list[Place]]:
    """Yield for each parameter that stands at several places all of them."""
    places: dict[int, list[Place]] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                places.setdefault(id(parameter), []).append((module, name))
    yield from (found for found in places.values() if len(found) > 1)
