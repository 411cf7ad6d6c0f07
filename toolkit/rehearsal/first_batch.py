"""What is tried on the first micro-batch, before any step, because it would hang or fail obscurely later."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.distributed.fsdp import FSDPModule

from toolkit.data.loader import LoadedMicroBatch, MicroBatches
from toolkit.data.micro_batches import MicroBatch
from toolkit.distributed.pipeline import stage_of
from toolkit.distributed.runtime import Runtime
from toolkit.distributed.zero import gradients_seen
from toolkit.errors import UserError
from toolkit.grad_cache import loss_of_batch
from toolkit.models.compiled import compiling_explained
from toolkit.models.parameters import (
    MASTERS,
    buffers_kept,
    canonical,
    is_of_head,
    models_of_transformers,
    parameter_names,
    size_of,
)
from toolkit.pipelined_step import tokens_of
from toolkit.printed_plan import named
from toolkit.task import Task


class FirstBatch(NamedTuple):
    """What the first micro-batch tells of a model."""

    unused: list[str]
    """Parameters that get no gradient, and so are to be frozen."""
    changing_buffers: list[str]
    """Buffers that a forward pass changes, in any process: the statistics of batch norms, for example."""


def try_first_batch(
    task: Task,
    runtime: Runtime,
    model: torch.nn.Module,
    batches: MicroBatches,
    plans: Iterable[MicroBatch],
    begins: bool,
) -> FirstBatch:
    """Try the first micro-batch of this process, and return which parameters are unused and which buffers change.

    Where one lacks a gradient the other micro-batches of the first global batch are tried too: how it is cut decides
    nothing. A run that goes on freezes nothing that it had not frozen when it began.

    Args:
        task: what is trained.
        runtime: where.
        model: as Accelerate prepared it.
        batches: makes micro-batches of plans.
        plans: those of this process, of the first step alone, at least one.
        begins: whether the run begins here.

    Raises:
        UserError: the loss is not a differentiable scalar, or see `unused_parameters`.
    """
    always: list[str] | None = None  # without a gradient in all micro-batches of this process
    ever: dict[str, None] = {}  # in any of them
    changing: dict[str, None] = {}
    for plan in plans:
        micro = runtime.together(lambda plan=plan: batches.__getitems__(plan))  # type: ignore[misc]
        runtime.phase("trying the first micro-batch", plan.step + 1, patient=True, batch=micro)
        without, changed = runtime.together(
            lambda micro=micro: run_without_a_change(task, runtime, model, micro),  # type: ignore[misc]
            talking=True,
        )
        changing |= dict.fromkeys(changed)
        always = without if always is None else [name for name in always if name in without]
        ever |= dict.fromkeys(without)
        if not any(runtime.gather_all(without)):
            break
    module = runtime.accelerator.unwrap_model(model)
    # What other stages of a pipeline hold has its gradients there.
    elsewhere = [name for parameter, name in parameter_names(module).items() if parameter.is_meta]
    found = runtime.gather_all(([*(always or []), *elsewhere], list(ever), list(changing)))
    everywhere = [name for name in found[0][0] if begins and all(name in names for names, _, _ in found)]
    sometimes = [
        name for name in dict.fromkeys(name for _, names, _ in found for name in names) if name not in everywhere
    ]
    # DeepSpeed steps a weight without a gradient too, in one process as well.
    waits = runtime.size > 1 or runtime.strategy.zero is not None
    unused = runtime.together(lambda: unused_parameters(module, everywhere, sometimes if waits else []))
    return FirstBatch(unused, list(dict.fromkeys(name for _, _, names in found for name in names)))


def try_compiled(task: Task, runtime: Runtime, model: torch.nn.Module, batches: MicroBatches, plan: MicroBatch) -> None:
    """Run the first micro-batch of this process as a step will, so that layers are compiled now, or the run ends.

    Raises:
        UserError: a layer can't be compiled.
    """
    micro = runtime.together(lambda: batches.__getitems__(plan))
    runtime.phase("compiling the layers", plan.step + 1, patient=True, batch=micro)

    def run() -> None:
        with runtime.drawing_from(micro.dropout_rows), compiling_explained():
            run_without_a_change(task, runtime, model, micro)

    runtime.together(run, talking=True)


def run_without_a_change(
    task: Task, runtime: Runtime, model: torch.nn.Module, micro: LoadedMicroBatch
) -> tuple[list[str], list[str]]:
    """Run one micro-batch forward and backward, and name the parameters that got no gradient and the buffers that
    changed, which get their values back.

    Raises:
        UserError: the loss is not a differentiable scalar.
    """
    module = runtime.accelerator.unwrap_model(model)
    stage, masters = stage_of(model), vars(module).get(MASTERS)
    watched = runtime.strategy.sharded or masters is not None
    names = parameter_names(module)
    # Nothing has to be sent to know it. (Accelerate's own `no_sync` does nothing where a launcher started one process,
    # though the model is wrapped there too.)
    alone: Any = getattr(model, "no_sync", nullcontext)
    if runtime.strategy.sharded:
        alone = partial(gradients_of_units, model)
    elif masters is not None:
        model, alone = module, partial(gradients_seen, masters)
    with buffers_kept(module) as buffers, alone() as seen:

        def checked_loss(_: int = 0) -> torch.Tensor:
            total = loss_of_batch(task, model, runtime.to_device(micro.batch))
            if not isinstance(total, torch.Tensor) or total.ndim != 0 or not total.requires_grad:
                raise UserError(
                    f"the task's loss returned {described(total)}; it must return a scalar tensor that depends on the "
                    "weights: the sum (never the mean) over the units of the batch"
                )
            if stage is not None and not torch.isfinite(total):
                raise UserError(
                    f"the loss of the first micro-batch is {total:.4g} in a pipeline (batch.stages): either it is so "
                    "in one process too, or something that the model's code has before its layers is used in or after "
                    "them, and not in the first stage alone; leave batch.stages out to see which, and use "
                    "fsdp2_one_node.yaml of accelerate_configs/ if it is the second"
                )
            return total

        backward: Any = torch.autograd.backward if masters is not None else runtime.accelerator.backward
        if stage is not None:
            stage.run([tokens_of(micro)], checked_loss)
        else:
            backward(checked_loss())
        changed = [canonical(name) for name, buffer, before in buffers if not torch.equal(buffer, before)]
    without = [
        name
        for parameter, name in names.items()
        if parameter.requires_grad
        and not parameter.is_meta
        and (parameter not in seen if watched else parameter.grad is None)
    ]
    model.zero_grad(set_to_none=True)
    return without, changed


@contextmanager
def gradients_of_units(model: torch.nn.Module) -> Iterator[set[torch.nn.Parameter]]:
    """Collect which parameters of a sharded model get a gradient in this process, and let nothing be reduced.

    The processes would reduce what each has a gradient for. Where these are not the same parameters they would wait for
    each other, or add up what does not belong together. While a unit computes, whole parameters stand in place of the
    sharded ones; their gradients are dropped as they come.
    """
    seen: set[torch.nn.Parameter] = set()
    sharded = {(part, name): parameter for part in model.modules() for name, parameter in part._parameters.items()}
    known: set[torch.nn.Parameter] = set()
    handles: list[Any] = []

    def watch(unit: torch.nn.Module, _: Any) -> None:
        for part in unit.modules():
            for name, whole in part._parameters.items():
                own = sharded[part, name]
                if whole is not None and own is not None and whole.requires_grad and whole not in known:
                    known.add(whole)
                    note = partial(drop, own=own)
                    handles.append(whole.register_post_accumulate_grad_hook(note))  # type: ignore[no-untyped-call]

    def drop(whole: torch.Tensor, own: torch.nn.Parameter) -> None:
        seen.add(own)
        whole.grad = None

    handles += [unit.register_forward_pre_hook(watch) for unit in model.modules() if isinstance(unit, FSDPModule)]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def unused_parameters(model: torch.nn.Module, everywhere: Sequence[str], sometimes: Sequence[str]) -> list[str]:
    """Return the parameters that the task leaves unused, which are to be frozen: no process has a gradient for them.

    With several processes each would wait for their gradients in vain, and with one they would be saved as if they had
    been trained.

    Args:
        model: unwrapped.
        everywhere: the parameters that got no gradient in any micro-batch of the first global batch.
        sometimes: those that got none in some of them, if the processes would wait for each other then.

    Raises:
        UserError: some of them look forgotten rather than unused, or have a gradient in other micro-batches.
    """
    problems = []
    if sometimes:
        problems.append(
            f"{len(sometimes)} trainable parameter(s) get a gradient from some micro-batches and none from others: "
            f"{named(sometimes)}. With several processes training would hang or fail; let the loss depend on them "
            "whatever a batch holds, freeze them (requires_grad_(False)), or train in one process without DeepSpeed"
        )
    if forgotten := forgotten_parameters(model, everywhere):
        problems.append(
            f"{len(forgotten)} trainable parameter(s) get no gradient from the loss: {named(forgotten)}. With several "
            "processes training would hang or fail; freeze them (requires_grad_(False)), remove them, or let the loss "
            "depend on them"
        )
    if problems:
        raise UserError(*problems)
    return list(everywhere)


def forgotten_parameters(model: torch.nn.Module, without: Iterable[str]) -> list[str]:
    """Return of the parameters without a gradient those that somebody must have meant to train.

    The code of a model of Transformers is not the user's, and a task may well leave a part of it unused: a pooler, the
    token that stands for a mask, a table of positions that is computed and never learnt (`from_pretrained` makes it
    trainable again). Nobody leaves these unused on purpose: a part of a network that is not Transformers' own; the head
    of a model; some layers of a stack, as where the loss looks at an earlier one; anything, if it is more than half of
    a model. Embeddings do not count for that: where the vocabulary is large, they are more than all layers together.
    """
    names, without = parameter_names(model), set(without)
    missing = {parameter for parameter in model.parameters() if names[parameter] in without}
    forgotten = set(missing)
    for part in models_of_transformers(model):
        trained = {parameter for parameter in part.parameters() if parameter.requires_grad}
        tables = {p for module in part.modules() if isinstance(module, torch.nn.Embedding) for p in module.parameters()}
        unused = trained & missing
        if 2 * elements(unused - tables) <= elements(trained - tables):
            forgotten -= unused - head_of(part) - layers_left_out(part, trained, missing)
    return [names[parameter] for parameter in model.parameters() if parameter in forgotten]


def head_of(model: Any) -> set[torch.nn.Parameter]:
    """Return the parameters of the head of a model of Transformers."""
    found = {parameter for name, parameter in model.named_parameters() if is_of_head(model, name)}
    with suppress(NotImplementedError, AttributeError):  # a model of images has no output embeddings
        found.update(model.get_output_embeddings().parameters())
    return found


def layers_left_out(
    model: torch.nn.Module, trained: set[torch.nn.Parameter], missing: set[torch.nn.Parameter]
) -> set[torch.nn.Parameter]:
    """Return the parameters of whole layers without a gradient, where other layers of the same stack have one."""
    found: set[torch.nn.Parameter] = set()
    for stack in model.modules():
        if isinstance(stack, torch.nn.ModuleList):
            layers = [own for layer in stack if (own := trained.intersection(layer.parameters()))]
            without = [layer for layer in layers if layer <= missing]
            if len(without) < len(layers):
                found.update(*without)
    return found


def elements(parameters: Iterable[torch.Tensor]) -> int:
    """Return how many numbers these hold together."""
    return sum(size_of(parameter) for parameter in parameters)


def described(total: object) -> str:
    """Say what a loss returned that is no scalar tensor with a gradient."""
    if not isinstance(total, torch.Tensor):
        return f"a {type(total).__name__}"
    if total.ndim:
        return f"a tensor of shape {tuple(total.shape)}"
    return "a scalar that no gradient flows through (detached, or computed under no_grad)"
