"""The tiny recipe, asking for more memory than there is, at the place and for the samples that it is told."""

import os
import resource
from dataclasses import dataclass, replace
from typing import Any, Literal

import psutil
import tiny_recipe
import torch
from tiny_recipe import Tiny
from torch.optim.optimizer import register_optimizer_step_pre_hook

from toolkit import Batch, Task, fine_tune
from toolkit.config.fields import execution
from toolkit.config.schema import CheckpointConfig

TOO_MUCH = 1 << 46
"""Bytes; no address space has so many left."""


@dataclass(frozen=True)
class Greed:
    place: Literal["none", "reading", "model", "forward", "backward", "optimizer", "evaluation", "prediction"] = (
        execution("none")
    )
    """Where it asks for too much."""
    above: int = execution(0)
    """Only where more samples than so many run at once."""
    after: int = execution(2)
    """Only after so many optimizer steps of a process."""
    rank: int | None = execution(None)
    """Only in this process."""
    limit: int | None = execution(None)
    """Ask for so many MB, and let the process have no more than half of that besides what it has."""


@dataclass(frozen=True)
class Greedy(Tiny):
    greed: Greed = Greed()
    """What goes wrong."""
    checkpoint: CheckpointConfig = CheckpointConfig(every=2)
    """When it is written down."""


class GreedyBackward(torch.autograd.Function):
    """The identity, whose backward pass asks for too much."""

    @staticmethod
    def forward(context: Any, values: torch.Tensor, greed: Greed) -> torch.Tensor:
        context.greed = greed
        return values.clone()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        ask(context.greed)
        return gradient, None


def ask(greed: Greed) -> None:
    """Ask for too much memory."""
    size = TOO_MUCH
    if greed.limit is not None:
        size = greed.limit << 20
        resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + size // 2,) * 2)
    torch.empty(size, dtype=torch.uint8).fill_(1)


def task(config: Greedy) -> Task:
    greed, steps = config.greed, 0
    made = tiny_recipe.task(config)

    def reached(place: str, samples: int = 1 << 30) -> bool:
        here = greed.rank is None or os.environ.get("RANK", "0") == str(greed.rank)
        late = steps >= greed.after or place in ("reading", "model")
        return place == greed.place and here and late and samples > greed.above

    def count(*_: object) -> None:
        nonlocal steps
        if reached("optimizer"):
            ask(greed)
        steps += 1

    def loss(model: Any, batch: Batch) -> torch.Tensor:
        trains, samples = torch.is_grad_enabled(), len(batch["labels"])
        if reached("forward" if trains else "evaluation", samples):
            ask(greed)
        total: torch.Tensor = made.loss(model, batch)  # type: ignore[operator]
        if trains and reached("backward", samples):
            total = GreedyBackward.apply(total, greed)
        return total

    def predict(model: Any, batch: Batch) -> Any:
        if reached("prediction", len(batch["labels"])):
            ask(greed)
        assert made.predict is not None
        return made.predict(model, batch)

    def model(runtime: Any) -> torch.nn.Module:
        if reached("model"):
            ask(greed)
        return made.model(runtime)

    if reached("reading"):
        ask(greed)
    handle = register_optimizer_step_pre_hook(count)
    # The hook is one of all optimizers of a process: in the tests' own it has to go with its run.
    HANDLES.append(handle)
    return replace(made, loss=loss, predict=predict, model=model)


HANDLES: list[Any] = []

if __name__ == "__main__":
    fine_tune(Greedy, task)
