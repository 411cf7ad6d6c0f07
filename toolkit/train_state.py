"""One run in memory: what `prepare` made, and where the run stands."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from accelerate.optimizer import AcceleratedOptimizer

from toolkit.config.schema import Config
from toolkit.data.order import ShuffledOrder
from toolkit.distributed.runtime import Runtime
from toolkit.errors import SharedUserError
from toolkit.output.ledger import LedgerRow
from toolkit.progress import Progress
from toolkit.task import Task


@dataclass(frozen=True)
class Best:
    """The best evaluation so far."""

    step: int
    value: float


@dataclass
class Standing:
    """What a checkpoint has to say beside weights and optimizer."""

    pending: LedgerRow | None = None
    """The row of the step just done, which waits for the metrics of its evaluation."""
    best: Best | None = None


@dataclass
class Training:
    """What `prepare` made for one run: everything that the loop works on."""

    task: Task
    config: Config
    runtime: Runtime
    model: torch.nn.Module
    optimizer: AcceleratedOptimizer
    loader: Any
    """Yields this process's `LoadedMicroBatch`es, from the first step that is still to be done."""
    order: ShuffledOrder
    total_steps: int
    first_step: int = 0
    """Steps that were done before this start."""
    standing: Standing = field(default_factory=Standing)
    data: dict[str, str | None] = field(default_factory=dict)
    """The digests of the training and the evaluation data."""
    frozen: str | None = None
    """The digest of the weights that are not trained, in the main process."""
    unused: Sequence[str] = ()
    """The parameters that are frozen because the task leaves them unused."""
    warnings: list[str] = field(default_factory=list)
    """What looks like a mistake, for the user."""
    saved_bytes: int = 0
    """What the saved model takes on the disk, where it was tried, in the main process."""
    starts: list[Mapping[str, Any]] = field(default_factory=list)
    """The starts of this run up to now, each with its first step and its `provenance`."""

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps in one pass over the training data."""
        return self.order.steps_per_epoch

    def is_best(self, metrics: dict[str, float], done: int) -> bool:
        """Return whether an evaluation is the best so far, and take note of it if it is.

        Raises:
            SharedUserError: there is no metric of the name in `checkpoint.best`.
        """
        direction, _, name = self.config.checkpoint.best.partition(" ")
        if name.strip() not in metrics:
            raise SharedUserError(
                f"checkpoint.best is {self.config.checkpoint.best!r}, but the evaluation gives {', '.join(metrics)}; "
                "name one of these (the same command with another checkpoint.best goes on from the newest checkpoint)"
            )
        value, best = metrics[name.strip()], self.standing.best
        if best is not None and not (value < best.value if direction == "lowest" else value > best.value):
            return False
        if value != value:
            return False
        self.standing.best = Best(done, value)
        return True


def with_samples(step: int, order: ShuffledOrder) -> dict[str, Any]:
    """Return a step, counted from 1, with the ids of its samples, as run.json lists it."""
    return {"step": step, "samples": sorted(order.global_batch(step - 1).tolist())}


def state_of(training: Training, progress: Progress) -> dict[str, Any]:
    """Return what a checkpoint says of the run in JSON: everything but the optimizer's own."""
    accelerator, standing = training.runtime.accelerator, training.standing
    return {
        "total_steps": training.total_steps,
        "skipped": progress.skipped,
        "nonfinite": [entry["step"] for entry in progress.nonfinite],
        "pending": vars(standing.pending) if standing.pending else None,
        "best": vars(standing.best) if standing.best else None,
        "scaler": accelerator.scaler.state_dict() if accelerator.scaler is not None else None,
        "precision": training.runtime.precision,
        "processes": training.runtime.size,
        "data": training.data,
        "frozen": training.frozen,
        "unused": list(training.unused),
        "starts": list(training.starts),
    }


def take_state(training: Training, progress: Progress, state: dict[str, Any]) -> None:
    """Put back what `state_of` returned."""
    progress.skipped = state["skipped"]
    progress.nonfinite = [with_samples(step, training.order) for step in state["nonfinite"]]
    standing = training.standing
    standing.pending = LedgerRow(**state["pending"]) if state["pending"] else None
    # By another rule, what was the best so far is no measure.
    same_rule = state["config"]["checkpoint"]["best"] == training.config.checkpoint.best
    standing.best = Best(**state["best"]) if state["best"] and same_rule else None
    scaler = training.runtime.accelerator.scaler
    if scaler is not None and state["scaler"]:
        scaler.load_state_dict(state["scaler"])
