"""The one rule of a task's loss, tried on the first micro-batch: a sum over the units, so that its halves add up to it.

A mean would make the result depend on how a batch is cut, and nothing else would notice.
"""

import warnings
from dataclasses import dataclass, replace
from math import isclose, isfinite

import torch

from toolkit.data.loader import LoadedMicroBatch, MicroBatches
from toolkit.data.micro_batches import MicroBatch
from toolkit.distributed.pipeline import one_pass
from toolkit.distributed.runtime import Runtime
from toolkit.errors import SharedUserError
from toolkit.models.parameters import reshard
from toolkit.task import Task

EXACT, ROUNDED = 1e-3, 5e-2
"""Relative: in float32 and in shorter formats."""
LIKE_A_MEAN = 0.2
"""The halves of a mean add up to about twice the whole: of tokens exactly so where both have as many."""


@dataclass(frozen=True)
class Halved:
    """The loss of a micro-batch, and of its halves together."""

    samples: int = 0
    whole: float = 0.0
    halves: float = 0.0
    units: tuple[float, float] = (0, 0)
    """Those of the whole, and those of its halves together."""


@torch.no_grad()
def check_loss_rule(
    task: Task, runtime: Runtime, model: torch.nn.Module, batches: MicroBatches, plan: MicroBatch
) -> str | None:
    """Compare the loss of this process's first micro-batch with that of its halves, all processes together.

    Dropout is off meanwhile. Returns a warning where they differ by other than rounding.

    Raises:
        SharedUserError: the loss is a mean, or its units do not add up.
    """
    half = len(plan.ids) // 2
    # Where there is nothing to halve the same number of passes is run: the others may wait in each of them.
    parts = [plan.ids, plan.ids[:half] or plan.ids, plan.ids[half:]]
    loaded = runtime.together(lambda: [batches.__getitems__(replace(plan, ids=ids)) for ids in parts])
    was_training = model.training
    model.eval()
    with warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter("always")
        losses = runtime.together(lambda: [loss_of(task, runtime, model, part) for part in loaded], talking=True)
    model.train(was_training)
    reshard(model)
    mine = Halved()
    if half and not plan.dummy and runtime.is_counted:
        mine = Halved(
            len(plan.ids), losses[0], losses[1] + losses[2], (loaded[0].units, loaded[1].units + loaded[2].units)
        )
    found = [halved for halved in runtime.gather_all(mine) if halved.samples]
    # What torch says of a target of another shape than the prediction explains more than the sums.
    shapes = [str(warning.message) for warning in noted if "target size" in str(warning.message)]
    warning = verdict(found, EXACT if is_exact(model, runtime) else ROUNDED)
    return shapes_differ(shapes) if any(runtime.gather_all(shapes)) else warning


def shapes_differ(notes: list[str]) -> str:
    """Return the warning for a loss that torch broadcasts; `notes` is what torch said of it in this process."""
    note = "a target has another shape than its prediction"
    if notes:
        note = notes[0].partition(". ")[0]
    return (
        f"the loss compares tensors of different shapes ({note}): each prediction is held against the targets of all "
        "samples; give both the same shape, for example with .squeeze(-1)"
    )


def loss_of(task: Task, runtime: Runtime, model: torch.nn.Module, micro: LoadedMicroBatch) -> float:
    """Return the loss of a micro-batch, and 0 where another stage of a pipeline has it."""
    assert callable(task.loss)
    with one_pass(model):
        return float(task.loss(model, runtime.to_device(micro.batch)))
    return 0.0


def is_exact(model: torch.nn.Module, runtime: Runtime) -> bool:
    """Return whether the model computes in 32 bits or more."""
    exact = {torch.float32, torch.float64}
    return runtime.precision == "no" and {parameter.dtype for parameter in model.parameters()} <= exact


def verdict(found: list[Halved], bound: float) -> str | None:
    """Judge what all processes found; return a warning, or None.

    Raises:
        SharedUserError: the loss is a mean, or its units do not add up.
    """
    if not found:
        return None
    first = found[0]
    for halved in found:
        if not isclose(*halved.units, rel_tol=1e-9):
            raise SharedUserError(
                f"the task counts {halved.units[0]:.10g} unit(s) in a micro-batch of {halved.samples} samples and "
                f"{halved.units[1]:.10g} in its halves together; `units` has to count what the loss is summed over "
                "(samples, labelled tokens, or the sum of their weights), so that they add up"
            )
    whole, halves = sum(halved.whole for halved in found), sum(halved.halves for halved in found)
    if (
        not isfinite(whole)
        or not isfinite(halves)
        or abs(halves - whole) <= bound * max(abs(whole), abs(halves), 1e-12)
    ):
        return None
    compared = (
        f"a micro-batch of {first.samples} samples has the loss {first.whole:.4g}, "
        f"and its halves together {first.halves:.4g}"
    )
    if abs(halves - 2 * whole) <= LIKE_A_MEAN * abs(halves):
        raise SharedUserError(
            f"the task's loss is a mean ({compared}); it must be the sum over the units, for example with "
            "reduction='sum', and `units` counts "
            "them: the loop adds both up over all micro-batches and processes and divides once (--rehearse false "
            "leaves this check out)"
        )
    return (
        f"the loss depends on how samples are put into batches ({compared}, without dropout): the model lets samples "
        "or padding act on each other, so that numbers differ between topologies"
    )
