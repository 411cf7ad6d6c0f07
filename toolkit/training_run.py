"""One run in its folder: claim it, train, evaluate, export, and tell the result."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from toolkit.config import Config, changes_numbers
from toolkit.console import Display, Voice, clock
from toolkit.diagnosis import show
from toolkit.errors import LoneUserError, SharedUserError, UserError
from toolkit.evaluation import Evaluation, evaluate
from toolkit.ledger import Ledger
from toolkit.loop import Training, train
from toolkit.preparation import build_model, plan, prepare
from toolkit.progress import Progress
from toolkit.run_folder import RunFolder, now, versions, write_whole
from toolkit.runtime import Runtime, start_runtime
from toolkit.settings_file import as_mapping, differing, read_yaml, to_yaml
from toolkit.task import Task

AnyConfig = TypeVar("AnyConfig", bound=Config)


@dataclass(frozen=True)
class Result:
    """What a run came to."""

    metrics: dict[str, float]
    """Of the last evaluation."""
    baseline: dict[str, float]
    """Of the trivial prediction, on the same samples."""
    steps: int
    output: Path


def carry_out(config: AnyConfig, build_task: Callable[[AnyConfig], Task], recipe: str) -> Result:
    """Carry out a run, together with all other processes of it.

    Raises:
        UserError: something that the user can fix, told in every process.
    """
    runtime = start_runtime(config)
    voice = Voice(runtime.is_main)
    try:
        if config.evaluate.only:
            result = evaluate_saved(config, build_task, recipe, runtime, voice)
        else:
            result = train_in_folder(config, build_task, recipe, runtime, voice)
    except SharedUserError:
        runtime.close()
        raise
    except UserError as error:
        # The other processes are elsewhere: to wait for them in `close` would be to hang.
        if runtime.data_parallel_size > 1:
            raise LoneUserError(*(f"process {runtime.rank}: {problem}" for problem in error.problems)) from None
        runtime.close()
        raise
    # Not after a defect either, for the same reason.
    runtime.close()
    return result


def train_in_folder(
    config: AnyConfig, build_task: Callable[[AnyConfig], Task], recipe: str, runtime: Runtime, voice: Voice
) -> Result:
    """Train in the run folder, unless it already holds the finished run."""
    folder = RunFolder(Path(str(config.output)))
    finished = runtime.on_main(lambda: claim(folder, config))
    if finished is not None:
        voice.say(f"{recipe}: this run is finished; nothing was trained again (--output starts another)")
        tell(finished, voice)
        return finished
    started = time.monotonic()
    begun = False
    try:
        task = runtime.together(lambda: build_task(config))
        training = prepare(task, config, runtime)
        facts = {**plan(training), "run folder": str(folder.path)}
        voice.facts(f"{recipe}: the plan", facts)
        runtime.on_main(lambda: begin(folder, training, facts))
        begun = True
        prepared = time.monotonic()
        evaluation, progress = train_and_record(training, folder, voice)
        trained = time.monotonic()
        result = Result(evaluation.metrics, evaluation.baseline, progress.steps, folder.path)
        runtime.on_main(lambda: finish(folder, training, result, progress, prepared - started, trained - prepared))
    except BaseException as error:
        # A refusal is recorded where it is reported; a defect is recorded here, from wherever it comes.
        if runtime.is_main and (begun or (folder.is_new() and not isinstance(error, UserError))):
            record_failure(folder, error)
        raise
    finally:
        folder.release()
    voice.say(
        f"trained {progress.steps:,} steps in {clock(trained - prepared)} (and {clock(prepared - started)} to prepare)"
        + (
            f"; {progress.skipped} step(s) left the weights alone, see `skipped` in the ledger"
            if progress.skipped
            else ""
        )
    )
    tell(result, voice)
    return result


def claim(folder: RunFolder, config: Config) -> Result | None:
    """Take the folder for this run; return the result if it holds the finished run already.

    Raises:
        UserError: the folder belongs to another run or to something else; nothing in it was changed.
    """
    if not folder.is_new():
        record = folder.record()
        if not folder.config_file.is_file() or not record:
            raise UserError(
                f"the folder {folder.path} holds files that are not those of a run; give another one with --output"
            )
        former, asked = read_yaml(folder.config_file), as_mapping(config)
        differences = [entry for entry in differing(former, asked) if changes_numbers(config, entry[0])]
        if differences:
            listed = "; ".join(
                f"{key} was {show(before)} and is now {show(after)}" for key, before, after in differences
            )
            raise UserError(
                f"the folder {folder.path} belongs to another run: {listed}. Give another folder with --output, "
                "or the settings of that run"
            )
        if record.get("status") == "finished":
            return Result(record["metrics"], record["baseline"], record["step"], folder.path)
    folder.claim()
    return None


def begin(folder: RunFolder, training: Training, facts: dict[str, str]) -> None:
    """Write down what is about to run. Until here nothing but the lock is in a new folder."""
    task, runtime = training.task, training.runtime
    write_whole(folder.config_file, to_yaml(training.config))
    topology = {
        "processes": runtime.data_parallel_size,
        "device": runtime.device.type,
        "precision": runtime.precision,
        "threads": runtime.threads,
        "launch_file": runtime.launch.file,
        "started": now(),
    }
    folder.replace_record(
        status="running",
        step=0,
        epoch=0.0,
        metrics={},
        baseline={},
        topology=[topology],
        versions=versions(),
        data={"train": task.train.digest(), "evaluate": task.evaluate.digest() if task.evaluate else None},
        plan=facts,
    )


def train_and_record(training: Training, folder: RunFolder, voice: Voice) -> tuple[Evaluation, Progress]:
    """Train, with ledger and display in the main process."""
    if not training.runtime.is_main:
        progress = Progress()
        return train(training, progress), progress
    ledger = Ledger(folder.ledger_file)
    try:
        with Display(voice, training.total_steps) as display:
            progress = Progress(ledger, display)
            return train(training, progress), progress
    finally:
        ledger.close()


def finish(
    folder: RunFolder, training: Training, result: Result, progress: Progress, preparing: float, train_seconds: float
) -> None:
    """Write the model and close the record, in this order: a run that says finished has its model."""
    export = training.task.export
    if export is not None:
        module = training.runtime.accelerator.unwrap_model(training.model)
        card = {
            "config": training.config,
            "metrics": result.metrics,
            "baseline": result.baseline,
            "steps": result.steps,
        }
        folder.write_model(lambda path: export(module, path, card))
    folder.update(
        status="finished",
        step=result.steps,
        epoch=result.steps / training.steps_per_epoch,
        metrics=result.metrics,
        baseline=result.baseline,
        skipped=progress.skipped,
        seconds={"preparing": preparing, "training": train_seconds},
        ended=now(),
    )


def record_failure(folder: RunFolder, error: BaseException) -> None:
    """Record why a run did not finish."""
    problems = error.problems if isinstance(error, UserError) else (f"{type(error).__name__}: {error}".rstrip(": "),)
    folder.update(status="failed", problems=list(problems), ended=now())


def tell(result: Result, voice: Voice) -> None:
    """Print the result beside the trivial baseline, and where things are."""
    if result.metrics:
        rows = [
            (name, f"{value:.4f}", f"{result.baseline[name]:.4f}" if name in result.baseline else "")
            for name, value in result.metrics.items()
        ]
        columns = ["evaluation", "this model", "baseline"] if result.baseline else ["evaluation", "this model"]
        voice.table("", columns, [row[: len(columns)] for row in rows])
    voice.facts(
        "",
        {
            name: str(result.output / path)
            for name, path in (("model", "model"), ("ledger", "ledger.jsonl"), ("settings", "config.yaml"))
            if (result.output / path).exists()
        },
    )


def evaluate_saved(
    config: AnyConfig, build_task: Callable[[AnyConfig], Task], recipe: str, runtime: Runtime, voice: Voice
) -> Result:
    """Evaluate a saved model; train nothing and write nothing."""
    chosen: Any = config
    section: Any = getattr(config, "model", None)
    if not hasattr(section, "name"):
        raise SharedUserError(
            f"evaluate.only needs a recipe that can load a saved model, by a setting model.name; {recipe} has none"
        )
    if section.name is None:
        saved = Path(str(config.output)) / "model"
        if not saved.is_dir():
            raise SharedUserError(
                f"evaluate.only finds no saved model at {saved}; name one with --model.name, or the run folder with --output"
            )
        chosen = replace(chosen, model=replace(section, name=str(saved)))
    task = runtime.together(lambda: build_task(chosen))
    if task.evaluate is None:
        raise SharedUserError("evaluate.only has nothing to evaluate on: the task has no evaluation data")
    # No optimizer and no training batch: what does not fit the training is of no concern here.
    model = runtime.accelerator.prepare(runtime.together(lambda: build_model(task, chosen, runtime)))
    voice.facts(f"{recipe}: evaluation only", {**task.facts, "samples": f"{len(task.evaluate):,}"})
    evaluation = evaluate(task, chosen, runtime, model, baseline=True)
    result = Result(evaluation.metrics, evaluation.baseline, 0, Path(str(config.output)))
    tell(result, voice)
    return result
