"""`toolkit export`: the model of a sealed checkpoint, evaluated and saved as a run does it at its end."""

import os
from collections.abc import Iterator, Mapping
from contextlib import chdir, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from toolkit.best_evaluation import best_of_rows
from toolkit.best_weights import evaluations_of, metrics_after
from toolkit.checkpoint.compatibility import check_data
from toolkit.checkpoint.format import DamagedError, inspect, read_state
from toolkit.checkpoint.load import load_exported
from toolkit.checkpoint.resume import Start
from toolkit.config.parser import parse
from toolkit.config.schema import Config
from toolkit.distributed.preflight import digests_of_data
from toolkit.distributed.runtime import Runtime
from toolkit.distributed.start_runtime import start_runtime
from toolkit.errors import UserError
from toolkit.evaluation import evaluate_model
from toolkit.metric_choice import with_metrics
from toolkit.models.parameters import digest_of_frozen
from toolkit.output.console import Console, Display
from toolkit.output.evaluation_file import Evaluation, evaluation_of, weights_of_training, write_evaluation
from toolkit.output.ledger import read_ledger
from toolkit.output.nearby_runs import no_run_folder
from toolkit.output.result import Result, print_result
from toolkit.output.run_folder import RunFolder, begun_in, explain_disk_errors, folder_name, sealed_folders, step_of
from toolkit.prepare import prepare_for_evaluation
from toolkit.recipe_file import load_recipe
from toolkit.rehearsal.end_of_run import RunFacts, in_words, results_for_export
from toolkit.rehearsal.named_places import check_named_places
from toolkit.task import Task


def export(run: Path, step: int | None, recipe: Path | None, console: Console) -> Result:
    """Save the model of a checkpoint into `model/` of its run folder, and write down which one it is.

    Args:
        run: the run folder.
        step: of the checkpoint; None for the one that the run would save if it ended now.
        recipe: the recipe's file, if it is not where it was when the run began.
        console: prints.

    Raises:
        UserError: there is no such run or checkpoint, its recipe or data is gone or another one, a process trains
            there, or the model can't be saved.
    """
    folder = RunFolder(run.resolve())
    if not folder.record() or not folder.config_file.is_file():
        raise UserError(no_run_folder(run, "it has no run.json and config.yaml that can be read"))
    with told_as_typed(run):
        start, evaluation = save_checkpoint(folder, step, recipe, console)
    assert start.checkpoint is not None
    console.print(f"saved the model of step {start.step:,}, from {run / start.checkpoint.relative_to(folder.path)}")
    result = Result(evaluation.metrics, evaluation.baseline, start.step, run, evaluation.undefined)
    print_result(result, console, places={"model": "model"})
    return result


@contextmanager
def told_as_typed(run: Path) -> Iterator[None]:
    """Have messages name the run folder as the user did: the work is done in another folder, with whole paths."""
    try:
        yield
    except UserError as error:
        whole = str(run.resolve())
        raise UserError(*(problem.replace(whole, str(run)) for problem in error.problems)) from error


def save_checkpoint(
    folder: RunFolder, step: int | None, recipe: Path | None, console: Console
) -> tuple[Start, Evaluation]:
    """Save the model of a checkpoint, and return which one it is and what it is worth; see `export`.

    Raises:
        UserError: as `export`.
    """
    record = folder.record()
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise UserError("toolkit export works in one process; start it without a launcher")
    if recipe is None and record.get("recipe_file") is None:
        raise UserError(f"the run in {folder.path} does not say which file its recipe is in; name it with --recipe")
    config_class, build_task = load_recipe((recipe or Path(record["recipe_file"])).resolve())
    try:
        config = replace(parse(config_class, "", ["--config", str(folder.config_file)]), output=str(folder.path))
    except UserError:
        if recipe is None or recipe.stem == record.get("recipe"):
            raise
        raise UserError(
            f"the run in {folder.path} is one of the recipe {record.get('recipe')}, whose settings {recipe} does not "
            "have; name the file of that recipe, or leave --recipe out where it has not moved"
        ) from None
    start = chosen_checkpoint(folder, config, step)
    runtime = start_as_before(record, config)
    folder.claim()
    try:
        with in_folder(begun_in(record)):
            check_named_places(config)
            task = with_metrics(build_task(config), config)
            if task.export is None:
                raise UserError(f"the recipe {record.get('recipe')} saves no model: its task has no `export`")
            data = digests_of_data(task)
            check_data(data, start.state.get("data", {}), f"when {start.checkpoint} was written")
            rule = config.checkpoint.best if step is None and config.exports_best else None
            return start, save(start, rule, data["evaluate"], task, config, runtime, folder, console)
    finally:
        folder.release()
        runtime.close()


def start_as_before(record: Mapping[str, Any], config: Config) -> Runtime:
    """Return a runtime of the precision of the run: in another one it would be another evaluation."""
    name = "ACCELERATE_MIXED_PRECISION"
    # The whole model is read here, however it was trained.
    config = replace(config, batch=replace(config.batch, stages=1))
    if name in os.environ:
        return start_runtime(config)
    os.environ[name] = (record.get("topology") or [{}])[-1].get("precision", "no")
    try:
        return start_runtime(config)
    finally:
        del os.environ[name]


@contextmanager
def in_folder(folder: str | None) -> Iterator[None]:
    """Work in the folder in which a run was started, if it is still there: settings name files from there."""
    if folder is None or not Path(folder).is_dir():
        yield
        return
    with chdir(folder):
        yield


def chosen_checkpoint(folder: RunFolder, config: Config, step: int | None) -> Start:
    """Return the checkpoint of a step, or the one whose weights the run would save if it ended now.

    Raises:
        UserError: there is no such checkpoint, or it is damaged.
    """
    steps = [step_of(place) for place in sealed_folders(folder.checkpoints)]
    listed = ", ".join(f"{number:,}" for number in reversed(steps))
    if not steps:
        raise UserError(
            f"{folder.path} has no checkpoint (checkpoint.keep 0 keeps none of a finished run); there is "
            "nothing to export"
        )
    if step is None:
        rows = read_ledger(folder.ledger_file) if folder.ledger_file.is_file() else iter(())
        held = (row for row in rows if row["step"] in steps)
        best = best_of_rows(config.checkpoint.best, held) if config.exports_best else None
        step = best.step if best is not None else steps[0]
    if step not in steps:
        raise UserError(f"{folder.path} has no checkpoint of step {step:,}; it has those of step {listed}")
    checkpoint = folder.checkpoints / folder_name(step)
    try:
        manifest = inspect(checkpoint)
    except DamagedError as damage:
        raise UserError(
            f"the checkpoint {checkpoint} can't be read: {damage}; there are those of step {listed}"
        ) from None
    return Start(step, checkpoint, read_state(checkpoint), seal=manifest.seal)


def save(
    start: Start,
    rule: str | None,
    data: str | None,
    task: Task,
    config: Any,
    runtime: Runtime,
    folder: RunFolder,
    console: Console,
) -> Evaluation:
    """Evaluate the weights of a checkpoint, write evaluation and model, and return the evaluation.

    `rule` says by which evaluation it is this checkpoint, if by any; `data` is the digest of the evaluation data.

    Raises:
        UserError: they don't fit the model, or it can't be saved.
    """
    assert task.export is not None
    export, averaged = task.export, config.exports_average
    model = prepare_for_evaluation(task, config, runtime, start.state.get("unused", ()))
    module = runtime.accelerator.unwrap_model(model)
    load_exported(start, module, digest_of_frozen(module), averaged)
    weights = weights_of_training(start.step, start.seal, averaged)
    noted = metrics_after(start.step, folder) if folder.ledger_file.is_file() else {}
    evaluation = Evaluation({})
    if task.data.evaluate is not None:
        known = evaluation_of(folder.path, weights)
        if known is None:
            with Display(console) as display:
                known = evaluate_model(task, config, runtime, model, last=True, display=display)
        assert known is not None  # requests to stop are not noted here
        evaluation = replace(known, metrics=noted or known.metrics)
    with explain_disk_errors(folder.path):
        record = folder.record()
        facts = RunFacts(
            evaluation,
            start.step,
            rule if noted else None,
            evaluations_of(folder),
            record,
            record.get("warnings", ()),
        )
        results = results_for_export(task, config, facts)
        try:
            folder.write_model(lambda path: export(module, path, results))
        except (UserError, OSError, SafetensorError):
            raise
        except Exception as error:
            raise UserError(f"to save the model of step {start.step:,} failed: {in_words(error)}") from error
        # After the model, for which the disk is likelier to be too small: then nothing has changed.
        if task.data.evaluate is not None:
            write_evaluation(folder.path, evaluation, weights, {"samples": len(task.data.evaluate), "digest": data})
        of_run = {
            "metrics": evaluation.metrics,
            "baseline": evaluation.baseline,
            "undefined": dict(evaluation.undefined),
        }
        is_finished = folder.record().get("status") == "finished"
        folder.update(exported={"step": start.step, "rule": None}, **(of_run if is_finished else {}))
    return evaluation
