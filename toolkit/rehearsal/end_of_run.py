"""Before the first step: is everything that happens at the end of the run going to work?

A run that fails when it is evaluated or saved fails after hours. So the evaluation is tried on a few samples, with
metrics, baseline and what is shown to a reader, and the export on the first weights, into the run folder, where it is
deleted again.
"""

import json
import shutil
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from toolkit.checkpoint.staging import in_bytes
from toolkit.config.schema import Config
from toolkit.data.overlap import overlap_of
from toolkit.distributed.memory import lacks_memory
from toolkit.distributed.runtime import Runtime
from toolkit.errors import DefectElsewhereError, UserError
from toolkit.evaluation import evaluate_model
from toolkit.metric_choice import check_best
from toolkit.output.evaluation_file import Evaluation
from toolkit.output.provenance import command
from toolkit.output.run_folder import RunFolder, bytes_in, explain_disk_errors
from toolkit.printed_plan import state_bytes
from toolkit.task import Task
from toolkit.train_state import TrainState

SAMPLES = 4
"""Evaluation samples that each process is tried with: the longest ones."""
OVERLAP_SHOWN = 0.01
"""Of the evaluation samples; some texts come twice in any data."""
SKIP = "--rehearse false leaves this trial out"


@contextmanager
def told_if_it_fails(what: str) -> Iterator[None]:
    """Tell the user, as something to mend before the run, what would have failed at its end.

    Raises:
        UserError: it failed.
    """
    try:
        with warnings.catch_warnings():
            # Metrics of four samples and an untrained model warn of much that says nothing.
            warnings.simplefilter("ignore")
            yield
    except (UserError, DefectElsewhereError):
        raise
    except Exception as error:
        if lacks_memory(error):
            raise  # there is a message of its own for that
        raise UserError(
            f"the end of the run was tried before its first step, and {what} failed: {in_words(error)}. Mend this "
            f"first ({SKIP})"
        ) from error


def in_words(error: Exception) -> str:
    """Return kind and first line of an error, and where it was raised, in place of its traceback."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}{': ' if text else ''}{text} ({Path(place.filename).name}, line {place.lineno})"


def try_evaluation(task: Task, config: Config, runtime: Runtime, model: torch.nn.Module) -> Evaluation | None:
    """Evaluate a few samples as it is done at the end, all processes together; None where nothing is evaluated.

    Raises:
        UserError: it failed, or `checkpoint.best` names a metric that there is not.
    """
    if task.data.evaluate is None:
        return None
    with told_if_it_fails("to evaluate the model"):
        found = evaluate_model(task, config, runtime, model, last=True, most=SAMPLES * runtime.data_parallel_size)
        if found is None:  # so few say nothing, or the run is asked to stop, which ends this one too
            found = evaluate_model(task, config, runtime, model, last=True)
        if found is not None:
            found.as_json_lines()
            json.dumps(found.details)
    if found is not None:
        check_best(task, config, list(found.metrics))
    return found


def try_export(
    export: Callable[[torch.nn.Module, Path, Mapping[str, Any]], None],
    model: torch.nn.Module,
    folder: RunFolder,
    results: Mapping[str, Any],
) -> tuple[int, bool]:
    """Save the model with its first weights into the run folder, and delete what was saved.

    Returns:
        The bytes that it took, and whether the model is as it was: to merge adapters, say, changes it.

    Raises:
        UserError: it failed.
    """
    before = state_of(model)
    place = folder.path / "model.partial"
    shutil.rmtree(place, ignore_errors=True)
    try:
        with told_if_it_fails("to save the model"), explain_disk_errors(folder.path):
            export(model, place, results)
        size = bytes_in(place)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return size, state_of(model) == before


def state_of(model: torch.nn.Module) -> tuple[list[tuple[Any, ...]], list[bool]]:
    """Return what tells whether a model was changed: where its tensors are and what they are, and the mode of each
    part.

    A value that is written in place counts up the version; another type or device gives a tensor other memory.
    """
    tensors = [
        (name, id(tensor), tensor._version, tensor.data_ptr(), tensor.dtype, tensor.device, tensor.requires_grad)
        for name, tensor in (*model.named_parameters(), *model.named_buffers())
    ]
    return tensors, [module.training for module in model.modules()]


def check_space(folder: Path, model: int, checkpoint: int, checkpoints: int) -> str | None:
    """Return a warning if the disk has no room for all that the run writes.

    Args:
        folder: the run folder.
        model: the bytes of the saved model.
        checkpoint: the bytes of a checkpoint.
        checkpoints: the most that lie there at once, the one that is being written included.

    Raises:
        UserError: not even one checkpoint and the model find room.
    """
    free = shutil.disk_usage(folder).free
    least, most = model + checkpoint, model + checkpoints * checkpoint
    if free < least:
        raise UserError(
            f"the disk of the run folder {folder} has {in_bytes(free)} left, and the saved model ({in_bytes(model)}) "
            f"and one checkpoint ({in_bytes(checkpoint)}) take {in_bytes(least)}; make room, or give another folder "
            "with --output"
        )
    if free < most:
        return (
            f"the disk of the run folder has {in_bytes(free)} left, and the run takes up to {in_bytes(most)} "
            f"({checkpoints} checkpoints and the saved model); make room, or keep fewer with --checkpoint.keep"
        )
    return None


def look_ahead(state: TrainState, folder: RunFolder) -> list[str]:
    """Return warnings about the data and the disk, in the main process.

    Raises:
        UserError: there is no room for what the run writes.
    """
    config, data = state.config.checkpoint, state.task.data
    every = config.every or state.steps_per_epoch
    # The newest, the best, and the one that is being written; short runs have fewer.
    most = min(max(1, config.keep) + 2, -(-state.total_steps // every))
    found = [check_space(folder.path, state.saved_bytes, state_bytes(state), most)]
    if data.evaluate is not None:
        overlap = overlap_of(data.train, data.evaluate)
        found.append(str(overlap) if overlap.share >= OVERLAP_SHOWN else None)
    return [warning for warning in found if warning]


class Unknown(dict[str, float]):
    """The metrics of an evaluation that has not been made: any that an export asks for is 0."""

    def __missing__(self, name: str) -> float:
        return 0.0


@dataclass(frozen=True)
class RunFacts:
    """What a model card tells of a run beside its task and settings."""

    evaluation: Evaluation
    """Of the weights that are saved."""
    step: int
    """After which these were the weights."""
    rule: str | None = None
    """By which evaluation it is these weights, such as "lowest loss"; None where none decided it."""
    evaluations: int = 0
    """How many there were."""
    record: Mapping[str, Any] = field(default_factory=dict)
    """run.json, where there is one."""
    warnings: Sequence[str] = ()
    """Of the run."""


UNTRAINED = RunFacts(Evaluation(Unknown(loss=0.0), Unknown()), 0)
"""Of a model whose export is tried before the first step."""


def results_for_export(task: Task, config: Config, facts: RunFacts) -> dict[str, Any]:
    """Return what an export is told of the run, for a model card: plain values by name."""
    starts = facts.record.get("topology") or [{"command": command()}]
    evaluate = task.data.evaluate
    return {
        "config": config,
        "metrics": facts.evaluation.metrics,
        "baseline": facts.evaluation.baseline,
        "details": facts.evaluation.details,
        "steps": facts.step,
        "rule": facts.rule,
        "evaluations": facts.evaluations,
        "record": facts.record,
        "command": starts[-1].get("command"),
        "warnings": list(facts.warnings),
        "summary": {**task.summary, **task.data.summary},
        "inputs": dict(task.data.inputs),
        "samples": {"train": len(task.data.train), "evaluate": 0 if evaluate is None else len(evaluate)},
    }
