"""The tiny recipe, in whose training memory runs out at the passes that it is told, for a real request of too much."""

import os
import resource
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import psutil
import tiny_recipe
import torch
import torch.nn.functional as F
from tiny_recipe import Tiny

from toolkit import Batch, Task, fine_tune
from toolkit.config.fields import execution
from toolkit.distributed.phase import BACKWARD_PASS, FORWARD_PASS
from toolkit.task import GlobalBatchLoss


@dataclass(frozen=True)
class Lack:
    passes: tuple[int, ...] = execution(())
    """The forward passes of a process in which memory runs out: those of its steps, counted from 1."""
    place: Literal["before", "after", "head", "middle"] = execution("before")
    """Where: before or after the forward pass, or in the backward pass, of the loss or between two layers."""
    rank: int | None = execution(None)
    """Only in this process."""
    coupled: bool = False
    """Whether the loss couples the samples of a step."""
    element: int = execution(0)
    """Megabytes that each element of a batch takes in training, padding included."""
    limit: int | None = execution(None)
    """Let the process have only so many megabytes of address space besides what it has."""


@dataclass(frozen=True)
class Lacking(Tiny):
    lack: Lack = Lack()
    """Where memory runs out."""


def ask(*_: object) -> None:
    """Ask for more memory than there is."""
    torch.empty(1 << 46, dtype=torch.uint8)


class Head(torch.autograd.Function):
    """The identity, whose backward pass asks for too much."""

    @staticmethod
    def forward(context: Any, values: torch.Tensor) -> torch.Tensor:
        return values.clone()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        ask()


def coupled(values: torch.Tensor, _: Any) -> torch.Tensor:
    """Return how far each sample is from being told apart from the others, summed."""
    return -F.log_softmax(values @ values.T, dim=1).diagonal().sum()


def task(config: Lacking) -> Task:
    made, lack = tiny_recipe.task(config), config.lack
    here = lack.rank is None or os.environ.get("RANK", "0") == str(lack.rank)
    passes = 0
    runtimes: list[Any] = []

    def now(place: str) -> bool:
        trains = runtimes[0].phase.phase.what in (FORWARD_PASS, BACKWARD_PASS)
        return trains and here and place == lack.place and passes in lack.passes

    def lacking(run: Any, model: Any, batch: Batch) -> torch.Tensor:
        """Run the model, and run out of memory where that was asked for."""
        nonlocal passes
        if not model.training:
            return run(model, batch)  # type: ignore[no-any-return]
        passes += runtimes[0].phase.phase.what == FORWARD_PASS
        if now("before"):
            ask()
        values: torch.Tensor = run(model, batch)
        torch.empty(lack.element * batch["mask"].numel() << 20, dtype=torch.uint8)
        if now("after"):
            ask()
        return Head.apply(values) if now("head") else values  # type: ignore[no-untyped-call,no-any-return]

    loss: Any = partial(lacking, made.loss)
    if lack.coupled:
        loss = GlobalBatchLoss(partial(lacking, lambda model, batch: model(batch["values"], batch["mask"])), coupled)
    if lack.limit is not None:
        most = psutil.Process().memory_info().vms + (lack.limit << 20)
        resource.setrlimit(resource.RLIMIT_AS, (most, resource.getrlimit(resource.RLIMIT_AS)[1]))

    def model(runtime: Any) -> torch.nn.Module:
        runtimes[:] = [runtime]
        built: Any = made.model(runtime)
        # By then the weights of the outer layer have their gradient, and those of the inner one have none.
        built.inner.register_full_backward_pre_hook(lambda *_: ask() if now("middle") else None)
        return built  # type: ignore[no-any-return]

    return replace(made, loss=loss, model=model)


if __name__ == "__main__":
    fine_tune(Lacking, task)
