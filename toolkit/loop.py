"""The loop: when each thing happens. Recipes say what is trained, Accelerate says where.

A global batch is the same sum of losses however many processes and micro-batches it is spread over. `take_step` computes
that sum and divides it once, by the number of units that all processes counted together.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf, isfinite
from time import perf_counter

import torch
from accelerate.optimizer import AcceleratedOptimizer

from toolkit.config import Config
from toolkit.errors import SharedUserError
from toolkit.evaluation import Evaluation, evaluate
from toolkit.ledger import LedgerRow
from toolkit.loading import LoadedMicroBatch
from toolkit.progress import Progress
from toolkit.randomness import seed_for
from toolkit.runtime import Runtime
from toolkit.schedules import learning_rate
from toolkit.tally import Tally, tally
from toolkit.task import Task


@dataclass
class Training:
    """What `prepare` made for one run: everything that the loop works on."""

    task: Task
    config: Config
    runtime: Runtime
    model: torch.nn.Module
    optimizer: AcceleratedOptimizer
    loader: Iterator[LoadedMicroBatch]
    steps_per_epoch: int
    total_steps: int


def train(training: Training, progress: Progress) -> Evaluation:
    """Run all steps and return the last evaluation."""
    task, config, runtime = training.task, training.config, training.runtime
    evaluation = Evaluation({})
    unread: deque[StepTaken] = deque()
    started = perf_counter()

    for step, micro_batches, waited in global_batches(training.loader):
        # The loss of a step reaches the host two steps later, and is summed over the processes together with the counts
        # of the step that begins: by then it is there, and the device has had work meanwhile.
        earlier = unread.popleft() if len(unread) > 1 else None
        agreed = runtime.agree(tally(micro_batches, earlier_loss=earlier.own_loss() if earlier else 0.0))
        if earlier:
            progress.record(row_of(earlier, agreed.earlier_loss, training))

        values = take_step(training, step, micro_batches, agreed.units)

        finished = perf_counter()
        unread.append(StepTaken(step, values, agreed, finished - started, waited))
        started = finished
        if evaluation_is_due(step, training):
            while len(unread) > 1:
                progress.record(settle(unread.popleft(), training))
            last = settle(unread.popleft(), training)
            if task.evaluate is not None:
                is_last = step + 1 == training.total_steps
                evaluation = evaluate(task, config, runtime, training.model, baseline=is_last)
            progress.record(last, evaluation.metrics)
            started = perf_counter()
    return evaluation


@dataclass(frozen=True)
class StepValues:
    """What a step computed; loss and norm may still be on their way to the host."""

    read: Callable[[], list[float]]
    """Returns the summed loss of this process and the gradient norm of all."""
    learning_rate: float


def take_step(training: Training, step: int, micro_batches: list[LoadedMicroBatch], units: int) -> StepValues:
    """Run one optimizer step, whose loss is averaged over `units` in all processes together."""
    task, runtime, model, optimizer = training.task, training.runtime, training.model, training.optimizer
    accelerator, count = runtime.accelerator, len(micro_batches)
    rate = learning_rate(training.config.optim, step, training.total_steps)
    for group in optimizer.param_groups:
        group["lr"] = rate
    # backward() divides by the number of micro-batches, and DDP by the number of processes: both are undone here, and
    # the sum over all of them is divided by the true number of units.
    scale = runtime.data_parallel_size * count / max(1, units)
    summed_loss = torch.zeros((), device=runtime.device)
    norm = torch.zeros((), device=runtime.device)

    runtime.accumulate_over(count)
    for number, micro in enumerate(micro_batches):
        runtime.seed(seed_for(training.config.seed, "dropout", step, runtime.rank, number))
        with accelerator.accumulate(model):
            loss = task.loss(model, runtime.to_device(micro.batch))
            if micro.plan.spare:
                loss = loss * 0.0
            summed_loss = summed_loss + loss.detach()
            accelerator.backward(loss * scale)
            # Without any unit there is nothing to learn from: neither momentum nor weight decay may act.
            if accelerator.sync_gradients and units:
                norm = accelerator.clip_grad_norm_(model.parameters(), training.config.optim.clip or inf)
                skip_unless_finite(optimizer, norm)
                optimizer.step()
            # Accelerate lets this pass until gradients are synchronised.
            optimizer.zero_grad()
    return StepValues(runtime.read_later(torch.stack([summed_loss.double(), norm.double()])), rate)


def skip_unless_finite(optimizer: AcceleratedOptimizer, norm: torch.Tensor) -> None:
    """Let the optimizer's next step leave weights and averages alone if the norm is not finite, without waiting for it.

    Fused optimizers look at `found_inf` on the device. Under fp16 the gradient scaler sets it by itself.
    """
    optimizer.optimizer.found_inf = (~torch.isfinite(norm)).float()


@dataclass(frozen=True)
class StepTaken:
    """A step whose row has not been written yet."""

    step: int
    values: StepValues
    agreed: Tally
    seconds: float
    waited: float

    def own_loss(self) -> float:
        """Return the summed loss of this process."""
        return self.values.read()[0]


def settle(taken: StepTaken, training: Training) -> LedgerRow:
    """Return the row of a step now, with an all-reduce of its own, because an evaluation comes next."""
    return row_of(taken, training.runtime.agree(Tally(earlier_loss=taken.own_loss())).earlier_loss, training)


def row_of(taken: StepTaken, loss: float, training: Training) -> LedgerRow:
    """Return the ledger row of a step, given the loss summed over all processes.

    Raises:
        SharedUserError: the gradient was not finite, and not because fp16 tries too large a loss scale.
    """
    norm = taken.values.read()[1]
    if not isfinite(norm) and training.runtime.precision != "fp16":
        raise SharedUserError(
            f"the gradient of step {taken.step + 1} is not finite (its norm is {norm}); the weights were not changed by it. "
            "At the first steps look for inf or nan in the data; later a lower optim.lr, a longer optim.warmup or a smaller "
            "optim.clip usually helps"
        )
    counts = taken.agreed
    return LedgerRow(
        step=taken.step + 1,
        epoch=(taken.step + 1) / training.steps_per_epoch,
        loss=loss / counts.units if counts.units else None,
        gradient_norm=norm,
        learning_rate=taken.values.learning_rate,
        units=counts.units,
        samples=counts.samples,
        fingerprint=f"{counts.fingerprint:016x}",
        padding=1 - counts.used / counts.padded if counts.padded else None,
        seconds=taken.seconds,
        waiting=taken.waited,
        skipped=not isfinite(norm) or counts.units == 0,
    )


def global_batches(loader: Iterator[LoadedMicroBatch]) -> Iterator[tuple[int, list[LoadedMicroBatch], float]]:
    """Yield (step, this process's micro-batches, seconds waited for them).

    They wait in host memory until all are there: the units of the whole step have to be counted before its first
    backward pass.
    """
    asked = perf_counter()
    micro_batches: list[LoadedMicroBatch] = []
    for micro in loader:
        micro_batches.append(micro)
        if len(micro_batches) == micro.plan.accumulation:
            yield micro.plan.step, micro_batches, perf_counter() - asked
            micro_batches = []
            asked = perf_counter()


def evaluation_is_due(step: int, training: Training) -> bool:
    """Return whether an evaluation follows this step; after the last step even without data for it, to settle the rows."""
    every = training.config.evaluate.every or training.steps_per_epoch
    return (step + 1) % every == 0 or step + 1 == training.total_steps
