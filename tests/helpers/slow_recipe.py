"""A recipe that gets into trouble where it is told to, so that a test knows what each process is doing when it
interferes.

A process that comes to the place of the trouble says so with a file, and holds there until another file lets it go, or
fails. It does so once: the same command goes on without the trouble.
"""

import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from tiny_recipe import Network, Sequences, collate

from toolkit import (
    Batch,
    BatchConfig,
    CheckpointConfig,
    Config,
    EvaluateConfig,
    OptimConfig,
    Task,
    TaskData,
    UserError,
    fine_tune,
)
from toolkit.config.fields import execution


@dataclass(frozen=True)
class Trouble:
    what: Literal["none", "hold", "defect", "user_error"] = execution("none")
    """What happens: wait until the file `go` is there, an error of the recipe, or an error that the user can fix."""
    place: Literal["reading", "model", "loss", "evaluation", "metric", "fetch"] = execution("loss")
    """Where it happens."""
    at: int = execution(1)
    """At which call in a process: in the loss that is the step of a run that starts anew."""
    rank: int | None = execution(None)
    """In which process; null means in all of them."""
    signs: str | None = execution(None)
    """The folder of the files by which processes and test tell each other."""
    nan: int | None = None
    """The loss of every micro-batch with this sample is not a number."""


@dataclass(frozen=True)
class SlowData:
    workers: int = execution(0)
    """Loader processes."""


@dataclass(frozen=True)
class Slow(Config):
    # One micro-batch for each process in each step, so that calls of the loss count steps.
    batch: BatchConfig = BatchConfig(size=8, balance=False, eval=1)
    """How many samples a step takes."""
    optim: OptimConfig = OptimConfig(lr=0.05, warmup=3)
    """How the weights are changed."""
    evaluate: EvaluateConfig = EvaluateConfig(every=25)
    """When it is evaluated."""
    checkpoint: CheckpointConfig = CheckpointConfig(every=10)
    """When it is written down."""
    data: SlowData = SlowData()
    """How it is read."""
    trouble: Trouble = Trouble()
    """What goes wrong."""
    epochs: float | None = None
    """Passes over the data."""
    steps: int | None = 120
    """Optimizer steps."""
    rehearse: bool = execution(False)
    """Whether the end is tried first: its batches would be counted with the others."""


class Place:
    """Counts the calls of a process at each place, and makes the trouble."""

    def __init__(self, trouble: Trouble) -> None:
        self.trouble = trouble
        self.rank = int(os.environ.get("RANK", "0"))
        self.calls = dict.fromkeys(("reading", "model", "loss", "evaluation", "metric", "fetch"), 0)
        # The loss is tried once before the first step.
        self.calls["loss"] = -1

    def sign(self, name: str, text: str = "") -> None:
        """Leave a file for the test, written whole."""
        if self.trouble.signs is not None:
            file = Path(self.trouble.signs, f"{name}-{self.rank}")
            partial = file.with_suffix(f".{os.getpid()}")
            partial.write_text(text, encoding="utf-8")
            partial.replace(file)

    def reached(self, place: str) -> None:
        """Make the trouble if it is here, in this call, in this process, and for the first time."""
        self.calls[place] += 1
        trouble = self.trouble
        if trouble.what == "none" or (place, self.calls[place]) != (trouble.place, trouble.at):
            return
        if trouble.rank not in (None, self.rank) or Path(str(trouble.signs), f"reached-{self.rank}").exists():
            return
        self.sign("reached", str(os.getpid()))
        if trouble.what == "defect":
            raise ValueError(f"a defect in process {self.rank}")
        if trouble.what == "user_error":
            raise UserError(f"a file of process {self.rank} is broken")
        while not Path(str(trouble.signs), "go").exists():
            time.sleep(0.01)

    def inform(self, runtime: Any) -> None:
        """Tell the test, from a thread, what this process was asked and what it last heard of the other one."""
        told: dict[str, str] = {}
        while True:
            heard = {"heard": runtime.stop.reason or ""}
            heard |= {f"sees-{rank}-by": sign.describe() for rank, sign in list(runtime.watchdog.signs.items())}
            for name, text in heard.items():
                if text and told.get(name) != text:
                    self.sign(name, text)
                    told[name] = text
            time.sleep(0.02)


class TroubledSequences(Sequences):
    """Sequences whose reading may be in trouble."""

    def __init__(self, place: Place) -> None:
        super().__init__(45, 0)
        self.place = place

    def fetch(self, ids: Sequence[int]) -> list[dict[str, Any]]:
        self.place.reached("fetch")
        return super().fetch(ids)


class SlowMetric:
    """A metric that has nothing to say, and may take its time for it."""

    def __init__(self, place: Place) -> None:
        self.place = place

    def __call__(self, predictions: Any, references: Any) -> dict[str, float]:
        self.place.reached("metric")
        return {"nothing": 0.0}


def task(config: Slow) -> Task:
    place = Place(config.trouble)
    place.sign("process", str(os.getpid()))
    place.reached("reading")

    def model(runtime: Any) -> torch.nn.Module:
        if config.trouble.signs is not None:
            threading.Thread(target=place.inform, args=(runtime,), daemon=True).start()
        place.reached("model")
        return Network("dropout")

    def loss(model: Any, batch: Batch) -> torch.Tensor:
        place.reached("loss" if torch.is_grad_enabled() else "evaluation")
        total = F.cross_entropy(model(batch["values"], batch["mask"]), batch["labels"], reduction="sum")
        broken = torch.is_grad_enabled() and config.trouble.nan in batch["ids"].tolist()
        return total * float("nan") if broken else total

    def export(module: torch.nn.Module, folder: Path, results: Mapping[str, Any]) -> None:
        folder.mkdir()
        save_file(module.state_dict(), folder / "model.safetensors")

    return Task(
        model=model,
        data=TaskData(train=TroubledSequences(place), evaluate=Sequences(12, 10_000), workers=config.data.workers),
        collate=collate,
        units=lambda batch: len(batch["labels"]),
        loss=loss,
        predict=lambda model, batch: [0] * len(batch["labels"]),
        metrics=[SlowMetric(place)],
        export=export,
    )


if __name__ == "__main__":
    fine_tune(Slow, task)
