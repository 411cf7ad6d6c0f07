"""From the values of a step to its row in the ledger, two steps later, so that no step waits for a device."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

from toolkit.distributed.counts import Counts


@dataclass(frozen=True)
class StepValues:
    """What a step computed; loss and norm may still be on their way from the device to the host."""

    read: Callable[[], list[float]]
    """Returns the summed loss of this process and the gradient norm of all."""
    learning_rate: float


@dataclass(frozen=True)
class PendingStep:
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


class StepLog:
    """The steps whose values are still on their way to the host, and the clock of the present one."""

    def __init__(self) -> None:
        self.pending: deque[PendingStep] = deque()
        self.begun = perf_counter()
        self.waited = 0.0

    def begin_step(self) -> None:
        """Start the clock of a step."""
        self.begun = perf_counter()

    def data_has_come(self) -> None:
        """Note for how long the step has waited for its data."""
        self.waited = perf_counter() - self.begun

    def append(self, step: int, values: StepValues, counts: Counts, saving: float = 0.0) -> None:
        """Take a step; `saving` are the seconds for which training stood still for a checkpoint."""
        self.pending.append(PendingStep(step, values, counts, perf_counter() - self.begun, self.waited, saving))

    def take_due(self) -> PendingStep | None:
        """Take the oldest step once two are pending: by then its loss is on the host, in every process alike."""
        return self.pending.popleft() if len(self.pending) > 1 else None
