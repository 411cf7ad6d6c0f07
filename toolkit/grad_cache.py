"""Losses that couple the samples of a step, exact on any topology by gradient caching (Gao et al., arXiv 2101.06983).

The representations of the whole global batch are gathered from all processes, every process takes the gradient of the
one loss with respect to them, and each micro-batch then runs backward with its own part. Where a process runs several
micro-batches it needs the representations of all of them first, which costs one more forward pass; with one micro-batch
nothing is run twice.
"""

import numpy as np
import torch

from toolkit.data.loader import LoadedMicroBatch
from toolkit.distributed.memory import StepLacksMemoryError
from toolkit.distributed.phase import FORWARD_PASS
from toolkit.losses import full_precision
from toolkit.randomness import seed_for
from toolkit.task import Batch, GlobalBatchLoss, Task
from toolkit.train_state import TrainState


def loss_of_batch(task: Task, model: torch.nn.Module, batch: Batch) -> torch.Tensor:
    """Return the loss of a batch that stands for itself, summed over its units."""
    if not isinstance(task.loss, GlobalBatchLoss):
        return task.loss(model, batch)
    embeddings, extra = embed(task.loss, model, batch)
    return task.loss.loss(embeddings, extra)


def embed(
    global_loss: GlobalBatchLoss, model: torch.nn.Module, batch: Batch
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return what a global-batch loss is made of, in at least float32, and what it has to know beside."""
    return full_precision(global_loss.embed(model, batch)), None if global_loss.extra is None else global_loss.extra(
        batch
    )


class GlobalBatchStep:
    """The global-batch loss of one step, in the parts that the micro-batches of this process contribute."""

    def __init__(
        self, state: TrainState, step: int, micro_batches: list[LoadedMicroBatch], global_loss: GlobalBatchLoss
    ) -> None:
        self.state = state
        self.step = step
        self.global_loss = global_loss
        self.micro_batches = micro_batches
        self.value = torch.zeros((), device=state.runtime.device)
        self.gradients: list[torch.Tensor] | None = None
        if len(micro_batches) > 1:
            runtime, embeddings, extra = state.runtime, [], []
            for number, micro in enumerate(micro_batches):
                runtime.phase(FORWARD_PASS, step + 1, batch=micro)
                # The same dropout as in the pass that follows.
                runtime.seed(seed_for(state.config.seed, "dropout", step, runtime.data_parallel_rank, number))
                with torch.no_grad(), runtime.drawing_from(micro.dropout_rows):
                    tensor, known = embed(global_loss, state.model, runtime.to_device(micro.batch))
                embeddings.append(tensor)
                extra.append(known)
            self.gradients = self.gradients_of(embeddings, extra)

    def part(self, number: int, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what a micro-batch runs backward from, and its share of the value of the loss.

        The first is no loss: its gradient with respect to the weights is this micro-batch's part of the loss's.
        """
        embeddings, extra = embed(self.global_loss, self.state.model, batch)
        if self.gradients is None:
            self.gradients = self.gradients_of([embeddings.detach()], [extra])
        value, self.value = self.value, torch.zeros_like(self.value)
        return (embeddings * self.gradients[number]).sum(), value

    def gradients_of(self, embeddings: list[torch.Tensor], extra: list[torch.Tensor | None]) -> list[torch.Tensor]:
        """Return the gradient of the loss of the global batch with respect to each tensor here."""
        real = [not micro.plan.dummy for micro in self.micro_batches]
        mine = [number for micro in self.micro_batches if not micro.plan.dummy for number in micro.ids]
        owners = self.state.runtime.gather_all(mine)
        if None in owners:
            # A process had no memory for its representations (`toolkit.out_of_memory`).
            raise StepLacksMemoryError(self.step)
        self.state.gathers = "now"
        owners = self.state.runtime.counted(owners)
        ids = np.array([number for owner in owners for number in owner])
        # By sample id: a sum of floating-point numbers depends on its order, and the topology may not decide it.
        order = self.state.runtime.put(torch.from_numpy(np.argsort(ids, kind="stable")))
        counts = [len(owner) for owner in owners]
        whole = self.gathered(embeddings, real, counts)[order].requires_grad_()
        known = None
        if self.global_loss.extra is not None:
            tensors = [tensor for tensor in extra if tensor is not None]
            known = self.gathered(tensors, real, counts)[order]
        self.state.gathers = "no more"
        with torch.enable_grad():
            loss = self.global_loss.loss(whole, known)
        (gradient,) = torch.autograd.grad(loss, whole)
        # Every process computed the whole loss; one of them reports it.
        if self.state.runtime.is_main:
            self.value = loss.detach()
        unsorted = torch.empty_like(gradient)
        unsorted[order] = gradient
        start = sum(counts[: self.state.runtime.data_parallel_rank])
        parts = []
        for tensor, counted in zip(embeddings, real, strict=True):
            if counted:
                parts.append(unsorted[start : start + len(tensor)])
                start += len(tensor)
            else:
                parts.append(torch.zeros_like(tensor))
        return parts

    def gathered(self, tensors: list[torch.Tensor], real: list[bool], counts: list[int]) -> torch.Tensor:
        """Return the rows of all processes, by process, without those of dummy micro-batches."""
        own = [tensor for tensor, counted in zip(tensors, real, strict=True) if counted]
        rows = torch.cat(own) if own else tensors[0][:0]
        return self.state.runtime.gather_rows(rows, counts)
