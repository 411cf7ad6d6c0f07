"""A run, together with all other processes of it: claim the folder, carry the run on, or evaluate what it saved."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from toolkit.checkpoint.resume import GOES_ON, begun_from_scratch, changed_settings, listed
from toolkit.checkpoint.writer import newest_name
from toolkit.config.learning_rates import with_learning_rate
from toolkit.config.schema import Config
from toolkit.config.yaml import read_yaml
from toolkit.distributed.launch import launched
from toolkit.distributed.memory import OutOfMemoryError, lack_of, lacks_memory, told
from toolkit.distributed.runtime import Runtime, start_runtime
from toolkit.errors import DONE, STOPPED, LoneUserError, Preempted, SharedUserError, UserError
from toolkit.evaluate_only import FILES, evaluate_only
from toolkit.output.console import Console
from toolkit.output.run_folder import RunFolder, begun_in
from toolkit.session import Result, Session, nothing_to_do, tell
from toolkit.signals import end_undisturbed
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
    console = Console(runtime.is_main)
    try:
        config = with_learning_rate(config, runtime.on_main(lambda: rate_begun_with(config)))
        if config.evaluate.only:
            with lack_of_memory_told(config, runtime):
                evaluation = evaluate_only(config, build_task, recipe, runtime, console)
                result = Result(evaluation.metrics, evaluation.baseline, 0, Path(str(config.output)))
                tell(result, console, places=FILES)
        else:
            result = train_in_folder(config, build_task, recipe, runtime, console)
    except (SharedUserError, Preempted):
        runtime.close()
        raise
    except UserError as error:
        # The other processes are elsewhere: to wait for them in `close` would be to hang.
        if runtime.size > 1:
            end_undisturbed()
            runtime.watchdog.give_up("; ".join(error.problems), code=2)
            raise LoneUserError(*(f"process {runtime.rank}: {problem}" for problem in error.problems)) from None
        runtime.close()
        raise
    except Exception as error:
        runtime.watchdog.explain(error)
        if runtime.size > 1:
            end_undisturbed()
        runtime.watchdog.give_up(f"{type(error).__name__}: {error}", code=1)
        raise
    runtime.close()
    return result


def train_in_folder(
    config: AnyConfig, build_task: Callable[[AnyConfig], Task], recipe: str, runtime: Runtime, console: Console
) -> Result:
    """Train in the run folder, from its newest checkpoint on, unless it already holds the finished run."""
    folder = RunFolder(Path(str(config.output)))
    finished = runtime.on_main(lambda: claim(folder, config, runtime.precision))
    if finished is not None:
        report_finished(finished, recipe, console)
        return finished
    session = Session(folder, runtime, recipe)
    with runtime.stop.listening(session.end_at_once, launched=launched()):
        try:
            with lack_of_memory_told(config, runtime):
                result = session.carry_on(config, build_task, console)
            runtime.watchdog.settled = DONE
            return result
        except Preempted as stop:
            session.record_end(stop)
            runtime.watchdog.settled = STOPPED
            raise
        except BaseException as error:
            # If it came because another process died, the watch says so and this does not return.
            runtime.watchdog.explain(error)
            session.record_end(error)
            raise
        finally:
            folder.release()


def report_finished(finished: Result, recipe: str, console: Console) -> None:
    """Tell the result of a run that was finished before."""
    console.print(
        f"{recipe}: this run is finished; nothing was trained again (--output starts another, --resume never starts this one "
        "from scratch)"
    )
    tell(finished, console)


@contextmanager
def lack_of_memory_told(config: Config, runtime: Runtime) -> Iterator[None]:
    """Say which setting to lower if memory runs out in this block.

    Raises:
        SharedUserError: it did, and every process raises this at the same place.
        UserError: it did, in this process.
    """
    try:
        yield
    except Exception as error:
        if not lacks_memory(error):
            raise
        shared = isinstance(error, OutOfMemoryError)
        newest = None if config.evaluate.only else newest_name(Path(str(config.output)))
        lack = str(error) if shared else lack_of(error)
        text = told(lack, runtime.phase.phase, config, runtime.strategy.is_sharded, newest)
        raise (SharedUserError if shared else UserError)(text) from None


def rate_begun_with(config: Config) -> float | None:
    """Return the learning rate of the run that this command goes on with, if it gives none itself.

    What a recipe takes where none is given may be otherwise in a later version.
    """
    if config.optim.lr is not None or config.evaluate.only or config.resume == "never":
        return None
    # What can't be read is told of later.
    with suppress(OSError, UserError, ValueError, KeyError, TypeError):
        if config.resume in GOES_ON:
            settings = read_yaml(Path(str(config.output)) / "config.yaml")
        else:
            settings = json.loads((Path(config.resume) / "state.json").read_text(encoding="utf-8"))["config"]
        rate = settings["optim"]["lr"]
        return rate if isinstance(rate, float) else None
    return None


def claim(folder: RunFolder, config: Config, precision: str) -> Result | None:
    """Take the folder for this run; return the result if it holds the finished run already.

    Where the settings say in other words where the data is, the folder is taken, and `Session` compares the data.

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
    record = folder.record()
    if config.resume == "never" and not begun_from_scratch(record):
        folder.claim()
        return None
    changed = changed_settings(config, read_yaml(folder.config_file), begun_in(record))
    differences = changed.refused
    starts = record.get("topology") or [{}]
    if starts[-1].get("precision", precision) != precision:
        differences.append(("mixed precision (of the launch file)", starts[-1]["precision"], precision))
    if differences:
        raise UserError(
            f"the folder {folder.path} belongs to another run: {listed(differences)}. Give another folder with --output, "
            "or the settings of that run, or set that run aside and start from scratch with --resume never"
        )
    if not changed.located and (finished := nothing_to_do(folder, config)):
        return finished
    folder.claim()
    # Another process may have finished it while this one looked.
    finished = None if changed.located else nothing_to_do(folder, config)
    if finished:
        folder.release()
    return finished
