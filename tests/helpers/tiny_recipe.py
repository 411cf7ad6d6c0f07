"""A recipe without Hugging Face: sequences of numbers, a small network in float64, several losses to try things with.

It is run in the tests' own process, and through launchers as a script.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch.optim.optimizer import register_optimizer_step_post_hook

from toolkit import Batch, BatchConfig, Config, OptimConfig, Task, TaskData, UserError, fine_tune
from toolkit.data.cache import digest_of
from toolkit.metrics import accuracy

CLASSES, FEATURES = 3, 4
FADES_AFTER = 4
"""Passes with gradients after which a network that fades leaves a part of itself out."""


@dataclass(frozen=True)
class TinyData:
    samples: int = 45
    """Training samples."""
    held_out: int = 23
    """Evaluation samples."""
    workers: int = 0
    """Loader processes."""
    unlabelled_below: int = 0
    """Samples with a smaller id carry no label, and so no unit."""


@dataclass(frozen=True)
class TinyModel:
    name: str | None = None
    """Not used; evaluate.only sets it."""
    flaw: Literal[
        "none", "unused", "spare", "mean", "average", "nan", "frozen", "batch_norm", "dropout", "lone", "metric",
        "layers", "noise", "fading", "lone_prediction", "encoder", "single"
    ] = "none"  # fmt: skip
    """What is wrong with it."""


@dataclass(frozen=True)
class Tiny(Config):
    batch: BatchConfig = BatchConfig(size=8, eval=5)
    """How many samples a step takes."""
    optim: OptimConfig = OptimConfig(lr=0.05, warmup=3)
    """How the weights are changed."""
    data: TinyData = TinyData()
    """Which data."""
    model: TinyModel = TinyModel()
    """Which model."""
    epochs: float | None = 2
    """Passes over the data."""


class Sequences:
    """Sequences of different lengths, with a label each; all of it follows from the id."""

    def __init__(self, count: int, first: int, unlabelled_below: int = 0) -> None:
        self.count, self.first, self.unlabelled_below = count, first, unlabelled_below

    def __len__(self) -> int:
        return self.count

    def lengths(self, ids: np.ndarray) -> np.ndarray:
        return 1 + (np.asarray(ids) * 7 + self.first) % 11

    def fetch(self, ids: Sequence[int]) -> list[dict[str, Any]]:
        samples = []
        for number, length in zip(ids, self.lengths(np.array(ids)), strict=True):
            values = np.random.default_rng(self.first + number).normal(size=(int(length), FEATURES))
            label = (
                -100 if number < self.unlabelled_below else int(values[:, 0].mean() > 0) + int(values[:, 1].mean() > 0)
            )
            samples.append({"id": number, "values": values, "label": label})
        return samples

    def digest(self) -> str:
        return digest_of(self.count, self.first)


def collate(samples: list[dict[str, Any]]) -> Batch:
    longest = max(len(sample["values"]) for sample in samples)
    values = torch.zeros(len(samples), longest, FEATURES, dtype=torch.float64)
    mask = torch.zeros(len(samples), longest, dtype=torch.float64)
    for row, sample in enumerate(samples):
        values[row, : len(sample["values"])] = torch.from_numpy(sample["values"])
        mask[row, : len(sample["values"])] = 1
    labels = torch.tensor([sample["label"] for sample in samples])
    return {"values": values, "mask": mask, "labels": labels, "ids": torch.tensor([s["id"] for s in samples])}


class Network(torch.nn.Module):
    # What models of Transformers say of themselves: how they are split, and what is sharded on its own.
    tp_plan: ClassVar = {"inner": "colwise", "outer": "rowwise"}
    _no_split_modules: ClassVar = {"Linear"}

    def __init__(self, flaw: str = "none") -> None:
        super().__init__()
        self.flaw = flaw
        self.inner = torch.nn.Linear(FEATURES, 16)
        self.layers = torch.nn.ModuleList(block() for _ in range(2)) if flaw == "layers" else None
        if flaw == "encoder":  # in evaluations it reads the weights of its parts itself
            layer = torch.nn.TransformerEncoderLayer(16, 2, 24, dropout=0.0, batch_first=True)
            self.layers = torch.nn.ModuleList([layer])
        self.outer = torch.nn.Linear(16, CLASSES)
        self.unused = torch.nn.Linear(2, 2) if flaw in ("unused", "spare") else None
        self.norm = torch.nn.BatchNorm1d(16) if flaw == "batch_norm" else None
        self.dropout = torch.nn.Dropout(0.2) if flaw == "dropout" else None
        self.noise = Noise() if flaw == "noise" else None
        self.fading = torch.nn.Linear(16, 16) if flaw == "fading" else None
        self.passes = 0
        self.to(torch.float32 if flaw == "single" else torch.float64)
        if flaw == "frozen":
            self.requires_grad_(False)

    def forward(self, values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        values, mask = (each.to(self.outer.weight.dtype) for each in (values, mask))
        hidden = torch.tanh(self.inner(values))
        for layer in self.layers or ():
            hidden = hidden + (layer(hidden, None, mask == 0) if self.flaw == "encoder" else layer(hidden))
        self.passes += torch.is_grad_enabled()
        if self.fading is not None and self.passes <= FADES_AFTER:
            hidden = hidden + self.fading(hidden)
        hidden = (hidden * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True)
        for layer in (self.norm, self.dropout, self.noise):
            hidden = hidden if layer is None else layer(hidden)
        return self.outer(hidden)


class Noise(torch.nn.Module):
    """Draws from torch's generator, and knows nothing of samples."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values + 0.2 * torch.randn_like(values) if self.training else values


def block() -> torch.nn.Module:
    """Return a layer of the kind that comes several times: matrices of two shapes, and vectors."""
    return torch.nn.Sequential(
        torch.nn.Linear(16, 24), torch.nn.Tanh(), torch.nn.Linear(24, 16), torch.nn.LayerNorm(16)
    )


class Spare(Network):
    """A network with a part that it leaves unused, whose code passes for that of Transformers."""

    __module__ = "transformers.models.spare"
    base_model_prefix = "base"


class Layered(Network):
    """A network with layers that come several times, which are what is split of it."""

    tp_plan: ClassVar = {"layers.*.0": "colwise", "layers.*.2": "rowwise"}


NETWORKS = {"spare": Spare, "layers": Layered}


def stop_after(steps: int, folder: Path) -> None:
    """Ask the run to stop once this process has done so many steps."""
    before: Any = None

    def count(optimizer: torch.optim.Optimizer, *_: object) -> None:
        nonlocal before
        # DeepSpeed steps one group after another.
        done = max(float(state["step"]) for state in optimizer.state.values())
        before = done - 1 if before is None else before
        if done - before == steps:
            (folder / "STOP").touch()

    register_optimizer_step_post_hook(count)


def keep_masters_in_float64() -> None:
    """Have DeepSpeed keep its master weights, and send gradients, as the network computes; it has no setting for it."""
    from deepspeed.runtime.base_optimizer import ZeROOptimizer
    from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3
    from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer

    ZeROOptimizer._configure_master_weights = lambda *_, **__: torch.float64
    for kind in (DeepSpeedZeroOptimizer, DeepSpeedZeroOptimizer_Stage3):

        def begin(self: Any, *inputs: Any, begin: Any = kind.__init__, **named: Any) -> None:
            # It refuses this type where it scatters sums, which it does all the same.
            scatters = named.pop("reduce_scatter", True)
            precise = dict.fromkeys(("communication_data_type", "gradient_accumulation_dtype"), torch.float64)
            begin(self, *inputs, **{**named, **precise, "reduce_scatter": False})
            self.reduce_scatter = scatters

        kind.__init__ = begin


def no_metric(predictions: Any, references: Any) -> Any:
    raise KeyError("no metric")


def task(config: Tiny) -> Task:
    flaw, seen = config.model.flaw, os.environ.get("TINY_SEEN")
    rank = os.environ.get("RANK", "0")
    calls = 0
    if "TINY_FLOAT64_MASTERS" in os.environ:
        keep_masters_in_float64()
    if rank == "0" and "TINY_STOP_AFTER" in os.environ:
        stop_after(int(os.environ["TINY_STOP_AFTER"]), Path(str(config.output)))

    def loss(model: Any, batch: Batch) -> torch.Tensor:
        nonlocal calls
        if seen and getattr(model, "training", False):
            with Path(seen, f"{rank}.jsonl").open("a") as file:
                file.write(json.dumps(batch["ids"].tolist()) + "\n")
        total = F.cross_entropy(model(batch["values"], batch["mask"]), batch["labels"], reduction="sum")
        calls += torch.is_grad_enabled()
        if flaw == "lone" and rank == "1" and calls == 5:
            raise UserError("this file of this process alone is broken")
        if flaw == "nan" and torch.is_grad_enabled():
            return total * float("nan") if calls == 5 else total
        if flaw == "average":
            return total / len(batch["labels"])
        return total if flaw != "mean" else F.cross_entropy(
            model(batch["values"], batch["mask"]), batch["labels"], reduction="none"
        )  # fmt: skip

    def predict(model: Any, batch: Batch) -> torch.Tensor:
        if flaw == "lone_prediction" and rank == "1":
            raise UserError("this prediction of this process alone is broken")
        logits: torch.Tensor = model(batch["values"], batch["mask"])
        return logits.argmax(-1)

    def export(module: torch.nn.Module, folder: Path, results: Mapping[str, Any]) -> None:
        folder.mkdir()
        save_file(module.state_dict(), folder / "model.safetensors")

    return Task(
        model=lambda runtime: NETWORKS.get(flaw, Network)(flaw),
        data=TaskData(
            train=Sequences(config.data.samples, 0, config.data.unlabelled_below),
            evaluate=Sequences(config.data.held_out, 10_000) if config.data.held_out else None,
            workers=config.data.workers,
        ),
        collate=collate,
        units=lambda batch: int((batch["labels"] != -100).sum()),
        loss=loss,
        predict=predict,
        metrics=[no_metric if flaw == "metric" else accuracy],
        baseline=1,
        export=export,
    )


if __name__ == "__main__":
    fine_tune(Tiny, task)
