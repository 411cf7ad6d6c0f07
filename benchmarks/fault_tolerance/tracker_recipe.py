"""The training that `tracker_kills.py` kills: that of `tiny.py`, slow until a file `fast` is beside its run folder."""

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from tiny import Tiny
from tiny import task as tiny_task

from toolkit import Batch, BatchConfig, CheckpointConfig, EvaluateConfig, OptimConfig, Task, fine_tune

SECONDS_A_STEP = 0.04


@dataclass(frozen=True)
class Slow(Tiny):
    batch: BatchConfig = BatchConfig(size=16, balance=False)
    """A step is one micro-batch."""
    optim: OptimConfig = OptimConfig(lr=0.001, schedule="constant", warmup=10)
    """How the weights are changed."""
    evaluate: EvaluateConfig = EvaluateConfig(every=25)
    """When it is evaluated."""
    checkpoint: CheckpointConfig = CheckpointConfig(every=30)
    """After a kill the steps since then are done again."""


def task(config: Slow) -> Task:
    made, fast = tiny_task(config), Path(str(config.output)).parent / "fast"

    def loss(model: Any, batch: Batch) -> torch.Tensor:
        if torch.is_grad_enabled() and not fast.exists():
            time.sleep(SECONDS_A_STEP)
        found: torch.Tensor = made.loss(model, batch)
        return found

    return replace(made, loss=loss)


if __name__ == "__main__":
    fine_tune(Slow, task)
