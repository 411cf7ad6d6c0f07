"""A stand-in for a GPU where there is none, which notices whoever would make the host wait for a GPU.

Its tensors say that they are on a device and compute on the host. A `TorchDispatchMode` sees every operation: forward
and backward pass, optimizer, FSDP2, copies. It notes those that need a value or a size from the device, copies that are
waited for, and operations on tensors of both sides, which CUDA refuses.

Real values flow, so that code which depends on them takes the way that it takes on a GPU. (Torch's fake tensors have no
values; Transformers leaves out its looks at them, and they let tensors of two devices be stacked.) The device is the
one that torch leaves free for others, PrivateUse1.

What it does not see:
- what is done only where the device is called cuda, such as autocast for it;
- waits inside a kernel of CUDA whose operation torch does not mark as depending on values;
- waits for an event or a stream, and values that are read before they have arrived;
- the thread that pins batches where there are loader workers, and several processes.
It is stricter than CUDA in one thing: `x[mask] = 0` does not wait there.

It changes torch for as long as a process lives, so it belongs into a process of its own.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

import torch
import torch.distributed.fsdp._fully_shard._fsdp_param as fsdp_param
import torch.distributed.fsdp._fully_shard._fsdp_param_group as fsdp_param_group
import torch.nn.functional as F
import torch.utils.checkpoint
from torch.distributed.tensor import DTensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from toolkit.attention import in_plain_sight, torch_attention

ROOT = Path(__file__).parents[2]
NAME = "standin"
DEVICES = 3
"""Only what is spread over several uses any but the first."""
COMPUTES_AGAIN = "_run_fn_with_dynamo_disabled"
"""Torch's function that computes activations again in a backward pass."""
again = getattr(torch.utils.checkpoint, COMPUTES_AGAIN, lambda function, *args: function(*args))
aten = torch.ops.aten
INDEXING = {
    *(aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_),
    *(aten._unsafe_index, aten._unsafe_index_put),
}
DEPENDS_ON_VALUES = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
# Frames that say nothing about where something was asked for.
BETWEEN = ("/torch/utils/", "/torch/_ops", "/torch/_dynamo/", "/torch/_compile", "/torch/_tensor", "/torch/overrides")


HANDS_ON = ("toolkit/attention.py", "toolkit/flop_count.py")


@dataclass(frozen=True)
class Fault:
    """Something that would make a host wait for its GPU, or that CUDA would refuse."""

    what: str
    operation: str
    place: str
    """The innermost function of all."""
    own: str
    """The innermost function of the toolkit or of a recipe, or else of a test."""


class DeviceTensor(torch.Tensor):
    """A tensor on the stand-in."""

    values: torch.Tensor
    """Where they really are."""

    @staticmethod
    def __new__(cls, values: torch.Tensor, number: int = 0) -> "DeviceTensor":
        made: DeviceTensor = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            values.size(),
            strides=values.stride(),
            storage_offset=values.storage_offset(),
            dtype=values.dtype,
            device=f"{NAME}:{number}",
        )
        made.values = values
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, operation: Any, *_: Any) -> Any:
        raise RuntimeError(f"{operation} of a tensor on the stand-in, outside of it")

    def tolist(self) -> Any:
        """Return the values; torch does not do it for tensors of other classes."""
        return self.cpu().tolist()

    def numpy(self, **_: Any) -> Any:
        """Refuse, as a tensor on a GPU does."""
        raise TypeError("a tensor on a device is no array; use Tensor.cpu() first")

    def __repr__(self) -> str:  # type: ignore[override]
        return f"DeviceTensor({self.values})"


def on_device(value: Any) -> bool:
    """Return whether something is a tensor on the stand-in."""
    return isinstance(value, DeviceTensor)


class Device(TorchDispatchMode):
    """The stand-in: carries out operations, and takes note of faults while it is `watching`."""

    def __init__(self) -> None:
        super().__init__()
        self.faults: list[Fault] = []
        self.watching = False
        self.pinned: dict[int, Any] = {}
        """The storages that are pinned; kept, so that no other one comes to lie where one was."""
        self.sent: Counter[tuple[int, int]] = Counter()
        """Bytes that were copied from one device to another, by their numbers."""

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        """Take the memory of a tensor of the host for pinned."""
        storage = tensor.untyped_storage()
        self.pinned[storage._cdata] = storage
        return tensor

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """Return whether the memory of a tensor of the host is pinned."""
        return tensor.untyped_storage()._cdata in self.pinned

    def note(self, what: str, operation: Any) -> None:
        """Take note of a fault of whoever asks for this operation."""
        if not self.watching:
            return
        frames = [*places(sys._getframe(1))]
        own = [
            place for place in frames if place.startswith(("toolkit/", "recipes/")) and not place.startswith(HANDS_ON)
        ]
        self.faults.append(Fault(what, str(operation), frames[0], (own or frames)[0]))

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # a sharded tensor comes to what it is made of by itself
        kwargs, packet = dict(kwargs or {}), operation.overloadpacket
        if packet is aten.is_pinned:
            return self.is_pinned(args[0])
        if packet is aten._pin_memory:
            return self.pin(args[0].clone())
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        to_device = any(map(on_device, tensors))
        number = next((tensor.device.index for tensor in tensors if on_device(tensor)), 0)
        if kwargs.get("device") is not None:
            device = torch.device(kwargs["device"])
            to_device, number = device.type == NAME, device.index or 0
            kwargs["device"] = torch.device("cpu") if to_device else device
        pinned = kwargs.pop("pin_memory", False)
        if packet is aten._to_copy:
            self.check_copy(operation, args[0], to_device, number, None, bool(kwargs.get("non_blocking")))
        elif packet is aten.copy_:
            into, source, *rest = args
            to_device, number = on_device(into), into.device.index or 0
            waited = bool((*rest, kwargs.get("non_blocking"))[0])
            self.check_copy(operation, source, to_device, number, into, waited)
        else:
            self.check(operation, args, kwargs, tensors)
        result = operation(*tree_map(values_of, args), **tree_map(values_of, kwargs))
        if operation._schema.is_mutable:
            written = [
                args[place] if place < len(args) else kwargs.get(argument.name)
                for place, argument in enumerate(operation._schema.arguments)
                if argument.alias_info is not None and argument.alias_info.is_write
            ]
            return written[0] if isinstance(result, torch.Tensor) else result
        if pinned:
            self.pin(result)
        return tree_map(partial(as_on_device, number=number), result) if to_device else result

    def check_copy(
        self,
        operation: Any,
        source: torch.Tensor,
        to_device: bool,
        number: int,
        into: torch.Tensor | None,
        non_blocking: bool,
    ) -> None:
        """Take note of a copy that the host waits for, and of what goes from one device to another.

        (Torch pins a new copy on the host that nobody waits for.)
        """
        if on_device(source) and to_device and source.device.index != number:
            self.sent[source.device.index, number] += source.numel() * source.element_size()
        if source.numel() == 0 or on_device(source) == to_device:
            return
        if not non_blocking:
            self.note("a copy that is waited for", operation)
        elif to_device and not self.is_pinned(source):
            self.note("a copy from pageable memory", operation)
        elif into is not None and not to_device and not self.is_pinned(into):
            self.note("a copy into pageable memory", operation)

    def check(self, operation: Any, args: Any, kwargs: Any, tensors: list[torch.Tensor]) -> None:
        """Take note of an operation that needs something from the device, or that has tensors of both sides."""
        device = [tensor for tensor in tensors if on_device(tensor)]
        host = [tensor for tensor in tensors if not on_device(tensor)]
        if not device:
            return
        if len(places := sorted({str(tensor.device) for tensor in device})) > 1:
            # What CUDA says, whatever the shapes are.
            raise RuntimeError(f"Expected all tensors to be on the same device, but found two: {', '.join(places)}")
        if operation.overloadpacket in INDEXING:
            if any(index is not None and not on_device(index) for index in args[1]):
                self.note("an index on the host", operation)
            if any(on_device(index) and index.dtype in (torch.bool, torch.uint8) for index in args[1]):
                self.note("a mask as an index", operation)
            return
        if DEPENDS_ON_VALUES & set(operation.tags) and kwargs.get("output_size") is None:
            self.note("a value that the host has to know", operation)
        if host and not (torch.Tag.pointwise in operation.tags and all(tensor.ndim == 0 for tensor in host)):
            self.note("tensors of host and device together", operation)


def values_of(value: Any) -> Any:
    """Return where the values of a tensor really are."""
    return value.values if on_device(value) else value


def as_on_device(value: Any, number: int) -> Any:
    """Return a result as a tensor on the stand-in of this number."""
    return DeviceTensor(value, number) if isinstance(value, torch.Tensor) and not on_device(value) else value


def places(frame: FrameType | None) -> Iterator[str]:
    """Yield file and function of each frame that says something, the innermost first."""
    while frame is not None:
        file, name = frame.f_code.co_filename, frame.f_code.co_name
        if file != __file__ and not any(part in file for part in BETWEEN):
            yield f"{file.removeprefix(f'{ROOT}/').rpartition('site-packages/')[2]} {name}"
        frame = frame.f_back


class HostFunctions(TorchFunctionMode):
    """What does not reach the dispatcher, or reaches in it a kernel that is chosen by the name of the device."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function is torch_attention:
            return attention(*args, **kwargs)
        sets_data = function == torch.Tensor.data.__set__  # type: ignore[attr-defined]
        if sets_data and on_device(args[1]) and not on_device(args[0]):
            # How FSDP2 moves a parameter; torch does not set data of another class.
            held = isinstance(args[0], torch.nn.Parameter)
            made = torch.nn.Parameter(args[1], args[0].requires_grad) if held else args[1]
            return torch.utils.swap_tensors(args[0], made)
        return function(*args, **kwargs)


def in_mode(function: Callable[..., Any], *args: Any) -> Any:
    """Compute activations again: a backward pass leaves modes for functions out."""
    with HostFunctions():
        return again(function, *args)


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Return scaled dot product attention, written out; torch would look for a kernel of this device."""
    if enable_gqa:
        groups = query.shape[-3] // key.shape[-3]
        key, value = (part.repeat_interleave(groups, -3) for part in (key, value))
    drop = partial(F.dropout, p=dropout_p)
    return in_plain_sight(query, key, value, scale, is_causal, attn_mask, None, drop)


class Stream:
    """A stream or an event of the stand-in: all of it is done when it is begun."""

    device_index = 0

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def record(self, *_: Any) -> "Stream":
        return self

    def nothing(self, *_: Any) -> None: ...

    record_event = record
    wait_event = wait_stream = synchronize = wait = nothing


class Backend:
    """What torch asks the module of a device, as it asks `torch.cuda`."""

    Event = Stream = Stream

    def zero(self, *_: Any) -> int:
        return 0

    def one(self, *_: Any) -> int:
        return 1

    def device_count(self, *_: Any) -> int:
        return DEVICES

    def get_rng_state(self, *_: Any) -> torch.Tensor:
        return torch.get_rng_state()

    def current_stream(self, *_: Any) -> Stream:
        return Stream()

    @contextmanager
    def stream(self, _: Any) -> Iterator[None]:
        yield

    device = stream

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]

    is_initialized = is_available = one
    current_device = _is_in_bad_fork = manual_seed = manual_seed_all = set_rng_state = set_device = synchronize = zero


def register() -> None:
    """Tell torch of the stand-in, once in the life of a process."""
    if torch._C._get_privateuse1_backend_name() != NAME:
        _setup_privateuseone_for_python_backend(rename=NAME, backend_module=Backend())


@contextmanager
def standin_device() -> Iterator[Device]:
    """Have a device in this block."""
    register()
    device = Device()
    swaps, lifts = torch.__future__.get_swap_module_params_on_conversion(), torch._C._only_lift_cpu_tensors()
    with ExitStack() as stack:
        stack.callback(torch.__future__.set_swap_module_params_on_conversion, swaps)
        torch.__future__.set_swap_module_params_on_conversion(True)
        # `torch.tensor(..., device=...)` then makes its tensor on the host and copies it, for all to see.
        stack.callback(torch._C._set_only_lift_cpu_tensors, lifts)
        torch._C._set_only_lift_cpu_tensors(True)
        # The backward pass in the thread that asks for it: the others have no queue for this device.
        stack.enter_context(torch.autograd.set_multithreading_enabled(False))
        patches: list[tuple[str, Callable[..., Any]]] = [
            ("torch.accelerator.is_available", lambda: True),
            ("torch.accelerator.synchronize", lambda: None),
            ("toolkit.checkpoint.staging.pin", lambda memory: device.pin(memory) is memory),
            ("toolkit.checkpoint.staging.unpin", lambda memory: None),
        ]
        for name, function in patches:
            stack.enter_context(mock.patch(name, function))
        # Memory that is freed and taken again is none of its concerns.
        for module in (fsdp_param, fsdp_param_group):
            for name in ("alloc_storage", "free_storage"):
                stack.enter_context(mock.patch.object(module, name, create=True))
        stack.enter_context(mock.patch.object(torch.utils.checkpoint, COMPUTES_AGAIN, in_mode, create=True))
        stack.enter_context(HostFunctions())
        stack.enter_context(device)
        yield device
