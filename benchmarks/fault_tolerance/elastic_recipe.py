"""The training that `elastic_chain.py` moves between process counts: a model of `topology_work.py`, in float64.

    STOP_AT=9 SEEN=folder python benchmarks/fault_tolerance/elastic_recipe.py --model BERT --output runs/elastic

STOP_AT makes the file STOP in the run folder when that step begins; SEEN is a folder to which each process writes, for
every forward pass of the training, the step and the samples in it. Nothing in the toolkit knows of either.
"""

import json
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

import torch
from topology_models import MODELS, Images, Source
from topology_work import GLOBAL_BATCH, SAMPLES, work_task

from toolkit import BatchConfig, Config, OptimConfig, Task, fine_tune
from toolkit.distributed.phase import PhaseTracker


@dataclass(frozen=True)
class Elastic(Config):
    batch: BatchConfig = BatchConfig(size=GLOBAL_BATCH, eval=16)
    """How many samples a step takes and how they are cut."""
    optim: OptimConfig = OptimConfig(lr=5e-3)
    """How the weights are changed."""
    model: Literal["plain transformer", "BERT", "ViT", "DINOv2", "T5", "Llama", "Llama, LoRA"] = "BERT"
    """Which model."""
    epochs: float | None = 2
    """Passes over the training data."""
    samples: int = SAMPLES
    """Training samples."""


class Numbered:
    """A source whose samples carry their ids."""

    def __init__(self, source: Source | Images) -> None:
        self.source = source
        self.lengths, self.digest = source.lengths, source.digest

    def __len__(self) -> int:
        return len(self.source)

    def fetch(self, ids: Any) -> list[Any]:
        """Return the samples with these ids, each beside its id."""
        return list(zip(ids, self.source.fetch(ids), strict=True))


class Step:
    """The step that is under way, listened to from outside."""

    def __init__(self, output: Path) -> None:
        self.number = 0
        self.stop_at = int(os.environ.get("STOP_AT", "0"))
        self.stop_file = output / "STOP"

    def listen(self) -> None:
        """Have every change of activity told."""
        tell = PhaseTracker.__call__

        def told(phases: PhaseTracker, what: str, step: int | None = None, *rest: Any, **more: Any) -> None:
            tell(phases, what, step, *rest, **more)
            # Steps begin with this; before it a micro-batch is tried which is no part of the training.
            if what == "agreeing with the others" and step is not None:
                self.number = step
            if what == "waiting for data" and step == self.stop_at:
                self.stop_file.touch()

        PhaseTracker.__call__ = told  # type: ignore[method-assign]


def task(config: Elastic) -> Task:
    whole = work_task(config.model, config.samples)
    step = Step(Path(str(config.output)))
    step.listen()
    seen = os.environ.get("SEEN")
    rank = os.environ.get("RANK", "0")

    def collate(samples: list[Any]) -> dict[str, torch.Tensor]:
        ids, plain = zip(*samples, strict=True)
        return {**whole.collate(list(plain)), "ids": torch.tensor(ids)}

    def loss(model: Any, batch: Any) -> torch.Tensor:
        if seen and step.number and torch.is_grad_enabled():
            with Path(seen, f"{rank}.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps({"step": step.number, "ids": batch["ids"].tolist()}) + "\n")
        return whole.loss(model, batch)

    assert whole.data.evaluate is not None
    assert config.model in MODELS
    data = replace(whole.data, train=Numbered(whole.data.train), evaluate=Numbered(whole.data.evaluate))
    return replace(whole, data=data, collate=collate, loss=loss)


if __name__ == "__main__":
    fine_tune(Elastic, task)
