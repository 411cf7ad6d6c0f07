"""The smallest training that goes through everything, for `clean_exits.py`: a line through points, in plain PyTorch.

    accelerate launch --config_file accelerate_configs/cpu.yaml --num_processes 2 \\
        benchmarks/fault_tolerance/tiny.py --output runs/tiny

The loss on the held-out points falls from about 5 to below 0.1.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from toolkit import BatchConfig, Config, OptimConfig, Task, TaskData, fine_tune


@dataclass(frozen=True)
class Tiny(Config):
    batch: BatchConfig = BatchConfig(size=16, micro=4)
    """How many samples a step takes and how they are cut."""
    optim: OptimConfig = OptimConfig(lr=0.1)
    """How the weights are changed."""


class Points:
    """Points near a plane, from a fixed seed."""

    def __init__(self, samples: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.inputs = torch.randn(samples, 4, generator=generator)
        noise = torch.randn(samples, generator=generator)
        self.targets = self.inputs @ torch.tensor([1.0, -1.0, 2.0, 0.5]) + 0.1 * noise
        self.name = f"points-{samples}-{seed}"

    def __len__(self) -> int:
        return len(self.targets)

    def fetch(self, ids: Sequence[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return the points with these ids."""
        return [(self.inputs[number], self.targets[number]) for number in ids]

    def lengths(self, ids: np.ndarray) -> None:
        """Points have no length."""

    def digest(self) -> str:
        """Return what the content follows from."""
        return self.name


def collate(points: list[tuple[torch.Tensor, torch.Tensor]]) -> dict[str, torch.Tensor]:
    inputs, targets = zip(*points, strict=True)
    return {"inputs": torch.stack(inputs), "labels": torch.stack(targets)}


def task(config: Tiny) -> Task:
    return Task(
        model=lambda runtime: torch.nn.Linear(4, 1),
        data=TaskData(train=Points(211, 1), evaluate=Points(53, 2)),
        collate=collate,
        units=lambda batch: len(batch["labels"]),
        loss=lambda model, batch: F.mse_loss(model(batch["inputs"]).squeeze(-1), batch["labels"], reduction="sum"),
    )


if __name__ == "__main__":
    fine_tune(Tiny, task)
