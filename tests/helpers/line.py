"""The smallest task there is, without any library of models; as a script it trains one that forgets two parameters."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from toolkit import BatchConfig, Config, OptimConfig, Task, TaskData, fine_tune


@dataclass(frozen=True)
class Line(Config):
    """A straight line through sixteen points."""

    batch: BatchConfig = BatchConfig(size=4)
    optim: OptimConfig = OptimConfig(name="sgd")


class Points:
    """x = -1 ... 1, y = 2 x."""

    def __len__(self) -> int:
        return 16

    def fetch(self, ids: Sequence[int]) -> list[float]:
        return [int(number) / 7.5 - 1 for number in ids]

    def lengths(self, ids: np.ndarray) -> None:
        return None

    def digest(self) -> str:
        return "sixteen points"


class Forgetful(Points):
    """Loses a sample of each batch after so many."""

    def __init__(self, whole: int) -> None:
        self.whole = whole

    def fetch(self, ids: Sequence[int]) -> list[float]:
        self.whole -= 1
        return super().fetch(ids)[self.whole < 0 :]


def collate(samples: list[float]) -> dict[str, torch.Tensor]:
    x = torch.tensor(samples, dtype=torch.float32).unsqueeze(-1)
    return {"x": x, "y": 2 * x}


def squares(model: torch.nn.Module, batch: Any) -> torch.Tensor:
    distances: torch.Tensor = model(batch["x"]) - batch["y"]
    return distances.square()


def task(**changes: Any) -> Task:
    of_data = {
        name: changes.pop(name) for name in ("train", "evaluate", "files", "workers", "summary") if name in changes
    }
    usual: dict[str, Any] = {
        "model": lambda runtime: torch.nn.Linear(1, 1),
        "data": TaskData(**{"train": Points(), **of_data}),
        "collate": collate,
        "units": lambda batch: len(batch["y"]),
        "loss": lambda model, batch: squares(model, batch).sum(),
    }
    return Task(**{**usual, **changes})


class TwoHeads(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used = torch.nn.Linear(1, 1)
        self.forgotten = torch.nn.Linear(1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(x)  # type: ignore[no-any-return]


if __name__ == "__main__":
    fine_tune(Line, lambda config: task(model=lambda runtime: TwoHeads()))
