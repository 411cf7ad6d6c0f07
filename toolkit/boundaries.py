"""What happens between two steps: rows are settled, a checkpoint is begun, the model is evaluated, the run stops."""

from collections.abc import Sequence
from typing import NoReturn

from toolkit.checkpoint.load import content_of
from toolkit.config.yaml import as_mapping
from toolkit.distributed.phase import COPYING
from toolkit.errors import Preempted
from toolkit.evaluation import evaluate
from toolkit.output.evaluation_file import Evaluation
from toolkit.progress import Progress
from toolkit.rows import Unread
from toolkit.train_state import Training, state_of


def evaluation_is_due(done: int, training: Training) -> bool:
    """Return whether an evaluation follows so many steps."""
    every = training.config.evaluate.every or training.steps_per_epoch
    return training.task.data.evaluate is not None and (done % every == 0 or done == training.total_steps)


def checkpoint_is_due(done: int, training: Training) -> bool:
    """Return whether a checkpoint follows so many steps."""
    every = training.config.checkpoint.every or training.steps_per_epoch
    return done % every == 0 or done == training.total_steps


def pause(training: Training, unread: Unread, progress: Progress, done: int) -> Evaluation | None:
    """Do what is due after so many steps; return the evaluation if there was one.

    The checkpoint comes first: it is written while the model is evaluated, and says that the evaluation is still to come.
    """
    saves, evaluates = checkpoint_is_due(done, training), evaluation_is_due(done, training)
    if not saves and not evaluates:
        return None
    *earlier, last = unread.settle()
    for row in earlier:
        progress.record(row)
    if evaluates:
        training.standing.pending = last
    else:
        progress.record(last)
    if saves:
        save(training, progress, done)
    return conclude(training, progress, done) if evaluates else None


def conclude(training: Training, progress: Progress, done: int, known: Evaluation | None = None) -> Evaluation:
    """Evaluate after a step, unless its evaluation is `known`, and write its row."""
    evaluation = known or evaluate(
        training.task,
        training.config,
        training.runtime,
        training.model,
        last=done == training.total_steps,
        display=progress.display,
    )
    if evaluation is None:
        stop_here(training, progress, done)
    pending, training.standing.pending = training.standing.pending, None
    assert pending is not None
    progress.record(pending, evaluation.metrics)
    if training.is_best(evaluation.metrics, done):
        progress.protect(done)
        save(training, progress, done)
    return evaluation


def evaluate_again(training: Training, progress: Progress) -> Evaluation:
    """Evaluate where no step is left and the row of the last one has its metrics: only the result still needs them."""
    if training.task.data.evaluate is None:
        return Evaluation({})
    evaluation = evaluate(
        training.task, training.config, training.runtime, training.model, last=True, display=progress.display
    )
    return evaluation or stop_here(training, progress, training.total_steps)


def save(training: Training, progress: Progress, done: int) -> None:
    """Begin a checkpoint of this moment: in the main process, or in all of them where each writes its part."""
    runtime, saver = training.runtime, progress.saver
    # A slow disk is no hang.
    runtime.phase("waiting until the checkpoint before is written", done, patient=True)
    if saver is not None:
        saver.wait()
    runtime.phase(COPYING, done)
    # Rows that could not be written would be missing from its ledger.
    wanted = saver is not None and saver.begun != done and not progress.in_trouble
    sharded = runtime if saver is not None and saver.is_shared else None
    if sharded is not None:
        # Whether writing still works the main process alone knows.
        wanted = runtime.on_main(lambda: wanted)
    if saver is None or not wanted:
        return
    module = runtime.accelerator.unwrap_model(training.model)
    state = {**state_of(training, progress), "config": as_mapping(training.config)}
    epoch = done / training.steps_per_epoch
    saver.save(done, lambda: content_of(module, training.optimizer.optimizer, done, epoch, state, sharded))


def stop_here(training: Training, progress: Progress, done: int) -> NoReturn:
    """Seal a checkpoint of this moment and end the run in all processes.

    Raises:
        Preempted: always, unless the checkpoint can't be written.
    """
    runtime = training.runtime
    runtime.phase("sealing the last checkpoint", done, patient=True)
    # Told by the first process that was asked; the grace period runs in all of them from here at the latest.
    reasons = runtime.gather(runtime.stop.reason)
    runtime.stop.note("another process was asked to stop")

    shared = progress.saver is not None and progress.saver.is_shared
    if shared:
        save(training, progress, done)
        runtime.phase("sealing the last checkpoint", done, patient=True)

    def seal() -> str:
        if not shared:
            save(training, progress, done)
        progress.finish_writing()
        return told(reasons)

    raise Preempted(done, runtime.on_main(seal))


def told(reasons: Sequence[str | None]) -> str:
    """Return why a run stops, of what was asked of each process: a signal to some of them comes to the first of these."""
    asked = [(rank, reason) for rank, reason in enumerate(reasons) if reason is not None]
    rank, reason = asked[0]
    # The file stands in the run folder, for all of them, whoever saw it first.
    return f"{reason} to process {rank}" if reason.startswith("SIG") and len(asked) < len(reasons) else reason
