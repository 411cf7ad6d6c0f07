"""Everything that a run works on, in one object: what it trains, how far it is, and where it writes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import Path
from typing import Any, Literal

import torch
from accelerate.optimizer import AcceleratedOptimizer

from toolkit.best_evaluation import Best, better_of
from toolkit.checkpoint.writer import Writer
from toolkit.config.schema import Config
from toolkit.data.loader import MicroBatchSampler
from toolkit.data.micro_batches import Limits
from toolkit.data.order import ShuffledOrder
from toolkit.distributed.compression import PowerSGD
from toolkit.distributed.memory import Lack
from toolkit.distributed.pipeline import stage_of
from toolkit.distributed.runtime import Runtime
from toolkit.errors import SharedUserError, UserError
from toolkit.flop_count import ATTEMPTS, FlopMeter
from toolkit.models.compiled import is_compiled
from toolkit.models.parameters import reshard
from toolkit.output.console import Display
from toolkit.output.ledger import Ledger, LedgerRow
from toolkit.output.meters import Meters, PeakMemory
from toolkit.output.run_folder import folder_name
from toolkit.step_log import PendingStep, StepLog
from toolkit.task import Task

NAMED_SAMPLES = 40
# A gradient scaler halves its scale at each overflow: after so many in a row no scale is left to try.
MOST_SKIPS_IN_FP16 = 50


@dataclass
class Output:
    """Where a run writes: ledger, checkpoints and screen. In every process but the main one it is empty, or nearly
    so."""

    ledger: Ledger | None = None
    display: Display | None = None
    writer: Writer | None = None
    """Writes checkpoints, or this process's part of them."""
    failure: Exception | None = None
    """Why the ledger can't be written any more."""
    rows: list[LedgerRow] | None = None
    """Takes the rows too, where a test or a benchmark asks for them."""
    meters: Meters = field(default_factory=Meters)
    """The steps of this start, added up."""

    def write(self, row: LedgerRow) -> None:
        """Write the row of a step."""
        self.meters.add(row)
        if self.rows is not None:
            self.rows.append(row)
        if self.ledger is not None and self.failure is None:
            try:
                self.ledger.write(row)
            except OSError as error:
                self.failure = UserError(
                    f"the ledger {self.ledger.path} can't be written ({error.strerror or error}); make room or repair "
                    "the folder, then start the same command again: it goes on from the newest checkpoint"
                )
        if self.display is not None:
            self.display.step(row)

    @property
    def has_failed(self) -> bool:
        """Whether ledger or checkpoints can't be written: all processes have to agree to stop for it."""
        return self.failure is not None or (self.writer is not None and self.writer.failure is not None)

    def raise_failure(self) -> None:
        """Raise what went wrong while writing, if anything did."""
        for failure in (self.writer.failure if self.writer else None, self.failure):
            if failure is not None:
                raise failure

    def wait(self) -> None:
        """Wait for the checkpoint that is being written, and raise what went wrong."""
        if self.writer is not None:
            self.writer.wait()
        self.raise_failure()

    def newest_checkpoint(self) -> Path | None:
        """Return the newest sealed checkpoint, in the main process."""
        if self.writer is None:
            return None
        self.writer.wait()
        newest = self.writer.newest
        return None if newest is None else self.writer.folder.checkpoints / folder_name(newest)

    def stood_still(self) -> float:
        """Return the seconds for which training stood still for checkpoints since the last call."""
        return self.writer.take_time() if self.writer is not None else 0.0


@dataclass
class TrainState:
    """A run in memory: what `prepare` made, and below it what changes while the run trains."""

    task: Task
    config: Config
    runtime: Runtime
    model: torch.nn.Module
    optimizer: AcceleratedOptimizer
    loader: Any
    """Yields this process's `LoadedMicroBatch`es, from the first step that is still to be done."""
    order: ShuffledOrder
    total_steps: int
    sampler: MicroBatchSampler = field(kw_only=True)
    """Plans the micro-batches of all processes for the loader."""
    first_step: int = 0
    """Steps that were done before this start."""
    data: dict[str, str | None] = field(default_factory=dict)
    """The digests of the training and the evaluation data."""
    frozen: str | None = None
    """The digest of the weights that are not trained, in the main process."""
    unused: Sequence[str] = ()
    """The parameters that are frozen because the task leaves them unused."""
    drawn_by_topology: Sequence[str] = ()
    """What in the model draws random numbers without regard to the samples, by name."""
    saved_bytes: int = 0
    """What the saved model takes on the disk, where it was tried, in the main process."""
    remember_limits: Callable[[Limits], None] | None = None
    """Writes down for later runs what fits at once, where `batch.micro` is auto."""
    changing_buffers: Sequence[str] = ()
    """The buffers that a forward pass changes, which distributed data parallel sends before each."""
    power_sgd: PowerSGD | None = None
    """Averages the gradients, where they are compressed so."""
    starts: Sequence[Mapping[str, Any]] = ()
    """The starts of this run up to now, each with its first step and its `provenance`."""

    step: int = 0
    """Steps whose rows were recorded."""
    skipped: int = 0
    """Steps that left the weights alone."""
    skipped_in_a_row: int = 0
    """Of those that were recorded last."""
    nonfinite: list[dict[str, Any]] = field(default_factory=list)
    """Steps whose gradient was not finite, with the ids of their samples."""
    row_awaiting_metrics: LedgerRow | None = None
    """The row of the step just done, which waits for the metrics of its evaluation."""
    best: Best | None = None
    since_best: int = 0
    """Evaluations since the best one."""
    warnings: list[str] = field(default_factory=list)
    """What looks like a mistake, for the user."""
    step_log: StepLog = field(default_factory=StepLog)
    lack: Lack | None = None
    """That memory ran out in this process in the step just tried, until the others know."""
    gathers: Literal["later", "now", "no more"] = "no more"
    """Whether the processes are still to exchange something in the present step before its gradients are summed."""
    output: Output = field(default_factory=Output)

    def __post_init__(self) -> None:
        # What a trial left whole would have other parameters.
        reshard(self.model)
        # To walk through a large model takes longer than to clip its gradients.
        self.parameters = list(self.model.parameters())
        self.memory = PeakMemory(*self.runtime.devices)
        # What was compiled can't be counted while it trains.
        # In a pipeline a process knows its own stage alone.
        self.flops = FlopMeter(attempts=0 if is_compiled(self.model) or stage_of(self.model) else ATTEMPTS)

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps in one pass over the training data."""
        return self.order.steps_per_epoch

    @property
    def best_step(self) -> int | None:
        """The step of the best evaluation so far, whose checkpoint is never deleted."""
        return None if self.best is None else self.best.step

    def is_checkpoint_due(self, step: int) -> bool:
        """Return whether a checkpoint is saved after so many steps."""
        every = self.config.checkpoint.every or self.steps_per_epoch
        return step % every == 0 or step == self.total_steps

    def is_evaluation_due(self, step: int) -> bool:
        """Return whether the model is evaluated after so many steps."""
        every = self.config.evaluate.every or self.steps_per_epoch
        return self.task.data.evaluate is not None and (step % every == 0 or step == self.total_steps)

    def note_if_best(self, metrics: dict[str, float], step: int) -> bool:
        """Return whether an evaluation after so many steps is the best so far, and note it if it is, or count it.

        Raises:
            SharedUserError: there is no metric of the name in `checkpoint.best`.
        """
        before, self.best = self.best, better_of(self.config.checkpoint.best, metrics, step, self.best)
        self.since_best = self.since_best + 1 if self.best is before else 0
        return self.best is not before

    @property
    def is_out_of_patience(self) -> bool:
        """Whether the run ends here, since no evaluation was better for too long."""
        patience = self.config.evaluate.patience
        return patience is not None and self.since_best >= patience

    @property
    def exported_step(self) -> int:
        """The step whose weights are saved in the end."""
        return self.best.step if self.config.exports_best and self.best is not None else self.step

    @property
    def rule(self) -> str | None:
        """By which evaluation the saved weights are chosen; None where none decides it, or none had a value."""
        return self.config.checkpoint.best if self.config.exports_best and self.best is not None else None

    def record(self, row: LedgerRow, metrics: dict[str, float] | None = None) -> None:
        """Take the row of a step, and the metrics of the evaluation after it."""
        self.step = row.step
        self.skipped += row.skipped
        self.output.write(replace(row, evaluation=metrics) if metrics else row)

    def row_of(self, pending: PendingStep, loss: float) -> LedgerRow:
        """Return the ledger row of a step, given the loss summed over all processes.

        Raises:
            SharedUserError: the gradient was not finite, and the run is to stop for that.
        """
        norm, counts = pending.values.read()[1], pending.counts
        self.skipped_in_a_row = 0 if isfinite(norm) else self.skipped_in_a_row + 1
        # Under fp16 a gradient that is not finite comes now and then, and says nothing.
        is_news = self.runtime.precision != "fp16" or self.skipped_in_a_row > MOST_SKIPS_IN_FP16
        if not isfinite(norm) and is_news:
            entry = with_samples(pending.step + 1, self.order)
            self.nonfinite.append(entry)
            if self.config.optim.nonfinite == "stop":
                raise SharedUserError(self.nonfinite_message(pending.step, norm, entry["samples"]))
        host_memory, device_memory = self.memory.read()
        return LedgerRow(
            step=pending.step + 1,
            epoch=(pending.step + 1) / self.steps_per_epoch,
            loss=loss / counts.units if counts.units else None,
            gradient_norm=norm,
            learning_rate=pending.values.learning_rate,
            units=counts.units,
            samples=counts.samples,
            fingerprint=f"{counts.fingerprint:016x}",
            padding=1 - counts.used / counts.padded if counts.padded else None,
            seconds=pending.seconds,
            waiting=pending.waited,
            saving=pending.saving,
            tokens=counts.used if counts.padded else None,
            flops=round(counts.flops) if isfinite(counts.flops) else None,
            host_memory=host_memory,
            device_memory=device_memory,
            skipped=not isfinite(norm) or counts.units == 0,
        )

    def nonfinite_message(self, step: int, norm: float, ids: list[int]) -> str:
        """Name the step, its samples and the last good checkpoint."""
        rest = len(ids) - NAMED_SAMPLES
        more = f" and {rest:,} more (all are in run.json, nonfinite)" if rest > 0 else ""
        self.runtime.phase("waiting until the checkpoint before is written", step + 1, patient=True)
        saved = self.output.newest_checkpoint()
        return (
            f"the gradient of step {step + 1:,} is not finite (its norm is {norm}); the weights were not changed by "
            f"it. The samples of its global batch: {', '.join(map(str, ids[:NAMED_SAMPLES]))}{more}. "
            + (f"The last good checkpoint is {saved}. " if saved else "There is no checkpoint before it. ")
            + "Look for inf or nan in these samples, give a lower optim.lr, a longer optim.warmup or a smaller "
            "optim.clip in a new --output, or go on without this step: the same command with --optim.nonfinite skip"
        )

    def as_json(self) -> dict[str, Any]:
        """Return what a checkpoint says of the run in JSON: everything but weights and optimizer."""
        scaler = self.runtime.accelerator.scaler
        return {
            "total_steps": self.total_steps,
            "skipped": self.skipped,
            "nonfinite": [entry["step"] for entry in self.nonfinite],
            "pending": vars(self.row_awaiting_metrics) if self.row_awaiting_metrics else None,
            "best": vars(self.best) if self.best else None,
            "since_best": self.since_best,
            "scaler": scaler.state_dict() if scaler is not None else None,
            "precision": self.runtime.precision,
            "micro": {"samples": self.sampler.micro, "tokens": self.sampler.tokens},
            "call_cost": {"elements": self.sampler.call_cost, "device": self.runtime.device.type},
            "processes": self.runtime.size,
            "data": self.data,
            "frozen": self.frozen,
            "unused": list(self.unused),
            "starts": list(self.starts),
        }

    def load_json(self, saved: Mapping[str, Any]) -> None:
        """Go on from what `as_json` returned."""
        self.skipped = saved["skipped"]
        self.nonfinite = [with_samples(step, self.order) for step in saved["nonfinite"]]
        self.row_awaiting_metrics = LedgerRow(**saved["pending"]) if saved["pending"] else None
        # By another rule, or of other weights, what was the best so far is no measure.
        before = saved["config"]
        averages = before["optim"].get("average") is not None and before.get("export") != "last"
        is_same = before["checkpoint"]["best"] == self.config.checkpoint.best
        if is_same and averages == self.config.exports_average:
            # Without a best one too: evaluations whose metric has no value count for the patience.
            self.best = Best(**saved["best"]) if saved["best"] else None
            self.since_best = saved.get("since_best", 0)
        scaler = self.runtime.accelerator.scaler
        if scaler is not None and saved["scaler"]:
            scaler.load_state_dict(saved["scaler"])


def with_samples(step: int, order: ShuffledOrder) -> dict[str, Any]:
    """Return a step, counted from 1, with the ids of its samples, as run.json lists it."""
    return {"step": step, "samples": sorted(order.global_batch(step - 1).tolist())}
