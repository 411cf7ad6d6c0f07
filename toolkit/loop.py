"""The loop: when each thing happens. Recipes say what is trained, Accelerate says where.

A global batch is the same sum of losses however many processes and micro-batches share it. `train_step`
computes that sum and divides it once, by the number of units that all processes counted together.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from math import inf, isfinite
from typing import NoReturn

import torch
from accelerate.optimizer import AcceleratedOptimizer
from torch.distributed.tensor import DTensor

from toolkit.checkpoint.state_dict import content_of
from toolkit.checkpoint.writer import Content
from toolkit.config.yaml import as_mapping
from toolkit.data.loader import LoadedMicroBatch, started
from toolkit.distributed.counts import Counts, count_micro_batches
from toolkit.distributed.memory import StepLacksMemoryError
from toolkit.distributed.phase import BACKWARD_PASS, COPYING, FORWARD_PASS, OPTIMIZER_STEP
from toolkit.distributed.pipeline import stage_of
from toolkit.distributed.zero import MasterWeights
from toolkit.errors import Preempted
from toolkit.evaluation import evaluate_model
from toolkit.grad_cache import GlobalBatchStep, loss_of_batch
from toolkit.optimizer import exported_weights, take_into_average
from toolkit.out_of_memory import BeforeTheStep, begin_again, withstand
from toolkit.output.evaluation_file import Evaluation
from toolkit.pipelined_step import run_through_stages
from toolkit.randomness import seed_for
from toolkit.schedules import learning_rate
from toolkit.step_log import StepValues
from toolkit.task import GlobalBatchLoss
from toolkit.train_state import TrainState


def train(state: TrainState, known: Evaluation | None = None) -> Evaluation:
    """Run the optimizer steps that are left and return the last evaluation.

    Args:
        state: the run as it was prepared, or as a checkpoint left it.
        known: the evaluation after the last step, where no step is left and it was written down before.

    Raises:
        Preempted: somebody asked the run to stop; its checkpoint is sealed.
    """
    evaluation = make_up_evaluation(state, known)
    before = BeforeTheStep(state)
    while not state.is_out_of_patience:
        try:
            return train_steps(state, evaluation, before)
        except StepLacksMemoryError as error:
            step = error.step
        begin_again(state, step, before)
    return evaluation


def train_steps(state: TrainState, evaluation: Evaluation, before: BeforeTheStep) -> Evaluation:
    """Run the steps from where the loader begins, and return the last evaluation.

    Raises:
        StepLacksMemoryError: memory ran out in a step, which all processes can do again.
        Preempted: see `train`.
    """
    for step, micro_batches in global_batches(state):
        counts = all_reduce_counts(state, step, micro_batches)  # the one small all-reduce of a step, on the host
        if counts.stop:
            stop(state, step)  # seals a checkpoint and raises Preempted in every process

        before.note()
        attempt = partial(train_step, state, step, micro_batches, counts.units)
        values = withstand(state, step, micro_batches, attempt)
        # Loss and norm are read two steps later, so that no step waits for the device.
        state.step_log.append(step, values, counts, state.output.stood_still())

        # The checkpoint comes first: it is written while the model is evaluated, and says that an evaluation is
        # missing.
        if state.is_checkpoint_due(step + 1):
            save_checkpoint(state, step + 1)
        if state.is_evaluation_due(step + 1):
            evaluation = evaluate(state, step + 1)
            if state.is_out_of_patience:
                save_checkpoint(state, step + 1)
                break
    return evaluation


def train_step(state: TrainState, step: int, micro_batches: list[LoadedMicroBatch], units: float) -> StepValues:
    """Run one optimizer step, whose loss is averaged over `units` in all processes together; steps count from 0."""
    rate = learning_rate(state.config.optim, step, state.total_steps)
    for group in state.optimizer.param_groups:
        group["lr"] = rate * group["rate_factor"]
    if (stage := stage_of(state.model)) is not None:
        summed_loss = run_through_stages(stage, state, step, micro_batches, units)
    else:
        summed_loss = run_one_by_one(state, step, micro_batches, units)
    # Without any unit there is nothing to learn from: neither momentum nor weight decay may act.
    norm = change_weights(state, step) if units else state.runtime.zero
    clear_gradients(state)
    return StepValues(state.runtime.read_later(summed_loss, norm), rate)


def run_one_by_one(state: TrainState, step: int, micro_batches: list[LoadedMicroBatch], units: float) -> torch.Tensor:
    """Add up the gradients of a step, whose loss is averaged over `units`, and return this process's summed loss."""
    task, runtime, model = state.task, state.runtime, state.model
    accelerator, phase, count = runtime.accelerator, runtime.phase, len(micro_batches)
    # backward() divides by the number of micro-batches, and DDP by the number of processes: both are undone here, and
    # the sum over all of them is divided by the true number of units.
    scale = runtime.data_parallel_size * runtime.divisor(count) / (units or 1)
    summed_loss = runtime.zero

    global_step = (
        GlobalBatchStep(state, step, micro_batches, task.loss) if isinstance(task.loss, GlobalBatchLoss) else None
    )

    runtime.accumulate_over(count)
    for number, micro in enumerate(micro_batches):
        # What else is random: it repeats on the same topology only, which the plan says.
        runtime.seed(seed_for(state.config.seed, "dropout", step, runtime.data_parallel_rank, number))
        passes = state.flops.counting(micro)
        with accelerator.accumulate(model), runtime.drawing_from(micro.dropout_rows), passes:
            phase(FORWARD_PASS, step + 1, batch=micro)
            batch = runtime.to_device(micro.batch)
            if global_step is not None:
                loss, value = global_step.part(number, batch)
            else:
                loss = loss_of_batch(task, model, batch)
                if micro.plan.dummy:
                    loss = loss * 0.0  # its backward pass is needed: the other processes wait for it
                value = loss.detach()
            summed_loss = summed_loss + value
            phase(BACKWARD_PASS, step + 1, batch=micro)
            accelerator.backward(loss * scale)
            passes.stop()
    return summed_loss


def change_weights(state: TrainState, step: int) -> torch.Tensor:
    """Clip the gradients of a step, have the optimizer take it, and return the norm that they had."""
    runtime, optimizer = state.runtime, state.optimizer.optimizer
    runtime.phase(OPTIMIZER_STEP, step + 1)
    if state.power_sgd is not None:
        state.power_sgd.average_gradients()
    norm = clip_and_step(state)
    if state.config.optim.average is not None:
        take_into_average(optimizer, state.config.optim.average, norm)
    return norm


def clip_and_step(state: TrainState) -> torch.Tensor:
    """Clip the gradients, change the weights unless their norm is not finite, and return that norm."""
    optimizer = state.optimizer
    if isinstance(optimizer.optimizer, MasterWeights):
        return optimizer.optimizer.clip_and_step()  # DeepSpeed does all of it in one call
    clip = state.config.optim.clip
    if (stage := stage_of(state.model)) is not None:
        norm = stage.clip(state.parameters, clip)
    else:
        norm = whole(state.runtime.accelerator.clip_grad_norm_(state.parameters, clip or inf))
    skip_unless_finite(optimizer, norm)
    optimizer.step()
    return norm


def whole(norm: torch.Tensor) -> torch.Tensor:
    """Return a norm as a plain number; that of sharded gradients is still to be summed over the processes."""
    return norm.full_tensor() if isinstance(norm, DTensor) else norm


def skip_unless_finite(optimizer: AcceleratedOptimizer, norm: torch.Tensor) -> None:
    """Let the optimizer's next step leave weights and averages alone if the norm is not finite, without waiting for it.

    All optimizers that are built (`toolkit/optimizer.py`) look at `found_inf` on the device. Under fp16 the gradient
    scaler sets it by itself. A norm on the host is known at once, and without `found_inf` the kernels have less to do.
    """
    known = norm.device.type == "cpu" and isfinite(norm.item())
    optimizer.optimizer.found_inf = None if known else (~torch.isfinite(norm)).float()


def clear_gradients(state: TrainState) -> None:
    """Do what `zero_grad` does, in a fifth of the time: around torch's own stand marks for a profiler, and Accelerate's
    inspects a signature at each call."""
    masters = state.optimizer.optimizer
    if isinstance(masters, MasterWeights):
        masters.drop_gradients()
        return
    if state.runtime.keeps_gradients:
        state.optimizer.optimizer.zero_grad(set_to_none=False)
        return
    for parameter in state.parameters:
        parameter.grad = None


def global_batches(state: TrainState) -> Iterator[tuple[int, list[LoadedMicroBatch]]]:
    """Yield each step that is left, counted from 0, with this process's micro-batches.

    They wait in host memory until all are there: the units of the whole step have to be counted before its first
    backward pass.
    """
    log, phase = state.step_log, state.runtime.phase
    phase("waiting for data", state.first_step + 1)
    log.begin_step()
    micro_batches: list[LoadedMicroBatch] = []
    for micro in started(state.loader):
        micro_batches.append(micro)
        if len(micro_batches) == micro.plan.accumulation:
            log.data_has_come()
            yield micro.plan.step, micro_batches
            micro_batches = []
            phase("waiting for data", micro.plan.step + 2)
            log.begin_step()


def all_reduce_counts(state: TrainState, step: int, micro_batches: list[LoadedMicroBatch]) -> Counts:
    """Return what all processes together count of a step: its units and samples, and who was asked to stop.

    The loss of the step before the last one is summed along, and its row recorded: its value has reached the host by
    now, and the device has work meanwhile.

    Raises:
        StepLacksMemoryError: memory ran out in the step before, in one process or several.
        UserError: ledger or checkpoints can't be written, or a gradient was not finite and the run is to stop for that.
    """
    runtime, output = state.runtime, state.output
    earlier = state.step_log.take_due()
    own_loss = earlier.own_loss() if earlier else 0.0
    runtime.phase("agreeing with the others", step + 1)
    asked, lacking = runtime.stop.requested, state.lack is not None
    mine = count_micro_batches(micro_batches, own_loss, asked, output.has_failed, state.flops.of, lacking)
    counts = runtime.all_reduce_counts(mine)
    if earlier:
        state.record(state.row_of(earlier, counts.earlier_loss))
    if counts.lacking:
        raise StepLacksMemoryError(state.step_log.pending[-1].step)
    if counts.trouble:
        runtime.on_main(output.raise_failure)
    return counts


def record_pending(state: TrainState, steps_done: int) -> None:
    """Record the rows of all steps up to this one now, each with an all-reduce of its own.

    If an evaluation follows, the last row waits for its metrics.

    Raises:
        StepLacksMemoryError: memory ran out in the last of these steps, in one process or several.
    """
    if state.power_sgd is not None:
        # A checkpoint may follow, which one process alone writes.
        state.power_sgd.make_saveable()
    pending = state.step_log.pending
    while pending:
        oldest, lacking = pending[0], int(state.lack is not None)
        counts = state.runtime.all_reduce_counts(Counts(earlier_loss=oldest.own_loss(), lacking=lacking))
        if counts.lacking and len(pending) == 1:
            raise StepLacksMemoryError(oldest.step)
        pending.popleft()
        row = state.row_of(oldest, counts.earlier_loss)
        if row.step == steps_done and state.is_evaluation_due(steps_done):
            state.row_awaiting_metrics = row
        else:
            state.record(row)


def make_up_evaluation(state: TrainState, known: Evaluation | None) -> Evaluation:
    """Make up for an evaluation that an earlier start has missed, or that only the result still needs."""
    nothing_left = state.first_step == state.total_steps and state.exported_step == state.first_step
    if state.row_awaiting_metrics is not None or (nothing_left and state.task.data.evaluate is not None):
        return evaluate(state, state.first_step, known)
    return known or Evaluation({})


def evaluate(state: TrainState, steps_done: int, known: Evaluation | None = None) -> Evaluation:
    """Evaluate after so many steps, unless the evaluation is `known`, and record the row that waits for its metrics.

    The checkpoint of the best evaluation is saved, and never deleted.

    Raises:
        Preempted: somebody asked the run to stop meanwhile; the evaluation is made up for when it goes on.
    """
    record_pending(state, steps_done)
    last, display = steps_done == state.total_steps, state.output.display
    with exported_weights(state.config, state.model, state.optimizer.optimizer):
        evaluation = known or evaluate_model(
            state.task, state.config, state.runtime, state.model, last, display=display
        )
    if evaluation is None:
        stop(state, steps_done)
    row, state.row_awaiting_metrics = state.row_awaiting_metrics, None
    if row is not None:
        state.record(row, evaluation.metrics)
        # A checkpoint of this step may have been begun before its evaluation; noted as the best it is never deleted.
        if state.note_if_best(evaluation.metrics, steps_done):
            begin_checkpoint(state, steps_done)
    return evaluation


def save_checkpoint(state: TrainState, steps_done: int) -> None:
    """Begin a checkpoint after so many steps; it is written while training goes on."""
    record_pending(state, steps_done)
    begin_checkpoint(state, steps_done)


def begin_checkpoint(state: TrainState, steps_done: int) -> None:
    """Copy the state and have it written, unless that was begun after this very step.

    The main process does it, or all of them where each holds a part.
    """
    runtime, writer = state.runtime, state.output.writer
    # A slow disk is no hang.
    runtime.phase("waiting until the checkpoint before is written", steps_done, patient=True)
    if writer is not None:
        writer.wait()
    runtime.phase(COPYING, steps_done)
    # Rows that could not be written would be missing from its ledger.
    wanted = writer is not None and writer.begun != steps_done and not state.output.has_failed
    sharded = runtime if writer is not None and writer.is_shared else None
    if sharded is not None:
        # Whether writing still works the main process alone knows.
        wanted = runtime.on_main(lambda: wanted)
    if writer is None or not wanted:
        return
    module = runtime.accelerator.unwrap_model(state.model)
    saved = {**state.as_json(), "config": as_mapping(state.config)}
    epoch = steps_done / state.steps_per_epoch

    def collect() -> Content:
        return content_of(module, state.optimizer.optimizer, steps_done, epoch, saved, sharded)

    writer.save(steps_done, collect, best=state.best_step)


def stop(state: TrainState, steps_done: int) -> NoReturn:
    """Seal a checkpoint after so many steps and end the run in all processes.

    Raises:
        Preempted: always, unless the checkpoint can't be written.
    """
    runtime, output = state.runtime, state.output
    record_pending(state, steps_done)
    runtime.phase("sealing the last checkpoint", steps_done, patient=True)
    reasons = runtime.gather(runtime.stop.reason)
    # Where nobody asked this process, its grace period begins here.
    runtime.stop.note("another process was asked to stop")

    shared = output.writer is not None and output.writer.is_shared
    if shared:
        begin_checkpoint(state, steps_done)
        runtime.phase("sealing the last checkpoint", steps_done, patient=True)

    def seal() -> str:
        if not shared:
            begin_checkpoint(state, steps_done)
        output.wait()
        return stop_reason(reasons)

    reason = runtime.on_main(seal)
    raise Preempted(steps_done, reason)


def stop_reason(reasons: Sequence[str | None]) -> str:
    """Return why a run stops, of what each process was asked: a signal to some of them comes to the first of these."""
    asked = [(rank, reason) for rank, reason in enumerate(reasons) if reason is not None]
    rank, reason = asked[0]
    # The file STOP in the run folder is for all of them, whoever saw it first.
    return f"{reason} to process {rank}" if reason.startswith("SIG") and len(asked) < len(reasons) else reason
