"""The ledger: one row per optimizer step, written during the run, by which a run can be checked afterwards.

Each row ends with a link: a hash of the row and of the link before it. If a row is changed, removed or moved later, the
chain breaks there. A checkpoint holds the link that the ledger had when it was written.
"""

import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from toolkit.errors import UserError

# A row has some hundred bytes, so the last one lies within this many bytes of the end.
TAIL = 1 << 20
# `json.dumps` would make one for each row.
JSON = json.JSONEncoder(allow_nan=False)


@dataclass(frozen=True)
class LedgerRow:
    """One optimizer step, over all processes."""

    step: int
    """Counted from 1: the number of steps done."""
    epoch: float
    """Passes over the training data, this step included."""
    loss: float | None
    """Mean loss per unit; null where the step had no unit."""
    gradient_norm: float
    """Before clipping."""
    learning_rate: float
    units: float
    """What the loss is averaged over: a whole number, or the sum of their weights."""
    samples: int
    fingerprint: str
    """Sum of the hashes of the ids of its samples, 16 hexadecimal digits."""
    padding: float | None
    """Share of padding among the elements of its batches; null where lengths are unknown or batch.balance is off."""
    seconds: float
    """From the start of this step to the start of the next one, in the main process."""
    waiting: float
    """Seconds of these in which the main process waited for data."""
    saving: float = 0.0
    """Seconds before this step in which training waited for a checkpoint."""
    tokens: int | None = None
    """Elements of its batches without padding; null where lengths are unknown or batch.balance is off."""
    flops: int | None = None
    """Floating-point operations of its forward and backward passes, padding included, activations that were computed
    again not; null where they can't be counted, and in the first steps of a start, from which they are learnt."""
    host_memory: int | None = None
    """The most memory that the main process has had since training began, in bytes, read at most once in a second."""
    device_memory: int | None = None
    """The most that its tensors have had on its device; null where that has no memory of its own."""
    skipped: bool = False
    """Whether the weights were not updated: the gradient was not finite, or the step had no unit."""
    evaluation: dict[str, float] | None = None
    """Metrics of the evaluation after this step, if there was one."""


@dataclass(frozen=True)
class LedgerEnd:
    """Where a ledger ends."""

    rows: int = 0
    """The step of its last row."""
    bytes: int = 0
    """Its size in bytes."""
    chain: str = ""
    """The link of its last row; empty where there is none."""


def chained(before: str, values: Mapping[str, Any]) -> str:
    """Return the link of a row with these values after the link `before`: 16 hexadecimal digits."""
    return link_of(before, JSON.encode(values))


def link_of(before: str, text: str) -> str:
    """Return the link of a row with this text, in JSON, after the link `before`."""
    return blake2b(f"{before} {text}".encode(), digest_size=8).hexdigest()


class Ledger:
    """Appends rows to a JSON-lines file; a row is written whole."""

    def __init__(self, path: Path, end: LedgerEnd | None = None) -> None:
        """Open a new file, or an existing one to go on at `end`; what a run that died wrote later is removed."""
        self.path = path
        self.end = end or LedgerEnd()
        # Unbuffered: what could not be written to a full disk is not written again when the file is closed.
        self.file = path.open("wb" if end is None else "r+b", buffering=0)
        self.file.truncate(self.end.bytes)
        self.file.seek(self.end.bytes)

    def write(self, row: LedgerRow) -> None:
        """Append one row."""
        text = as_text(row)
        link = link_of(self.end.chain, text)
        line = f'{text.removesuffix("}")}, "chain": "{link}"}}\n'.encode()
        rest = memoryview(line)
        while rest:
            rest = rest[self.file.write(rest) :]
        self.end = LedgerEnd(row.step, self.end.bytes + len(line), link)

    def sync(self) -> None:
        """Wait until all rows are on the disk; called from the thread that writes a checkpoint."""
        os.fsync(self.file.fileno())

    def close(self) -> None:
        self.file.close()


def check_end(path: Path, end: LedgerEnd) -> int:
    """Check that a ledger has the row at which a checkpoint ends, and return the number of rows after it.

    The rows before it are not read.

    Raises:
        UserError: the ledger is missing or too short, or has another row at this place.
    """
    checkpoint = f"{path.parent / 'checkpoints'}/<checkpoint>"
    advice = f"put the ledger back as it was, or go on in a new folder: --output <new> --resume {checkpoint}"
    try:
        with path.open("rb") as file:
            file.seek(max(0, end.bytes - TAIL))
            tail = file.read(end.bytes - file.tell())
            size, after = file.tell(), sum(1 for _ in file)
    except OSError as error:
        raise UserError(f"the ledger {path} can't be read ({error.strerror}); {advice}") from None
    if size < end.bytes:
        raise UserError(f"the ledger {path} is shorter than the checkpoint of step {end.rows} needs; {advice}")
    if end.bytes == 0:
        return after
    try:
        values = json.loads(tail[:-1].rpartition(b"\n")[2]) if tail.endswith(b"\n") else {}
        found = (values["step"], values["chain"])
    except (ValueError, KeyError, TypeError):
        found = None
    if found != (end.rows, end.chain):
        raise UserError(
            f"the ledger {path} was changed: it does not have row {end.rows} where the checkpoint says; {advice}"
        )
    return after


def read_ledger(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a ledger, without a last line that is still being written."""
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            if line.endswith("\n"):
                yield json.loads(line)


def as_text(row: LedgerRow) -> str:
    """Return a row in JSON. Not-a-number is written as null, since JSON can't hold it."""
    try:
        return JSON.encode(vars(row))
    except ValueError:
        return JSON.encode(finite_or_none(vars(row)))


def finite_or_none(value: Any) -> Any:
    """Return a value with null in place of numbers that are not finite, wherever they stand in it."""
    if isinstance(value, Mapping):
        return {key: finite_or_none(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [finite_or_none(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
