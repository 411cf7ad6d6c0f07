"""Back to the weights of the best evaluation, once the last step is done: they are what a run leaves behind."""

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from toolkit.checkpoint.format import DamagedError, inspect, read_state
from toolkit.checkpoint.load import load_checkpoint
from toolkit.checkpoint.resume import Start
from toolkit.checkpoint.writer import Saver
from toolkit.errors import UserError
from toolkit.evaluation import evaluate_model
from toolkit.loop import stop
from toolkit.models.parameters import reshard
from toolkit.optimizer import exported_weights
from toolkit.output.evaluation_file import Evaluation, evaluation_of, numbers, weights_of_training
from toolkit.output.ledger import read_ledger
from toolkit.output.run_folder import RunFolder, folder_name
from toolkit.train_state import TrainState


class Exported(NamedTuple):
    """The weights that a run leaves behind."""

    step: int
    """After which they were those of the model."""
    seal: str | None
    """Of the checkpoint that holds them."""
    evaluation: Evaluation
    """What they are worth, with baseline and examples."""


def best_is_there(state: TrainState, folder: RunFolder, begun_with: str | None) -> bool:
    """Return whether the checkpoint of the best evaluation is where it is looked for in the end, or none is needed."""
    return state.best is None or checkpoint_of(state.best.step, folder, begun_with) is not None


def checkpoint_of(step: int, folder: RunFolder, begun_with: str | None) -> Path | None:
    """Return the checkpoint of a step in the run folder, or of the run that this one began with."""
    places = [folder.checkpoints]
    if begun_with is not None:  # a run folder or a checkpoint
        places += [Path(begun_with) / "checkpoints", Path(begun_with).parent]
    return next((place / folder_name(step) for place in places if (place / folder_name(step)).is_dir()), None)


def settle_exported(state: TrainState, last: Evaluation, folder: RunFolder) -> Exported:
    """Give the model the weights that are saved, in all processes, and return what they are worth.

    Args:
        state: the run after its last step.
        last: the evaluation after that step; it has baseline and examples where that was the last of all steps.
        folder: the run folder.

    Raises:
        UserError: the checkpoint of the best evaluation can't be read.
        Preempted: somebody asked the run to stop meanwhile; the same command goes on with this.
    """
    runtime, step = state.runtime, state.exported_step
    runtime.on_main(state.output.wait)
    writer = state.output.writer
    seal = writer.previous if isinstance(writer, Saver) else None
    if step == state.step and (state.step == state.total_steps or state.task.data.evaluate is None):
        return Exported(step, seal, last)
    if step != state.step:
        start = runtime.on_main(lambda: start_at_best(step, folder, folder.record().get("resumed_from")))
        seal = start.seal
        reshard(state.model)
        module = runtime.accelerator.unwrap_model(state.model)
        load_checkpoint(start, module, state.optimizer.optimizer, runtime, state.frozen)
    weights = weights_of_training(step, seal, state.config.exports_average)
    evaluation = runtime.on_main(lambda: evaluation_of(folder.path, weights))
    if evaluation is None:
        with exported_weights(state.config, state.model, state.optimizer.optimizer):
            evaluation = evaluate_model(state.task, state.config, runtime, state.model, last=True)
    if evaluation is None:
        stop(state, state.step)
    # Another topology may round in another way than the evaluation by which these weights were chosen.
    noted = runtime.on_main(lambda: metrics_after(step, folder))
    return Exported(step, seal, replace(evaluation, metrics=noted or evaluation.metrics))


def never_best(state: TrainState, evaluation: Evaluation) -> str | None:
    """Return a warning if the best weights were to be saved, and no evaluation had a value to choose them by."""
    rule = state.config.checkpoint.best
    name = rule.partition(" ")[2].strip()
    value = evaluation.metrics.get(name)
    if not state.config.exports_best or state.best is not None or value is None or value == value:
        return None
    why = f" ({evaluation.undefined[name]})" if name in evaluation.undefined else ""
    return (
        f"{name} was undefined in every evaluation{why}, so checkpoint.best ({rule}) chose none, and the weights after "
        f"the last step, {state.step:,}, are saved; choose by another metric"
    )


def metrics_after(step: int, folder: RunFolder) -> dict[str, float]:
    """Return the metrics that the ledger has of the evaluation after a step; empty without one."""
    rows = read_ledger(folder.ledger_file)
    return numbers(next((row["evaluation"] or {} for row in rows if row["step"] == step), {}))


def evaluations_of(folder: RunFolder) -> int:
    """Return how many evaluations of a run its ledger has."""
    return (
        sum(bool(row["evaluation"]) for row in read_ledger(folder.ledger_file)) if folder.ledger_file.is_file() else 0
    )


def start_at_best(step: int, folder: RunFolder, begun_with: str | None) -> Start:
    """Return the checkpoint of the best evaluation as something to load.

    Raises:
        UserError: it is gone or damaged.
    """
    checkpoint = checkpoint_of(step, folder, begun_with)
    advice = "put it back, or give --export last, which saves the weights after the last step: nothing is trained again"
    if checkpoint is None:
        raise UserError(
            f"the checkpoint of the best evaluation, of step {step:,}, is gone from {folder.checkpoints}; {advice}"
        )
    try:
        manifest = inspect(checkpoint)
    except DamagedError as damage:
        raise UserError(f"the checkpoint of the best evaluation can't be read: {damage}; {advice}") from None
    return Start(step, checkpoint, read_state(checkpoint), seal=manifest.seal)
