"""The notebook's model and sentences as a recipe of the toolkit: three epochs of two steps, of eight sentences and of
one.

python one_batch_recipe.py --output runs/one
accelerate launch --config_file ../accelerate_configs/cpu.yaml --num_processes 2 one_batch_recipe.py --output runs/two
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from one_batch_model import SENTENCES, batch_of, build_model, summed_loss, units_of
from safetensors.torch import save_file

from toolkit import Batch, BatchConfig, Config, OptimConfig, Task, TaskData, fine_tune
from toolkit.data.cache import digest_of


@dataclass(frozen=True)
class OneBatch(Config):
    batch: BatchConfig = BatchConfig(size=8)
    """How many sentences a step takes."""
    optim: OptimConfig = OptimConfig(lr=0.003)
    """How the weights are changed."""
    epochs: float | None = 3
    """Passes over the sentences."""


class Sentences:
    """The nine sentences: a batch of eight, and a last one of one."""

    def __len__(self) -> int:
        return len(SENTENCES)

    def fetch(self, ids: Sequence[int]) -> list[str]:
        return [SENTENCES[number] for number in ids]

    def lengths(self, ids: np.ndarray) -> np.ndarray:
        return np.array([len(sentence.encode()) for sentence in SENTENCES])[ids]

    def digest(self) -> str:
        return digest_of(*SENTENCES)


def export(module: torch.nn.Module, folder: Path, results: Mapping[str, Any]) -> None:
    """Write the weights."""
    folder.mkdir()
    save_file(module.state_dict(), folder / "model.safetensors")


def loss(model: torch.nn.Module, batch: Batch) -> torch.Tensor:
    """Return the loss summed over the labelled tokens."""
    return summed_loss(model(batch["tokens"]), batch["labels"])


def task(config: OneBatch) -> Task:
    """Return what is trained."""
    return Task(
        model=lambda runtime: build_model(),
        data=TaskData(train=Sentences()),
        collate=batch_of,
        units=units_of,
        loss=loss,
        export=export,
    )


if __name__ == "__main__":
    fine_tune(OneBatch, task)
