"""Going on from a checkpoint: which one, and whether it fits this run."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from toolkit.checkpoint import DamagedError, Manifest, inspect, read_state, sealed_folders, step_of
from toolkit.config import Config, changes_numbers
from toolkit.diagnosis import show
from toolkit.errors import UserError
from toolkit.ledger import LedgerEnd, check_end
from toolkit.run_folder import RunFolder, now
from toolkit.settings_file import as_mapping, differing

Differences = list[tuple[str, Any, Any]]


@dataclass(frozen=True)
class Start:
    """Where a run begins: at its first step, or at a checkpoint."""

    step: int = 0
    """Optimizer steps done."""
    checkpoint: Path | None = None
    state: Mapping[str, Any] = field(default_factory=dict)
    """The checkpoint's state.json."""
    ledger: LedgerEnd | None = None
    """Where the ledger goes on."""
    seal: str | None = None
    repeated: int = 0
    """Steps in the ledger that are done again."""
    remarks: tuple[str, ...] = ()
    """What the user is told."""


def different_numbers(config: Config, former: Mapping[str, Any]) -> Differences:
    """Return the settings that would change the numbers of a run whose configuration was `former`."""
    return [entry for entry in differing(former, as_mapping(config)) if changes_numbers(config, entry[0])]


def listed(differences: Differences) -> str:
    """Return differing settings with both values."""
    return "; ".join(f"{key} was {show(before)} and is now {show(after)}" for key, before, after in differences)


def choose_start(folder: RunFolder, config: Config, precision: str) -> Start:
    """Return where the run goes on, in the main process, which holds the lock of the folder.

    Raises:
        UserError: there are checkpoints and none is valid, or the one that was named does not fit.
    """
    record = folder.record()
    if config.resume == "never":
        remark = set_aside(folder)
        return Start(remarks=(remark,) if remark else ())
    if config.resume != "auto" and record.get("resumed_from") != str(Path(config.resume).resolve()):
        return start_at(Path(config.resume), folder, config, precision)
    found, passed_over = newest_valid(folder.checkpoints)
    if found is None:
        if passed_over:
            raise UserError(
                *passed_over,
                f"none of the checkpoints in {folder.checkpoints} is valid; repair one, or start anew with --resume never, "
                "which sets them aside",
            )
        return Start(repeated=count_rows(folder.ledger_file))
    checkpoint, manifest = found
    state = read_state(checkpoint)
    check_state(state, checkpoint, config, precision)
    repeated = check_end(folder.ledger_file, manifest.ledger)
    for other in sealed_folders(folder.checkpoints):
        if step_of(other) > manifest.step:
            # The run will write one of this name again.
            other.rename(free_name(other, "damaged"))
    return Start(manifest.step, checkpoint, state, manifest.ledger, manifest.seal, repeated, tuple(passed_over))


def newest_valid(parent: Path) -> tuple[tuple[Path, Manifest] | None, list[str]]:
    """Return the newest valid checkpoint, and a sentence for each that was passed over."""
    remarks: list[str] = []
    for folder in sealed_folders(parent):
        try:
            return (folder, inspect(folder)), remarks
        except DamagedError as damage:
            remarks.append(f"the checkpoint {folder} is passed over: {damage}")
    return None, remarks


def start_at(checkpoint: Path, folder: RunFolder, config: Config, precision: str) -> Start:
    """Return the start from a checkpoint that the user named; what the run folder had done itself is set aside."""
    if not checkpoint.is_dir():
        raise UserError(
            f"resume is {config.resume!r}, but there is no such folder; give auto, never, or a checkpoint such as "
            f"{folder.checkpoints}/step-000100"
        )
    remarks: list[str] = []
    if (checkpoint / "checkpoints").is_dir():
        found, remarks = newest_valid(checkpoint / "checkpoints")
        if found is None:
            raise UserError(*remarks, f"resume is {config.resume!r}, a run folder without a valid checkpoint")
        checkpoint, manifest = found
    else:
        try:
            manifest = inspect(checkpoint)
        except DamagedError as damage:
            raise UserError(f"resume is {config.resume!r}, which is no valid checkpoint: {damage}") from None
    state = read_state(checkpoint)
    check_state(state, checkpoint, config, precision)
    ledger, end, rows = checkpoint.parent.parent / folder.ledger_file.name, manifest.ledger, b""
    try:
        check_end(ledger, end)
        with ledger.open("rb") as file:
            rows = file.read(end.bytes)
    except UserError as error:
        # The numbers do not need the earlier rows.
        end = replace(end, bytes=0)
        remarks += [*error.problems, f"the ledger of this run begins at step {end.rows + 1:,}"]
    within = checkpoint.resolve().parent == folder.checkpoints.resolve()
    aside = set_aside(folder, keep=checkpoint if within else None)
    remarks += [aside] if aside else []
    folder.ledger_file.write_bytes(rows)
    place = folder.checkpoints / checkpoint.name if within else checkpoint
    return Start(manifest.step, place, state, end, manifest.seal, remarks=tuple(remarks))


def check_state(state: Mapping[str, Any], checkpoint: Path, config: Config, precision: str) -> None:
    """Hold a checkpoint against the configuration and the launch file.

    Raises:
        UserError: the numbers of the run would change on the way.
    """
    differences = different_numbers(config, state["config"])
    if state["precision"] != precision:
        differences.append(("mixed precision (of the launch file)", state["precision"], precision))
    if differences:
        raise UserError(
            f"the checkpoint {checkpoint} is of a run with other numbers: {listed(differences)}. Give its settings, "
            "or start a new run with --output"
        )


def check_data(start: Start, digests: Mapping[str, str | None]) -> None:
    """Refuse to go on with other data than the run began with.

    Raises:
        UserError: a digest differs.
    """
    names = {"train": "training", "evaluate": "evaluation"}
    problems = [
        f"the {names[key]} data is not what it was when {start.checkpoint} was written (its digest was {before} and is now "
        f"{digests[key]}); put the former data back, or start a new run with --output"
        for key, before in start.state.get("data", {}).items()
        if before != digests[key]
    ]
    if problems:
        raise UserError(*problems)


def set_aside(folder: RunFolder, keep: Path | None = None) -> str | None:
    """Move ledger and checkpoints of what the folder did so far into a folder beside; return what the user is told."""
    moved = [path for path in (folder.ledger_file, folder.checkpoints) if path.exists()]
    if not moved:
        return None
    place = free_name(folder.path / "former", now().replace(":", ""))
    place.mkdir(parents=True)
    for path in moved:
        path.rename(place / path.name)
    if keep is not None:
        folder.checkpoints.mkdir()
        (place / "checkpoints" / keep.name).rename(folder.checkpoints / keep.name)
    return f"what this folder held of the run so far was moved to {place}"


def free_name(path: Path, ending: str) -> Path:
    """Return a name beside (or, for a folder called `former`, in) a path that nothing has yet."""
    stem = path / ending if path.name == "former" else path.with_name(f"{path.name}.{ending}")
    place, number = stem, 1
    while place.exists():
        number += 1
        place = stem.with_name(f"{stem.name}-{number}")
    return place


def count_rows(ledger: Path) -> int:
    """Return the rows of a ledger of which nothing else is left."""
    return sum(1 for _ in ledger.open("rb")) if ledger.is_file() else 0
