"""Trains the tiny network with layers by every optimizer in one process group after another, and writes down what came
out: the last weights, and those that would be exported.

    accelerate launch ... tests/helpers/optimizer_layouts.py OUTPUT
"""

import sys
from pathlib import Path
from typing import Any

import torch
from tiny_recipe import Tiny, TinyModel, task

from toolkit.config.batch import BatchConfig
from toolkit.config.optim import OptimConfig
from toolkit.distributed.runtime import Runtime
from toolkit.distributed.start_runtime import start_runtime
from toolkit.loop import train
from toolkit.optimizer import exported_weights
from toolkit.prepare import prepare, whole_model

SHAPE: dict[str, Any] = {"lr": 0.02, "weight_decay": 0.1, "clip": 0.5, "warmup": 2, "average": 0.8}
SETTINGS: dict[str, OptimConfig] = {
    "adamw": OptimConfig(name="adamw", layer_decay=0.5, schedule="wsd", decay=4, floor=0.1, **SHAPE),
    "sgd": OptimConfig(name="sgd", layer_decay=0.5, schedule="cosine", restarts=2, **SHAPE),
    "adafactor": OptimConfig(name="adafactor", **SHAPE),
    "muon": OptimConfig(name="muon", layer_decay=0.5, schedule="linear", floor=0.2, **SHAPE),
}


def config_of(name: str, micro: int | None = 2) -> Tiny:
    """Return the settings of a run of 12 steps."""
    batch, model = BatchConfig(size=8, micro=micro, eval=5), TinyModel(flaw="layers")
    return Tiny(batch=batch, optim=SETTINGS[name], model=model, threads=1)


def results(runtime: Runtime, name: str, micro: int | None = 2) -> dict[str, Any]:
    """Train by an optimizer; return the last weights and those that are exported, in the main process."""
    config = config_of(name, micro)
    training = prepare(task(config), config, runtime)
    training.output.rows = []
    evaluation = train(training)
    found: dict[str, Any] = {"metrics": evaluation.metrics}
    for which in ("last", "exported"):
        with exported_weights(config if which == "exported" else Tiny(), training.model, training.optimizer.optimizer):
            model = whole_model(training)
            if model is not None:
                found[which] = {key: value.clone() for key, value in model.state_dict().items()}
    runtime.accelerator.free_memory()
    return found


if __name__ == "__main__":
    runtime = start_runtime(config_of("adamw"))
    every = {name: results(runtime, name) for name in SETTINGS}
    if runtime.is_main:
        torch.save(every, Path(sys.argv[1]))
    runtime.close()
