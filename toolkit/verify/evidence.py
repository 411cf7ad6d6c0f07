"""What a run folder holds. Nothing in it is trusted, so that a damaged folder can be read and described.

Nothing is judged here; `toolkit.verify.check` does that.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

from toolkit.checkpoint.format import DamagedError, Manifest, inspect, read_manifest, read_state
from toolkit.errors import UserError
from toolkit.output.ledger import TAIL, chained
from toolkit.output.run_folder import read_record, sealed_folders

LARGEST_COUNT = 1 << 53
"""A larger number counts nothing; below it, arithmetic on 64-bit integers stays exact."""
READ_ERRORS = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)
"""What reading a damaged file may raise."""


class Row(NamedTuple):
    """What the checks need of one row of a ledger."""

    step: Any
    end: int
    """The size of the ledger after this row, in bytes."""
    link: Any
    epoch: Any
    learning_rate: Any
    samples: Any
    fingerprint: Any


@dataclass
class LedgerEvidence:
    """A ledger as it was found."""

    size: int = 0
    missing: str | None = None
    """Why it can't be read."""
    rows: list[Row] = field(default_factory=list)
    last: Mapping[str, Any] = field(default_factory=dict)
    """The last row, with all its fields."""
    evaluations: dict[Any, Mapping[str, Any]] = field(default_factory=dict)
    """The metrics of each evaluation, by the step that it came after."""
    half: bool = False
    """The last line has no end."""
    skipped: int = 0
    unreadable: list[int] = field(default_factory=list)
    """The numbers of the lines that are no rows."""
    broken: list[Any] = field(default_factory=list)
    """The steps whose link does not fit."""
    rewritten: list[Any] = field(default_factory=list)
    """The steps whose row has the right values, but is not written as a ledger writes it."""
    unlinked: bool = False
    """The link before the first row is not known."""

    def steps(self) -> list[int]:
        """Return the step of every row that has one, in the order of the file."""
        return [row.step for row in self.rows if is_count(row.step)]


@dataclass(frozen=True)
class CheckpointEvidence:
    """A checkpoint as it was found."""

    folder: Path
    manifest: Manifest | None = None
    state: Mapping[str, Any] = field(default_factory=dict)
    damage: str | None = None


def record_of(run: Path) -> dict[str, Any]:
    """Return run.json, empty where it can't be read."""
    try:
        return read_record(run)
    except RecursionError:
        return {}


def starts_of(record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the starts of the run that run.json lists, the first one first."""
    starts = record.get("topology")
    return [start for start in starts if isinstance(start, Mapping)] if isinstance(starts, list) else []


def examine_checkpoints(parent: Path) -> Iterator[CheckpointEvidence]:
    """Yield every checkpoint, the newest first, after comparing it with its seal."""
    try:
        folders = sealed_folders(parent)
    except OSError as error:
        yield CheckpointEvidence(parent, damage=f"it can't be read ({error.strerror})")
        return
    for folder in folders:
        try:
            manifest, state = inspect(folder), read_state(folder)
            yield CheckpointEvidence(folder, manifest, state if isinstance(state, Mapping) else {})
        except (DamagedError, UserError) as damage:
            # A running run deletes old checkpoints while this reads them.
            if folder.exists():
                yield CheckpointEvidence(folder, damage=str(damage))
        except READ_ERRORS as error:
            if folder.exists():
                yield CheckpointEvidence(folder, damage=f"it can't be read ({type(error).__name__}: {error})")


def checkpoint_folders(parent: Path) -> list[Path]:
    """Return the checkpoints in a folder, none if it can't be read."""
    try:
        return sealed_folders(parent)
    except OSError:
        return []


def examine_ledger(path: Path, link_before: Callable[[int], str | None]) -> LedgerEvidence:
    """Read a ledger from its first to its last byte, and check every link.

    Args:
        path: the ledger.
        link_before: returns the link before the row of a step, None if it is not known.
    """
    found = LedgerEvidence()
    before: str | None = None
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                found.size += len(line)
                if not line.endswith(b"\n"):
                    found.half = True
                    break
                values, text = parse_row(line)
                if values is None:
                    found.unreadable.append(number)
                    before = None
                    continue
                step, link = values.get("step"), values.get("chain")
                if number == 1:
                    before = link_before(step) if is_count(step) else ""
                    found.unlinked = before is None
                linked = {name: value for name, value in values.items() if name != "chain"}
                if before is not None and link != chained(before, linked):
                    found.broken.append(step)
                elif line != text:
                    found.rewritten.append(step)
                before = link if isinstance(link, str) else None
                found.skipped += values.get("skipped") is True
                found.last = values
                kept = (values.get(name) for name in ("epoch", "learning_rate", "samples", "fingerprint"))
                found.rows.append(Row(step, found.size, link, *kept))
                if values.get("evaluation") and is_count(step):
                    found.evaluations[step] = values["evaluation"]
    except OSError as error:
        found.missing = error.strerror or str(error)
    return found


def readable_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a ledger that can be read; none where there is no ledger."""
    try:
        with path.open("rb") as lines:
            for line in lines:
                values = parse_row(line)[0] if line.endswith(b"\n") else None
                if values is not None:
                    yield values
    except OSError:
        return


def last_row(path: Path) -> dict[str, Any]:
    """Return the last whole row of a ledger without reading those before it; empty where there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL))
            line = file.read().rpartition(b"\n")[0].rpartition(b"\n")[2]
    except OSError:
        return {}
    return parse_row(line)[0] or {}


def refuse_constant(name: str) -> None:
    """Refuse NaN and Infinity, which are not JSON and which no ledger holds."""
    raise ValueError(name)


DECODER = json.JSONDecoder(parse_constant=refuse_constant)


def parse_row(line: bytes) -> tuple[dict[str, Any] | None, bytes]:
    """Return the values in a line of a ledger, None if it is no row, and the line that a ledger writes for them."""
    try:
        values = DECODER.decode(line.decode("ascii"))
        text = json.dumps(values, allow_nan=False).encode() + b"\n"
    except (ValueError, RecursionError):
        return None, b""
    return (values if isinstance(values, dict) else None), text


def link_before(first: int, checkpoints: Iterable[CheckpointEvidence], record: Mapping[str, Any]) -> str | None:
    """Return the link that the first row of a ledger follows, None if it is not known any more."""
    named = record.get("resumed_from")
    if first == 1 or not isinstance(named, str):
        return ""
    ends = [found.manifest.ledger for found in checkpoints if found.manifest]
    # The checkpoint of another run from which this one resumed, or the folder of that run.
    for folder in [Path(named), *checkpoint_folders(Path(named) / "checkpoints")]:
        try:
            ends.append(replace(read_manifest(folder).ledger, bytes=0))
        except (DamagedError, UserError, *READ_ERRORS):
            continue
    return next((end.chain for end in ends if end.bytes == 0 and end.rows == first - 1), None)


def is_count(value: Any) -> TypeGuard[int]:
    """Return whether a value is a whole number that counts something."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < LARGEST_COUNT
