"""What is tried on the first micro-batch, before any step, because it would hang or fail obscurely later."""

from contextlib import nullcontext

import torch

from toolkit.errors import UserError
from toolkit.joint import loss_of_batch
from toolkit.loading import LoadedMicroBatch
from toolkit.runtime import Runtime
from toolkit.task import Task

NAMED = 8


def check_first_batch(task: Task, runtime: Runtime, model: torch.nn.Module, micro: LoadedMicroBatch) -> None:
    """Run one micro-batch forward and backward without changing anything, and look at the loss and the gradients.

    Raises:
        UserError: the loss is not a differentiable scalar, or a trainable parameter gets no gradient from it.
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
    without = [
        name
        for name, p in runtime.accelerator.unwrap_model(model).named_parameters()
        if p.requires_grad and p.grad is None
    ]
    model.zero_grad(set_to_none=True)
    with torch.no_grad():
        for buffer, before in buffers:
            buffer.copy_(before)
    if without:
        named = ", ".join(without[:NAMED]) + (f" and {len(without) - NAMED} more" if len(without) > NAMED else "")
        raise UserError(
            f"{len(without)} trainable parameter(s) get no gradient from the loss: {named}. With several processes training "
            "would hang or fail; freeze them (requires_grad_(False)), remove them, or let the loss depend on them"
        )


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
    return max((m.p for m in model.modules() if isinstance(m, torch.nn.modules.dropout._DropoutNd)), default=0.0)
