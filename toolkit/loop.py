"""The loop: when each thing happens. Recipes say what is trained, Accelerate says where.

A global batch is the same sum of losses however many processes and micro-batches it is spread over. `take_step` computes
that sum and divides it once, by the number of units that all processes counted together.
"""

from collections.abc import Iterator
from math import inf
from time import perf_counter

import torch
from accelerate.optimizer import AcceleratedOptimizer
from torch.distributed.tensor import DTensor

from toolkit.boundaries import conclude, evaluate_again, pause, stop_here
from toolkit.data.loader import LoadedMicroBatch, started
from toolkit.distributed.counts import count_micro_batches
from toolkit.distributed.phase import BACKWARD_PASS, FORWARD_PASS, OPTIMIZER_STEP
from toolkit.grad_cache import GlobalBatchStep, loss_of_batch
from toolkit.output.evaluation_file import Evaluation
from toolkit.progress import Progress
from toolkit.randomness import seed_for
from toolkit.rows import StepTaken, StepValues, Unread
from toolkit.schedules import learning_rate
from toolkit.task import GlobalBatchLoss
from toolkit.train_state import Training


def train(training: Training, progress: Progress, known: Evaluation | None = None) -> Evaluation:
    """Run all steps that are left and return the last evaluation, which is `known` where it was written down before.

    Raises:
        Preempted: somebody asked the run to stop; its checkpoint is sealed.
    """
    runtime = training.runtime
    unread = Unread(training, progress)
    evaluation = Evaluation({})
    if training.standing.pending is not None:
        # The run ended before this evaluation had.
        evaluation = conclude(training, progress, training.first_step, known)
    elif training.first_step == training.total_steps:
        evaluation = known or evaluate_again(training, progress)
    begun = perf_counter()

    for step, micro_batches, waited in global_batches(training):
        # The loss of a step reaches the host two steps later, and is summed over the processes together with the counts
        # of the step that begins: by then it is there, and the device has had work meanwhile.
        earlier = unread.arrived()
        own_loss = earlier.own_loss() if earlier else 0.0
        runtime.phase("agreeing with the others", step + 1)
        counts = runtime.all_reduce_counts(
            count_micro_batches(micro_batches, own_loss, runtime.stop.requested, progress.in_trouble)
        )
        if earlier:
            progress.record(unread.row_of(earlier, counts.earlier_loss))
        if counts.trouble:
            runtime.on_main(progress.raise_trouble)
        if counts.stop:
            for row in unread.settle():
                progress.record(row)
            stop_here(training, progress, step)

        values = take_step(training, step, micro_batches, counts.units)

        unread.add(StepTaken(step, values, counts, perf_counter() - begun, waited, progress.stood_still()))
        evaluation = pause(training, unread, progress, step + 1) or evaluation
        begun = perf_counter()
    return evaluation


def take_step(training: Training, step: int, micro_batches: list[LoadedMicroBatch], units: int) -> StepValues:
    """Run one optimizer step, whose loss is averaged over `units` in all processes together."""
    task, runtime, model, optimizer = training.task, training.runtime, training.model, training.optimizer
    accelerator, phase, count = runtime.accelerator, runtime.phase, len(micro_batches)
    rate = learning_rate(training.config.optim, step, training.total_steps)
    for group in optimizer.param_groups:
        group["lr"] = rate
    # backward() divides by the number of micro-batches, and DDP by the number of processes: both are undone here, and
    # the sum over all of them is divided by the true number of units.
    scale = runtime.data_parallel_size * count / max(1, units)
    summed_loss = torch.zeros((), device=runtime.device)
    norm = torch.zeros((), device=runtime.device)

    global_loss = (
        GlobalBatchStep(training, step, micro_batches, task.loss) if isinstance(task.loss, GlobalBatchLoss) else None
    )

    runtime.accumulate_over(count)
    for number, micro in enumerate(micro_batches):
        runtime.seed(seed_for(training.config.seed, "dropout", step, runtime.data_parallel_rank, number))
        with accelerator.accumulate(model):
            phase(FORWARD_PASS, step + 1, batch=micro)
            batch = runtime.to_device(micro.batch)
            if global_loss is not None:
                loss, value = global_loss.part(number, batch)
            else:
                loss = loss_of_batch(task, model, batch)
                if micro.plan.dummy:
                    loss = loss * 0.0
                value = loss.detach()
            summed_loss = summed_loss + value
            phase(BACKWARD_PASS, step + 1, batch=micro)
            accelerator.backward(loss * scale)
            # Without any unit there is nothing to learn from: neither momentum nor weight decay may act.
            if accelerator.sync_gradients and units:
                phase(OPTIMIZER_STEP, step + 1)
                norm = whole(accelerator.clip_grad_norm_(model.parameters(), training.config.optim.clip or inf))
                skip_unless_finite(optimizer, norm)
                optimizer.step()
            # Accelerate lets this pass until gradients are synchronised.
            optimizer.zero_grad()
    return StepValues(runtime.read_later(summed_loss, norm), rate)


def whole(norm: torch.Tensor) -> torch.Tensor:
    """Return a norm as a plain number; that of sharded gradients is still to be summed over the processes."""
    return norm.full_tensor() if isinstance(norm, DTensor) else norm


def skip_unless_finite(optimizer: AcceleratedOptimizer, norm: torch.Tensor) -> None:
    """Let the optimizer's next step leave weights and averages alone if the norm is not finite, without waiting for it.

    Fused optimizers look at `found_inf` on the device. Under fp16 the gradient scaler sets it by itself.
    """
    optimizer.optimizer.found_inf = (~torch.isfinite(norm)).float()


def global_batches(training: Training) -> Iterator[tuple[int, list[LoadedMicroBatch], float]]:
    """Yield (step, this process's micro-batches, seconds waited for them).

    They wait in host memory until all are there: the units of the whole step have to be counted before its first
    backward pass.
    """
    phase = training.runtime.phase
    phase("waiting for data", training.first_step + 1)
    asked = perf_counter()
    micro_batches: list[LoadedMicroBatch] = []
    for micro in started(training.loader):
        micro_batches.append(micro)
        if len(micro_batches) == micro.plan.accumulation:
            yield micro.plan.step, micro_batches, perf_counter() - asked
            micro_batches = []
            phase("waiting for data", micro.plan.step + 2)
            asked = perf_counter()
