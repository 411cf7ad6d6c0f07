"""The phase in which this process is, for the message that names it when it hangs or dies."""

from time import monotonic
from typing import Any, NamedTuple

PREPARING = "preparing the model"
FORWARD_PASS = "in the forward pass"
BACKWARD_PASS = "in the backward pass"
PIPELINE = "running the micro-batches of a step through the pipeline"
OPTIMIZER_STEP = "in the optimizer step"
PREDICTING = "making the predictions of an evaluation"
COPYING = "copying the state for a checkpoint"
WRITING = "writing the model"


class Phase(NamedTuple):
    """What a process is doing, and since when."""

    what: str
    """Words that complete the sentence "it was ...", such as "in the forward pass"."""
    step: int | None
    """The optimizer step it belongs to, counted from 1."""
    patient: bool
    """Whether it may take as long as it takes: reading data, metrics, writing the model."""
    since: float
    """When it began, on the monotonic clock of this process."""
    place: tuple[int, int] = (0, 0)
    """How far the process has come: the step, and the number of phases begun in it, which are the same in all."""
    batch: Any = None
    """The `LoadedMicroBatch` that runs through the model, if one does."""


class PhaseTracker:
    """Called wherever a process begins a new phase; the watchdog's thread reads the phase and sends it."""

    def __init__(self) -> None:
        self.phase = Phase("starting", None, True, monotonic())

    def __call__(self, what: str, step: int | None = None, patient: bool = False, batch: Any = None) -> None:
        previous, number = self.phase.place
        # What belongs to no step, such as an evaluation, comes after the step before; nobody goes back.
        place = (step, 0) if step is not None and step > previous else (previous, number + 1)
        self.phase = Phase(what, step, patient, monotonic(), place, batch)
