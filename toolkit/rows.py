"""From the values of a step to its row in the ledger, two steps later, so that no step waits for a device."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite

from toolkit.distributed.counts import Counts
from toolkit.errors import SharedUserError
from toolkit.output.ledger import LedgerRow
from toolkit.progress import Progress
from toolkit.train_state import Training, with_samples

NAMED_SAMPLES = 40
# A gradient scaler halves its scale at each overflow: after so many in a row no scale is left to try.
MOST_SKIPS_IN_FP16 = 50


@dataclass(frozen=True)
class StepValues:
    """What a step computed; loss and norm may still be on their way to the host."""

    read: Callable[[], list[float]]
    """Returns the summed loss of this process and the gradient norm of all."""
    learning_rate: float


@dataclass(frozen=True)
class StepTaken:
    """A step whose row has not been written yet."""

    step: int
    values: StepValues
    counts: Counts
    seconds: float
    waited: float
    saving: float = 0.0

    def own_loss(self) -> float:
        """Return the summed loss of this process."""
        return self.values.read()[0]


class Unread:
    """The steps whose values are still on their way."""

    def __init__(self, training: Training, progress: Progress) -> None:
        self.training = training
        self.progress = progress
        self.steps: deque[StepTaken] = deque()
        self.skips = 0

    def add(self, taken: StepTaken) -> None:
        """Take a step."""
        self.steps.append(taken)

    def arrived(self) -> StepTaken | None:
        """Return the oldest step if its loss can be read without waiting: two steps later it is there."""
        return self.steps.popleft() if len(self.steps) > 1 else None

    def settle(self) -> list[LedgerRow]:
        """Return the rows of all steps now, each with an all-reduce of its own."""
        rows = []
        while self.steps:
            taken = self.steps.popleft()
            counts = self.training.runtime.all_reduce_counts(Counts(earlier_loss=taken.own_loss()))
            rows.append(self.row_of(taken, counts.earlier_loss))
        return rows

    def row_of(self, taken: StepTaken, loss: float) -> LedgerRow:
        """Return the ledger row of a step, given the loss summed over all processes.

        Raises:
            SharedUserError: the gradient was not finite, and the run is to stop for that.
        """
        norm, counts = taken.values.read()[1], taken.counts
        self.skips = 0 if isfinite(norm) else self.skips + 1
        if not isfinite(norm) and self.is_news():
            entry = with_samples(taken.step + 1, self.training.order)
            self.progress.nonfinite.append(entry)
            if self.training.config.optim.nonfinite == "stop":
                raise SharedUserError(self.told(taken.step, norm, entry["samples"]))
        return LedgerRow(
            step=taken.step + 1,
            epoch=(taken.step + 1) / self.training.steps_per_epoch,
            loss=loss / counts.units if counts.units else None,
            gradient_norm=norm,
            learning_rate=taken.values.learning_rate,
            units=counts.units,
            samples=counts.samples,
            fingerprint=f"{counts.fingerprint:016x}",
            padding=1 - counts.used / counts.padded if counts.padded else None,
            seconds=taken.seconds,
            waiting=taken.waited,
            saving=taken.saving,
            skipped=not isfinite(norm) or counts.units == 0,
        )

    def is_news(self) -> bool:
        """Return whether a gradient that is not finite says something; under fp16 one comes now and then."""
        return self.training.runtime.precision != "fp16" or self.skips > MOST_SKIPS_IN_FP16

    def told(self, step: int, norm: float, ids: list[int]) -> str:
        """Name the step, its samples and the last good checkpoint."""
        rest = len(ids) - NAMED_SAMPLES
        more = f" and {rest:,} more (all are in run.json, nonfinite)" if rest > 0 else ""
        self.training.runtime.phase("waiting until the checkpoint before is written", step + 1, patient=True)
        saved = self.progress.newest_checkpoint()
        return (
            f"the gradient of step {step + 1:,} is not finite (its norm is {norm}); the weights were not changed by it. "
            f"The samples of its global batch: {', '.join(map(str, ids[:NAMED_SAMPLES]))}{more}. "
            + (f"The last good checkpoint is {saved}. " if saved else "There is no checkpoint before it. ")
            + "Look for inf or nan in these samples, give a lower optim.lr, a longer optim.warmup or a smaller optim.clip in a new "
            "--output, or go on without this step: the same command with --optim.nonfinite skip"
        )
