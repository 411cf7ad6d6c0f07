"""What a run folder holds, whatever was done to it: read without trust, so that a damaged one can be told about.

Nothing here judges; `toolkit.verify.check` does.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard, get_args, get_type_hints

import numpy as np

from toolkit.checkpoint.format import DamagedError, Manifest, inspect, read_manifest, read_state
from toolkit.config.schema import BatchConfig, Config, OptimConfig
from toolkit.config.yaml import flatten
from toolkit.data.order import ShuffledOrder, mix64
from toolkit.errors import UserError
from toolkit.output.ledger import TAIL, chained
from toolkit.output.run_folder import read_record, sealed_folders
from toolkit.schedules import total_steps

# Samples whose hashes are computed in one go: enough that numpy's own cost per call does not count.
AT_ONCE = 1 << 16
# More is no count of anything; arithmetic on 64-bit integers stays exact below.
MOST = 1 << 53
LOST = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)
"""What reading a file brings that is not what was written."""


class Row(NamedTuple):
    """What the checks need of one row of a ledger."""

    step: Any
    end: int
    """The size of the ledger after it."""
    link: Any
    epoch: Any
    learning_rate: Any
    samples: Any
    fingerprint: Any


@dataclass
class LedgerFound:
    """A ledger, whatever was done to it."""

    size: int = 0
    missing: str | None = None
    """Why it can't be read."""
    rows: list[Row] = field(default_factory=list)
    last: Mapping[str, Any] = field(default_factory=dict)
    """The last row, whole."""
    half: bool = False
    """The last line has no end."""
    skipped: int = 0
    unreadable: list[int] = field(default_factory=list)
    """The numbers of the lines that are no rows."""
    broken: list[Any] = field(default_factory=list)
    """The steps whose link does not fit."""
    rewritten: list[Any] = field(default_factory=list)
    """The steps whose row says the same in another way of writing."""
    unlinked: bool = False
    """What the first row is linked to is not known."""

    def steps(self) -> list[int]:
        """Return the step of every row that has one, in the order of the file."""
        return [row.step for row in self.rows if is_count(row.step)]


@dataclass(frozen=True)
class CheckpointFound:
    """A checkpoint, whatever was done to it."""

    folder: Path
    manifest: Manifest | None = None
    state: Mapping[str, Any] = field(default_factory=dict)
    damage: str | None = None


@dataclass(frozen=True)
class Expected:
    """What the rows of a run follow from."""

    order: ShuffledOrder
    optim: OptimConfig
    total_steps: int


def record_of(run: Path) -> dict[str, Any]:
    """Return run.json, empty where it can't be read."""
    try:
        return read_record(run)
    except RecursionError:
        return {}


def expectation(config: Mapping[str, Any], record: Mapping[str, Any]) -> tuple[Expected | None, str]:
    """Return what the rows follow from, or None and what is lacking for that."""
    flat = flatten(config)
    counts = record.get("samples")
    samples: Any = counts.get("train") if isinstance(counts, Mapping) else None
    size: Any = flat.get("batch.size")
    seed: Any = flat.get("seed")
    rate: Any = flat.get("optim.lr")
    warmup: Any = flat.get("optim.warmup")
    schedule: Any = flat.get("optim.schedule")
    steps: Any = flat.get("steps")
    epochs: Any = flat.get("epochs")
    readable = {
        "samples of run.json": is_count(samples) and samples > 0,
        "batch.size of config.yaml": is_count(size) and size > 0,
        "seed of config.yaml": is_count(seed),
        "steps or epochs of config.yaml": is_amount(epochs) if steps is None else is_count(steps),
        "optim.lr of config.yaml": is_amount(rate),
        "optim.warmup of config.yaml": is_amount(warmup),
        "optim.schedule of config.yaml": schedule in get_args(get_type_hints(OptimConfig)["schedule"]),
    }
    missing = [name for name, there in readable.items() if not there]
    if missing:
        return None, f"it takes {', '.join(missing)}"
    order = ShuffledOrder(samples, size, seed)
    optim = OptimConfig(lr=rate, warmup=warmup, schedule=schedule)
    run = Config(batch=BatchConfig(size=size), optim=optim, steps=steps, epochs=epochs)
    return Expected(order, optim, total_steps(run, samples)), ""


def examined(parent: Path) -> Iterator[CheckpointFound]:
    """Yield every checkpoint, the newest first, held against its seal."""
    try:
        folders = sealed_folders(parent)
    except OSError as error:
        yield CheckpointFound(parent, damage=f"it can't be read ({error.strerror})")
        return
    for folder in folders:
        try:
            manifest, state = inspect(folder), read_state(folder)
            yield CheckpointFound(folder, manifest, state if isinstance(state, Mapping) else {})
        except (DamagedError, UserError) as damage:
            # A living run deletes old ones while this reads.
            if folder.exists():
                yield CheckpointFound(folder, damage=str(damage))
        except LOST as error:
            if folder.exists():
                yield CheckpointFound(folder, damage=f"it can't be read ({type(error).__name__}: {error})")


def read_whole(path: Path, before_first: Callable[[int], str | None]) -> LedgerFound:
    """Read a ledger from its first to its last byte, and look at every link.

    Args:
        path: the ledger.
        before_first: returns the link before the row of a step, None if it is not known.
    """
    found = LedgerFound()
    before: str | None = None
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                found.size += len(line)
                if not line.endswith(b"\n"):
                    found.half = True
                    break
                values, text = row_in(line)
                if values is None:
                    found.unreadable.append(number)
                    before = None
                    continue
                step, link = values.get("step"), values.get("chain")
                if number == 1:
                    before = before_first(step) if is_count(step) else ""
                    found.unlinked = before is None
                if before is not None and link != chained(before, without_link(values)):
                    found.broken.append(step)
                elif line != text:
                    found.rewritten.append(step)
                before = link if isinstance(link, str) else None
                found.skipped += values.get("skipped") is True
                found.last = values
                kept = (values.get(name) for name in ("epoch", "learning_rate", "samples", "fingerprint"))
                found.rows.append(Row(step, found.size, link, *kept))
    except OSError as error:
        found.missing = error.strerror or str(error)
    return found


def last_row(path: Path) -> dict[str, Any]:
    """Return the last whole row of a ledger without reading those before it; empty where there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL))
            line = file.read().rpartition(b"\n")[0].rpartition(b"\n")[2]
    except OSError:
        return {}
    return row_in(line)[0] or {}


def refuse_constant(name: str) -> None:
    """Refuse NaN and Infinity, which are not JSON and which no ledger holds."""
    raise ValueError(name)


DECODER = json.JSONDecoder(parse_constant=refuse_constant)


def row_in(line: bytes) -> tuple[dict[str, Any] | None, bytes]:
    """Return the values in a line of a ledger, and the line that a ledger writes for them; None if it is no row."""
    try:
        values = DECODER.decode(line.decode("ascii"))
        text = json.dumps(values, allow_nan=False).encode() + b"\n"
    except (ValueError, RecursionError):
        return None, b""
    return (values if isinstance(values, dict) else None), text


def without_link(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the link of a row was made of."""
    return {name: value for name, value in values.items() if name != "chain"}


def link_before(first: int, checkpoints: Iterable[CheckpointFound], record: Mapping[str, Any]) -> str | None:
    """Return the link that the first row of a ledger was made with, None if nothing tells it any more."""
    named = record.get("resumed_from")
    if first == 1 or not isinstance(named, str):
        return ""
    ends = [found.manifest.ledger for found in checkpoints if found.manifest]
    # The checkpoint of another run that this one goes on from, or the folder of that run.
    for place in [Path(named), *candidates(Path(named) / "checkpoints")]:
        try:
            ends.append(replace(read_manifest(place).ledger, bytes=0))
        except (DamagedError, UserError, *LOST):
            continue
    return next((end.chain for end in ends if end.bytes == 0 and end.rows == first - 1), None)


def candidates(parent: Path) -> list[Path]:
    """Return the checkpoints in a folder, none if it can't be read."""
    try:
        return sealed_folders(parent)
    except OSError:
        return []


def samples_in(order: ShuffledOrder, step: int) -> int:
    """Return the number of samples of a step, counted from 1."""
    index = (step - 1) % order.steps_per_epoch
    return min(order.batch_size, order.samples - index * order.batch_size)


def recomputed(order: ShuffledOrder, steps: Sequence[int]) -> Iterator[tuple[int, str]]:
    """Yield (step, fingerprint) for ascending steps, counted from 1.

    The order of an epoch does not depend on the batch size: many global batches are one large one, cut.
    """
    size = order.batch_size
    batches = max(1, AT_ONCE // size)
    wide = ShuffledOrder(order.samples, size * batches, order.seed)

    def place(step: int) -> tuple[int, int]:
        epoch, index = divmod(step - 1, order.steps_per_epoch)
        return epoch, index // batches

    for (epoch, number), group in groupby(steps, key=place):
        hashes = mix64(wide.global_batch(epoch * wide.steps_per_epoch + number).astype(np.uint64))
        sums = np.add.reduceat(hashes, np.arange(0, len(hashes), size))
        for step in group:
            yield step, f"{int(sums[(step - 1) % order.steps_per_epoch - number * batches]):016x}"


def is_count(value: Any) -> TypeGuard[int]:
    """Return whether a value is a whole number that counts something."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MOST


def is_amount(value: Any) -> TypeGuard[float]:
    """Return whether a value is a number that is not negative."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < MOST
