"""Trying something out on a training and leaving no trace of it."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import numpy as np
import torch

from toolkit.train_state import TrainState


@contextmanager
def as_it_was(training: TrainState) -> Iterator[None]:
    """Put weights, buffers, gradients, optimizer, gradient scaler and random generators back when the block ends, bit for bit.

    Costs a copy of the weights and of the optimizer's state in host memory while the block lasts.
    """
    optimizer, scaler = training.optimizer.optimizer, training.runtime.accelerator.scaler
    modes = [(module, module.training) for module in training.model.modules()]
    gradients = [(parameter, parameter.grad) for parameter in training.model.parameters()]
    for parameter, _ in gradients:
        # Not only emptied: a gradient that is there would be added to.
        parameter.grad = None
    tensors = [*training.model.parameters(), *training.model.buffers()]
    state = {parameter: dict(entries) for parameter, entries in optimizer.state.items()}
    tensors += [value for entries in state.values() for value in entries.values() if isinstance(value, torch.Tensor)]
    kept = [(tensor, tensor.detach().to("cpu", copy=True)) for tensor in tensors]
    settings = [
        {name: deepcopy(value) for name, value in group.items() if name != "params"} for group in optimizer.param_groups
    ]
    scale = deepcopy(scaler.state_dict()) if scaler is not None else None
    generators = generator_states()
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, content in kept:
                tensor.copy_(content)
        optimizer.state.clear()
        optimizer.state.update(state)
        for group, before in zip(optimizer.param_groups, settings, strict=True):
            group.update(before)
        optimizer.__dict__.pop("found_inf", None)
        for parameter, gradient in gradients:
            parameter.grad = gradient
        for module, mode in modes:
            module.training = mode
        if scaler is not None and scale:
            scaler.load_state_dict(scale)
        put_generators_back(generators)


def generator_states() -> dict[str, Any]:
    """Return the states of all generators that a step might draw from."""
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None,  # type: ignore[no-untyped-call]
    }


def put_generators_back(states: dict[str, Any]) -> None:
    """Set the generators to what `generator_states` returned."""
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.set_rng_state(states["torch"])
    if states["cuda"] is not None:
        torch.cuda.set_rng_state_all(states["cuda"])
