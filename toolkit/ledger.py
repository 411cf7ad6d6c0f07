"""The ledger: one row per optimizer step, written as the run goes, from which a run can be checked afterwards."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class LedgerRow:
    """What one optimizer step consumed and produced, over all processes."""

    step: int
    """Counted from 1: the number of steps done."""
    epoch: float
    """Passes over the training data done, this step included."""
    loss: float | None
    """Mean loss per unit; null where the step had no unit."""
    gradient_norm: float
    """Before clipping."""
    learning_rate: float
    units: int
    """What the loss is averaged over."""
    samples: int
    fingerprint: str
    """Sum of the hashes of the sample ids that passed through the model, 16 hexadecimal digits."""
    padding: float | None
    """Share of padding among the elements that ran through the model; null where lengths are unknown or batch.balance is off."""
    seconds: float
    """From the start of the step to the start of the next, in the main process."""
    waiting: float
    """Seconds of these that the main process waited for data."""
    skipped: bool = False
    """The weights were left alone: the gradient was not finite, or the step had no unit."""
    evaluation: dict[str, float] | None = None
    """Metrics of the evaluation after this step, if there was one."""


class Ledger:
    """Appends rows to a JSON-lines file; a row is written whole."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = path.open("w", encoding="utf-8")

    def write(self, row: LedgerRow) -> None:
        """Append one row. Not-a-number is written as null: JSON has no word for it."""
        values = {key: finite_or_none(value) for key, value in asdict(row).items()}
        self.file.write(json.dumps(values, allow_nan=False) + "\n")
        self.file.flush()

    def close(self) -> None:
        """Close the file."""
        self.file.close()


def read_ledger(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a ledger; a last line that is still being written is left out."""
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            if line.endswith("\n"):
                yield json.loads(line)


def finite_or_none(value: Any) -> Any:
    """Return a value that JSON can hold."""
    if isinstance(value, dict):
        return {key: finite_or_none(entry) for key, entry in value.items()}
    return None if isinstance(value, float) and not (-float("inf") < value < float("inf")) else value
