"""The loop: when each thing happens. Recipes say what is trained, Accelerate says where.

A global batch is the same sum of losses however many processes and micro-batches it is spread over. `take_step` computes
that sum and divides it once, by the number of units that all processes counted together.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import perf_counter

import torch
from accelerate.optimizer import AcceleratedOptimizer

from toolkit.config import Config
from toolkit.errors import UserError
from toolkit.evaluation import Evaluation, evaluate
from toolkit.ledger import LedgerRow
from toolkit.loading import LoadedMicroBatch
from toolkit.progress import Progress
from toolkit.randomness import seed_for
from toolkit.runtime import Runtime, clip_limit
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
        # Losses reach the host two steps late: by then they are there, and the device has work queued meanwhile.
        due = unread.popleft() if len(unread) > 1 else None
        agreed = runtime.agree(tally(micro_batches, due.read_loss() if due else 0.0))
        if due:
            progress.record(row_of(due, agreed.earlier_loss, training))

        taken = take_step(training, step, micro_batches, agreed)

        finished = perf_counter()
        unread.append(StepTaken(*taken, step, agreed, finished - started, waited))
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


def take_step(
    training: Training, step: int, micro_batches: list[LoadedMicroBatch], agreed: Tally
) -> tuple[Callable[[], list[float]], float]:
    """Run one optimizer step; return what reads its summed loss and gradient norm, and the learning rate."""
    task, runtime, model, optimizer = training.task, training.runtime, training.model, training.optimizer
    accelerator, count = runtime.accelerator, len(micro_batches)
    rate = learning_rate(training.config.optim, step, training.total_steps)
    for group in optimizer.param_groups:
        group["lr"] = rate
    # backward() divides by the number of micro-batches, and DDP by the number of processes: both are undone here, and
    # the sum over all of them is divided by the true number of units.
    scale = runtime.data_parallel_size * count / max(1, agreed.units)
    loss = norm = torch.zeros((), device=runtime.device)

    runtime.accumulate_over(count)
    for number, micro in enumerate(micro_batches):
        runtime.seed(seed_for(training.config.seed, "dropout", step, runtime.rank, number))
        with accelerator.accumulate(model):
            total = task.loss(model, runtime.to_device(micro.batch))
            if micro.plan.spare:
                total = total * 0.0
            loss = loss + total.detach()
            accelerator.backward(total * scale)
            if accelerator.sync_gradients:
                norm = accelerator.clip_grad_norm_(model.parameters(), clip_limit(training.config))
                # A fused optimizer leaves weights and averages alone where this is set; the host need not know yet.
                # (Under fp16 the gradient scaler does the same and sets it itself.)
                optimizer.optimizer.found_inf = (~torch.isfinite(norm) | (agreed.units == 0)).float()
            optimizer.step()
            optimizer.zero_grad()
    return runtime.read_later(torch.stack([loss.double(), norm.double()])), rate


@dataclass(frozen=True)
class StepTaken:
    """A step whose values may still be on their way to the host."""

    read: Callable[[], list[float]]
    learning_rate: float
    step: int
    agreed: Tally
    seconds: float
    waited: float

    def read_loss(self) -> float:
        """Return the summed loss of this process."""
        return self.read()[0]


def settle(taken: StepTaken, training: Training) -> LedgerRow:
    """Return the row of a step now, with an all-reduce of its own, because an evaluation comes next."""
    return row_of(taken, training.runtime.agree(Tally(earlier_loss=taken.read_loss())).earlier_loss, training)


def row_of(taken: StepTaken, loss: float, training: Training) -> LedgerRow:
    """Return the ledger row of a step, given the loss summed over all processes.

    Raises:
        UserError: the gradient was not finite, and not because fp16 tries too large a loss scale.
    """
    norm = taken.read()[1]
    finite = norm - norm == 0
    if not finite and training.runtime.precision != "fp16":
        raise UserError(
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
        learning_rate=taken.learning_rate,
        units=counts.units,
        samples=counts.samples,
        fingerprint=f"{counts.fingerprint:016x}",
        padding=1 - counts.used / counts.padded if counts.padded else None,
        seconds=taken.seconds,
        waiting=taken.waited,
        skipped=not finite or counts.units == 0,
    )


def global_batches(loader: Iterator[LoadedMicroBatch]) -> Iterator[tuple[int, list[LoadedMicroBatch], float]]:
    """Yield (step, this process's micro-batches, seconds waited for them): they wait in host memory until all are there."""
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
