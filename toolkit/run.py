"""A run from its settings to its result, together with all other processes of it; `toolkit/recipe_command.py` is around
it."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from toolkit.best_weights import best_is_there
from toolkit.checkpoint.compatibility import check_data
from toolkit.checkpoint.exchange import Exchange
from toolkit.checkpoint.load import load_checkpoint
from toolkit.checkpoint.resume import Start, choose_start
from toolkit.checkpoint.sharded import check_folder_is_shared, shard_map_of
from toolkit.checkpoint.writer import PartWriter, Saver, newest_name
from toolkit.config.learning_rates import with_learning_rate
from toolkit.config.schema import AnyConfig, Config
from toolkit.distributed.device_map import mixing_explained
from toolkit.distributed.launch import launched
from toolkit.distributed.memory import OutOfMemoryError, lack_of, lacks_memory, out_of_memory_message
from toolkit.distributed.phase import PREPARING
from toolkit.distributed.runtime import Runtime
from toolkit.distributed.start_runtime import start_runtime
from toolkit.errors import DONE, STOPPED, LoneUserError, Preempted, SharedUserError, UserError
from toolkit.evaluate_only import evaluate_only
from toolkit.finish import finish
from toolkit.loop import train
from toolkit.metric_choice import with_metrics
from toolkit.models.compiled import compiling_explained
from toolkit.models.parameters import weights_of
from toolkit.output.console import Console, Display
from toolkit.output.evaluation_file import Evaluation, evaluation_of, weights_of_training
from toolkit.output.ledger import Ledger
from toolkit.output.meters import forget_peak
from toolkit.output.provenance import changes, provenance
from toolkit.output.result import Result, print_result
from toolkit.output.run_folder import RunFolder, now
from toolkit.prepare import prepare
from toolkit.printed_plan import plan, warnings_of
from toolkit.rehearsal.end_of_run import look_ahead, try_evaluation
from toolkit.rehearsal.named_places import check_named_places
from toolkit.rehearsal.settled_cut import known_cut
from toolkit.run_folder_claim import claim, nothing_to_do, rate_begun_with
from toolkit.run_record import RunRecord
from toolkit.schedules import total_steps
from toolkit.signals import end_undisturbed
from toolkit.task import Task
from toolkit.tracking.follower import following
from toolkit.train_state import Output, TrainState


def run(
    config: AnyConfig, build_task: Callable[[AnyConfig], Task], recipe: str, runtime: Runtime | None = None
) -> Result:
    """Carry out a run, from where its folder says it stands.

    Args:
        config: the settings.
        build_task: makes the task of them.
        recipe: its name, for messages.
        runtime: the processes, if they were started before.

    Raises:
        UserError: something that the user can fix, raised in every process.
        Preempted: the run stopped on request, in every process.
    """
    runtime = runtime or start_runtime(config)
    console = Console(runtime.is_main)
    # What is sent to trackers is waited for when the processes have left each other.
    with following(config, recipe, console) as follower, ending_together(runtime):
        config = with_learning_rate(config, runtime.on_main(lambda: rate_begun_with(config)))
        if config.evaluate.only:
            with memory_explained(config, runtime), mixing_explained(runtime.strategy):
                return evaluate_only(config, build_task, recipe, runtime, console)
        folder = RunFolder(Path(str(config.output)))
        if finished := runtime.on_main(lambda: claim(folder, config, runtime.precision)):
            console.print(
                f"{recipe}: this run is finished; nothing was trained again (--output starts another, --resume never "
                "starts this one from scratch)"
            )
            if missing := [name for name in config.evaluate.metric_names or () if name not in finished.metrics]:
                console.print(f"{recipe}: --evaluate.only computes {', '.join(missing)} of its model")
            print_result(finished, console)
            follower.catch_up()
            return finished
        record = RunRecord(folder, runtime, recipe)
        with recorded(record, config):
            runtime.phase("reading data", patient=True)
            runtime.on_main(lambda: check_named_places(config))
            task = runtime.together(lambda: with_metrics(build_task(config), config))
            if finished := runtime.on_main(lambda: nothing_to_do(folder, config, task)):
                console.print(f"{recipe}: this run is finished, on the same data; nothing was trained again")
                print_result(finished, console)
                follower.catch_up()
                return finished
            state, start = begin(config, task, record, console)
            follower.begin()
            # Of a run whose model alone could not be saved there is nothing to do again but that.
            known = evaluated_before(state, start, folder)
            with writing(state, start, folder, console), compiling_explained():
                evaluation = train(state, known)
            result = finish(state, start, evaluation, record, console)
            # What holds a process group, such as the model that DDP wraps, has to be gone before the groups are left.
            del state
    return result


@contextmanager
def ending_together(runtime: Runtime) -> Iterator[None]:
    """End all processes in the same way, whichever of them raises what in this block."""
    try:
        yield
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


@contextmanager
def recorded(record: RunRecord, config: Config) -> Iterator[None]:
    """Listen for requests to stop, write down how the run ended, and release its folder."""
    runtime = record.runtime
    with runtime.stop.listening(record.end_at_once, launched=launched()):
        try:
            with memory_explained(config, runtime), mixing_explained(runtime.strategy):
                yield
            runtime.watchdog.settled = DONE
        except Preempted as stop:
            record.end(stop)
            runtime.watchdog.settled = STOPPED
            raise
        except BaseException as error:
            # If it came because another process died, the watchdog says so and this does not return.
            runtime.watchdog.explain(error)
            record.end(error)
            raise
        finally:
            record.folder.release()


@contextmanager
def memory_explained(config: Config, runtime: Runtime) -> Iterator[None]:
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
        text = out_of_memory_message(lack, runtime.phase.phase, config, runtime.strategy.is_sharded, newest)
        raise (SharedUserError if shared else UserError)(text) from None


def begin(config: Config, task: Task, record: RunRecord, console: Console) -> tuple[TrainState, Start]:
    """Prepare the run as it stands, try what would fail later, show the plan, and write down that it begins.

    Raises:
        UserError: the run can't go on from there, or would fail at its end.
    """
    folder, runtime, recipe = record.folder, record.runtime, record.recipe
    total = total_steps(config, len(task.data.train))
    start = runtime.on_main(lambda: choose_start(folder, config, runtime.precision, total))
    made_with = provenance(config)
    changed = runtime.on_main(lambda: what_changed(start, config, made_with))
    runtime.phase(PREPARING, patient=True)
    rehearses = config.rehearse and start.step == 0
    unused, known = start.state.get("unused", ()), known_cut(start.state, config, runtime.device)
    state = prepare(task, config, runtime, start.step, unused, folder if rehearses else None, known)
    state.starts = [*start.starts, {"first_step": start.step + 1, "started": now(), **made_with}]
    module = runtime.accelerator.unwrap_model(state.model)
    check_folder_is_shared(folder, module, runtime)
    if start.checkpoint is not None:
        when = f"when {start.checkpoint} was written"
        runtime.on_main(lambda: check_data(state.data, start.state.get("data", {}), when))
        load_checkpoint(start, module, state.optimizer.optimizer, runtime, state.frozen)
        state.load_json(start.state)
    remarks = [*start.remarks, *changed]
    begun_with = start.named or runtime.on_main(lambda: folder.record().get("resumed_from"))
    if not runtime.on_main(lambda: best_is_there(state, folder, begun_with)):
        remarks.append(
            f"the checkpoint of the best evaluation, of step {state.best_step:,}, is gone; the best from here on counts"
        )
        state.best, state.since_best = None, 0
    summary = {**runtime.together(lambda: plan(state)), "run folder": str(folder.path)}
    state.warnings += warnings_of(state)
    if rehearses:
        runtime.phase("trying the end of the run", patient=True)
        runtime.together(lambda: try_evaluation(task, state.config, runtime, state.model), talking=True)
        state.warnings += runtime.on_main(lambda: look_ahead(state, folder))
    if folder.locks_nothing is not None:
        remarks.append(
            f"the file system of {folder.path} has no locks ({folder.locks_nothing}): make sure that no other process "
            "trains there"
        )
    for remark in remarks:
        console.print(f"{recipe}: {remark}")
    console.summary(f"{recipe}: the plan", summary)
    for warning in state.warnings:
        console.print(f"  warning: {warning}")
    if start.checkpoint is not None:
        console.print(f"going on after step {start.step:,}, from {start.checkpoint}")
    if moved := runtime.on_main(lambda: record.begin(state, start, summary)):
        console.print(moved)
    # What was tried is no part of the training.
    forget_peak(*runtime.devices)
    record.training_begins()
    return state, start


def what_changed(start: Start, config: Config, made_with: Mapping[str, Any]) -> list[str]:
    """Return what has changed since the starts that led to the checkpoint, in words for the user.

    Raises:
        UserError: something has, and `resume` is strict.
    """
    found = changes(start.starts, made_with) if start.checkpoint is not None else []
    if found and config.resume == "strict":
        raise UserError(
            *(f"{change}, and resume is strict" for change in found),
            "go on with what the run was made with, or go on all the same with --resume auto, which writes down the "
            "change",
        )
    return [f"{change}; the run goes on (--resume strict would not)" for change in found]


def evaluated_before(state: TrainState, start: Start, folder: RunFolder) -> Evaluation | None:
    """Return the last evaluation of a run of which nothing is left to be done but to save the model."""
    if start.step < state.total_steps or start.seal is None:
        return None
    weights = weights_of_training(start.step, start.seal, state.config.exports_average)
    return state.runtime.on_main(lambda: evaluation_of(folder.path, weights))


@contextmanager
def writing(state: TrainState, start: Start, folder: RunFolder, console: Console) -> Iterator[None]:
    """Open ledger, checkpoints and display in the main process; where the state is sharded, each process writes its
    part."""
    runtime, config = state.runtime, state.config
    module = runtime.accelerator.unwrap_model(state.model)
    pinned = runtime.has_own_memory
    exchange = None
    if runtime.watchdog.store is not None and not shard_map_of(weights_of(module), runtime).is_whole:
        exchange = Exchange(runtime.rank, runtime.watchdog.store)
    if not runtime.is_main:
        if exchange is None:
            yield
            return
        part_writer = PartWriter(folder, exchange, pinned)
        state.output = Output(writer=part_writer)
        try:
            yield
        finally:
            part_writer.wait()
        return
    ledger = Ledger(folder.ledger_file, start.ledger)
    lies_here = start.checkpoint is not None and start.checkpoint.resolve().parent == folder.checkpoints.resolve()
    newest = start.step if lies_here else None
    saver = Saver(folder, ledger, config.checkpoint.keep, pinned, exchange, start.seal, newest)
    saver.tidy()
    try:
        every, best = config.log.every, config.checkpoint.best.partition(" ")[2]
        with Display(console, state.total_steps, start.step, every=every, best=best) as display:
            state.output = Output(ledger, display, saver)
            yield
    finally:
        saver.wait()
        ledger.close()
