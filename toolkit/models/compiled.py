"""The layers of a model compiled (`model.compile`): each as a whole, in place, so that its tensors keep their names."""

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F

from toolkit.attention import answer_for_transformers, watch_attention
from toolkit.distributed.mesh import Strategy
from toolkit.dropout import SampleDropout, watch_functions
from toolkit.errors import UserError
from toolkit.models.changes import remark

KINDS_OF_BATCHES = 16
"""How often one stack of layers may be compiled. Lengths and numbers of rows are variables of the code, but one is no
variable, and a mask, gradients and rows that are there or not make another program each."""
SHOWN = 300


def compile_layers(model: torch.nn.Module) -> None:
    """Have every layer of a model be compiled when it first runs; a layer takes rows and tokens of any number.

    Layers of a stack share what is compiled. Random numbers are drawn as by layers that are not compiled.

    Raises:
        UserError: the model has no stack of layers.
    """
    stacks = list(stacks_of(model))
    if not stacks:
        raise UserError(
            f"model.compile is true, but a {type(model).__name__} has no stack of equal layers; leave it out"
        )
    layers = [layer for stack in stacks for layer in stack]
    for layer in layers:
        compile_layer(layer)
    leave_out_what_depends_on_the_batch()
    # Beyond that a layer runs as it is written. The code that torch counts by is the same for all stacks.
    most = KINDS_OF_BATCHES * len(stacks)
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, most)
    kinds = ", ".join(f"{count} {kind}" for kind, count in Counter(type(layer).__name__ for layer in layers).items())
    remark(model, {"compiled": f"{kinds}, in training; the first micro-batch of each kind takes longer"})


def stacks_of(module: torch.nn.Module) -> Iterator[torch.nn.ModuleList]:
    """Yield the outermost lists of layers of one class."""
    for child in module.children():
        kinds = {type(layer) for layer in child} if isinstance(child, torch.nn.ModuleList) else set()
        if isinstance(child, torch.nn.ModuleList) and len(kinds) == 1 and torch.nn.ModuleList not in kinds:
            yield child
        else:
            yield from stacks_of(child)


def compile_layer(layer: torch.nn.Module) -> None:
    """Have a layer be compiled when it first runs in training mode.

    In evaluation it runs as it is written: where a text is generated token by token it would be compiled for ever.
    """
    layer.compile(dynamic=True, options={"fallback_random": True})
    compiled, written = layer._compiled_call_impl, layer._call_impl
    assert compiled is not None

    def call(*inputs: Any, **named: Any) -> Any:
        return (compiled if layer.training else written)(*inputs, **named)

    layer._compiled_call_impl = call


@cache
def leave_out_what_depends_on_the_batch() -> None:
    """Have dropout and attention be called by compiled code as they are written.

    They ask Python which samples the rows hold and how long these are (`toolkit.batch_layout`), which compiled code
    would take for always the same, and the compiler of torch 2.13 makes other masks of some shapes on CPUs.
    """
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    disable: Any = torch.compiler.disable
    watch_functions()
    watch_attention()
    answer_for_transformers()
    SampleDropout.forward = disable(SampleDropout.forward)  # type: ignore[method-assign]
    F.dropout = disable(F.dropout)
    F.scaled_dot_product_attention = disable(F.scaled_dot_product_attention)
    ALL_ATTENTION_FUNCTIONS["sdpa"] = disable(ALL_ATTENTION_FUNCTIONS["sdpa"])


def is_compiled(model: torch.nn.Module) -> bool:
    """Return whether layers of a model are compiled."""
    return any(module._compiled_call_impl is not None for module in model.modules())


def as_written(model: torch.nn.Module) -> AbstractContextManager[object]:
    """Run a model in the block without compiling anything."""
    return torch.compiler.set_stance("force_eager") if is_compiled(model) else nullcontext()


def check_compiles(model: torch.nn.Module, strategy: Strategy) -> None:
    """Refuse what was not found to have the same numbers with compiled layers.

    Raises:
        UserError: the launch configuration asks for it.
    """
    if not is_compiled(model):
        return
    if strategy.tensor > 1:
        raise UserError(
            f"model.compile is true, and the launch configuration asks for {strategy.description}: layers that are "
            "split over processes are not compiled; leave one of them out"
        )
    if strategy.zero is not None:
        raise UserError(
            f"model.compile is true, and the launch configuration asks for {strategy.zero.description}: its hooks in "
            "the layers are not compiled; leave one of them out, or use an FSDP2 file of accelerate_configs/"
        )
    if strategy.checkpoint_activations:
        raise UserError(
            "model.compile is true, and the launch configuration asks for fsdp_activation_checkpointing: what a "
            "compiled layer keeps is not computed again; leave one of them out"
        )


@contextmanager
def compiling_explained() -> Iterator[None]:
    """Say in one message what is to be done where torch can't compile a layer.

    Raises:
        UserError: it can't.
    """
    try:
        yield
    except Exception as error:
        # Whoever compiles nothing has not loaded it, which takes seconds.
        exceptions = sys.modules.get("torch._dynamo.exc")
        if exceptions is None or not isinstance(error, exceptions.TorchDynamoException):
            raise
        raise UserError(explanation(error)) from None


def explanation(error: Exception) -> str:
    """Return what a failure to compile is, and what is to be done."""
    cause = getattr(error, "inner_exception", error)
    if type(cause).__name__ == "InvalidCxxCompiler":
        return (
            "model.compile is true, but torch finds no C++ compiler that works (g++, or what the environment variable "
            "CXX names); install one, or leave model.compile out: it changes no number"
        )
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    text = (lines or [""])[0][:SHOWN]
    return (
        f"model.compile is true, but torch could not compile a layer of the model ({type(cause).__name__}: {text}); "
        "leave model.compile out: it changes no number"
    )
