"""A run, together with all other processes of it: claim the folder, carry the run on, or evaluate what it saved."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from toolkit.config import Config
from toolkit.console import Display, Voice
from toolkit.errors import DONE, STOPPED, LoneUserError, Preempted, SharedUserError, UserError
from toolkit.evaluation import evaluate
from toolkit.launch import launched
from toolkit.preparation import prepare_for_evaluation
from toolkit.resume import different_numbers, listed
from toolkit.run_folder import RunFolder
from toolkit.runtime import Runtime, start_runtime
from toolkit.session import Result, Session, tell
from toolkit.settings_file import read_yaml
from toolkit.stopping import end_undisturbed
from toolkit.task import Task

AnyConfig = TypeVar("AnyConfig", bound=Config)


def carry_out(
    config: AnyConfig, build_task: Callable[[AnyConfig], Task], recipe: str, runtime: Runtime | None = None
) -> Result:
    """Carry out a run, together with all other processes of it; its runtime is started here unless there is one.

    Raises:
        UserError: something that the user can fix, told in every process.
        Preempted: the run stopped on request, in every process.
    """
    runtime = runtime or start_runtime(config)
    voice = Voice(runtime.is_main)
    try:
        if config.evaluate.only:
            result = evaluate_saved(config, build_task, recipe, runtime, voice)
        else:
            result = train_in_folder(config, build_task, recipe, runtime, voice)
    except (SharedUserError, Preempted):
        runtime.close()
        raise
    except UserError as error:
        # The other processes are elsewhere: to wait for them in `close` would be to hang.
        if runtime.size > 1:
            end_undisturbed()
            runtime.watch.give_up("; ".join(error.problems), code=2)
            raise LoneUserError(*(f"process {runtime.rank}: {problem}" for problem in error.problems)) from None
        runtime.close()
        raise
    except Exception as error:
        runtime.watch.explain(error)
        if runtime.size > 1:
            end_undisturbed()
        runtime.watch.give_up(f"{type(error).__name__}: {error}", code=1)
        raise
    runtime.close()
    return result


def train_in_folder(
    config: AnyConfig, build_task: Callable[[AnyConfig], Task], recipe: str, runtime: Runtime, voice: Voice
) -> Result:
    """Train in the run folder, from its newest checkpoint on, unless it already holds the finished run."""
    folder = RunFolder(Path(str(config.output)))
    finished = runtime.on_main(lambda: claim(folder, config, runtime.precision))
    if finished is not None:
        voice.say(f"{recipe}: this run is finished; nothing was trained again (--output starts another)")
        tell(finished, voice)
        return finished
    session = Session(folder, runtime, recipe)
    with runtime.stop.listening(session.end_at_once, launched=launched()):
        try:
            result = session.carry_on(config, build_task, voice)
            runtime.watch.settled = DONE
            return result
        except Preempted as stop:
            session.record_end(stop)
            runtime.watch.settled = STOPPED
            raise
        except BaseException as error:
            # If it came because another process died, the watch says so and this does not return.
            runtime.watch.explain(error)
            session.record_end(error)
            raise
        finally:
            folder.release()


def claim(folder: RunFolder, config: Config, precision: str) -> Result | None:
    """Take the folder for this run; return the result if it holds the finished run already.

    Raises:
        UserError: the folder belongs to another run or to something else; nothing in it was changed.
    """
    try:
        new = folder.is_new()
    except OSError as error:
        raise UserError(
            f"the run folder {folder.path} can't be read ({error.strerror}); give another one with --output"
        ) from None
    if new:
        folder.claim()
        return None
    if not folder.config_file.is_file() or not folder.record():
        raise UserError(
            f"the folder {folder.path} holds files that are not those of a run; give another one with --output"
        )
    differences = different_numbers(config, read_yaml(folder.config_file))
    starts = folder.record().get("topology") or [{}]
    if starts[-1].get("precision", precision) != precision:
        differences.append(("mixed precision (of the launch file)", starts[-1]["precision"], precision))
    if differences:
        raise UserError(
            f"the folder {folder.path} belongs to another run: {listed(differences)}. Give another folder with --output, "
            "or the settings of that run"
        )
    if finished := finished_result(folder):
        return finished
    folder.claim()
    # Another process may have finished it while this one looked.
    finished = finished_result(folder)
    if finished:
        folder.release()
    return finished


def finished_result(folder: RunFolder) -> Result | None:
    """Return the result of a finished run."""
    record = folder.record()
    if record.get("status") != "finished":
        return None
    metrics, baseline = (
        {name: math.nan if value is None else value for name, value in record[key].items()}
        for key in ("metrics", "baseline")
    )
    return Result(metrics, baseline, record["step"], folder.path)


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
    model = prepare_for_evaluation(task, chosen, runtime)
    voice.facts(f"{recipe}: evaluation only", {**task.facts, "samples": f"{len(task.evaluate):,}"})
    with Display(voice) as display:
        evaluation = evaluate(task, chosen, runtime, model, last=True, display=display)
    assert evaluation is not None  # nobody listens to requests to stop here
    result = Result(evaluation.metrics, evaluation.baseline, 0, Path(str(config.output)))
    tell(result, voice)
    return result
