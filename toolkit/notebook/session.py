"""A recipe in the kernel: opened with its settings, prepared, tried out without a trace, and run."""

import ctypes
import os
import random
import shlex
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate.state import AcceleratorState, GradientState, PartialState, SharedDict

from toolkit.config.schema import Config
from toolkit.distributed.runtime import Runtime
from toolkit.distributed.start_runtime import start_runtime
from toolkit.distributed.watchdog import Watchdog
from toolkit.distributed.watchdog_verdict import Verdict
from toolkit.errors import UserError
from toolkit.metric_choice import with_metrics
from toolkit.output import pipes
from toolkit.output.result import Result
from toolkit.output.run_folder import record_refusal
from toolkit.prepare import prepare
from toolkit.recipe_command import settings_of
from toolkit.recipe_file import load_recipe
from toolkit.run import run as run_recipe
from toolkit.task import Task
from toolkit.train_state import TrainState


@dataclass(frozen=True)
class Recipe:
    """A recipe with its settings. It can also be made from a configuration and a task that the notebook defines."""

    name: str
    """What its messages begin with."""
    config: Config
    task: Callable[[Any], Task]
    """Makes the task from the configuration."""
    path: Path | None = None
    """Its file; None where it is written in the notebook."""

    def into(self, output: str | Path) -> "Recipe":
        """Return the same recipe with another run folder."""
        return replace(self, config=replace(self.config, output=str(output)))


def open_recipe(path: str | Path, settings: str = "") -> Recipe:
    """Return a recipe with its settings, which are written as on the command line.

    Args:
        path: the recipe's file, such as recipes/classify.py.
        settings: such as "--batch.size 16 --epochs 1"; a word with a blank in it is quoted.

    Raises:
        UserError: the file is no recipe, or the settings are not what it takes.
    """
    file = Path(path)
    config_class, task = load_recipe(file)
    try:
        config = settings_of(config_class, "", shlex.split(settings), file.stem)
    except SystemExit:
        raise UserError(
            f"the settings {settings!r} only print something and end; take --help and --print_config out to open the "
            "recipe"
        ) from None
    except ValueError as error:
        raise UserError(f"the settings {settings!r} can't be cut into words ({error}); close the quotes") from None
    return Recipe(file.stem, config, task, file)


def prepared(recipe: Recipe) -> TrainState:
    """Return model, optimizer and data of a recipe on this machine's CPU or first GPU, before its first step.

    Nothing is written. A later run prepares its own.

    Raises:
        UserError: what the run would refuse too.
    """
    runtime = start_in_kernel(recipe.config)
    config = recipe.config
    return prepare(runtime.together(lambda: with_metrics(recipe.task(config), config)), config, runtime)


def run(recipe: Recipe) -> Result:
    """Run a recipe in this process, as its command would, and return the result.

    The same cell again resumes a run that was stopped, and reports a finished one. Interrupting the kernel once stops
    the run with a sealed checkpoint; twice ends it at once. The kernel goes on in both cases.

    Raises:
        UserError: what the command would refuse, with the same messages.
        Preempted: the run stopped on request.
    """
    runtime = None
    try:
        runtime = start_in_kernel(recipe.config)
        return run_recipe(recipe.config, recipe.task, recipe.name, runtime)
    except UserError as error:
        record_refusal(Path(str(recipe.config.output)), error.problems)
        raise
    except KeyboardInterrupt:
        # The run was ended at once and has not released the model.
        if runtime is not None:
            runtime.close()
        raise


class KernelWatchdog(Watchdog):
    """Ends the run, and not the process as the usual watchdog does: a second interrupt leaves the kernel alive."""

    def end(self, verdict: Verdict, found_here: bool) -> None:
        """Raise KeyboardInterrupt in the main thread, once, and print why."""
        if self.settled is None and self.ending.acquire(blocking=False):
            pipes.print_line(f"\nended at once: {verdict['text']}", sys.stderr)
            main = ctypes.c_ulong(threading.main_thread().ident or 0)
            # The interrupt itself would do this, if the run did not take it for a request to stop.
            ctypes.pythonapi.PyThreadState_SetAsyncExc(main, ctypes.py_object(KeyboardInterrupt))


def start_in_kernel(config: Config) -> Runtime:
    """Return the runtime of a run of one process in the kernel, whatever ran here before.

    Raises:
        UserError: as `start_runtime`, or this kernel was itself started as one of several processes.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError(
            f"WORLD_SIZE is {os.environ['WORLD_SIZE']} in this kernel, which is one process; unset it (and RANK), and "
            "start several processes with `launch`"
        )
    # Accelerate keeps device and precision in dictionaries of its classes, which all of its objects share, so that a
    # second run would silently take the precision of the first. They are replaced and not emptied, as Accelerate's own
    # `_reset_state` would do: a training that the notebook still looks at keeps the old ones.
    for state in (PartialState, AcceleratorState, GradientState):
        state._shared_state = SharedDict()
    return replace(start_runtime(config), watchdog=KernelWatchdog())


@contextmanager
def as_it_was(training: TrainState) -> Iterator[None]:
    """Restore the training bit for bit when the block ends.

    That is: weights, buffers, gradients, optimizer, gradient scaler and random generators. During the block, a copy of
    the weights and of the optimizer's state is in host memory.
    """
    optimizer, scaler = training.optimizer.optimizer, training.runtime.accelerator.scaler
    modes = [(module, module.training) for module in training.model.modules()]
    gradients = [(parameter, parameter.grad) for parameter in training.model.parameters()]
    for parameter, _ in gradients:
        # Set to None and not to zero, so that nothing is added to the gradient that is restored.
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
        restore_generators(generators)


def generator_states() -> dict[str, Any]:
    """Return the states of all generators that a step might draw from."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "torch": torch.get_rng_state(),
        "cuda": cuda,
    }


def restore_generators(states: dict[str, Any]) -> None:
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.set_rng_state(states["torch"])
    if states["cuda"] is not None:
        torch.cuda.set_rng_state_all(states["cuda"])
