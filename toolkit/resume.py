"""Going on from a checkpoint: which one, and whether it fits this run."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from toolkit.checkpoint import DamagedError, Manifest, inspect, read_state, sealed_folders, step_of
from toolkit.config import Config, changes_numbers
from toolkit.diagnosis import show
from toolkit.errors import UserError
from toolkit.launch import agent
from toolkit.ledger import LedgerEnd, check_end
from toolkit.run_folder import RunFolder
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
    named: str | None = None
    """The checkpoint or run outside of this run's course that it begins with, if the user named one."""
    repeated: int = 0
    """Steps in the ledger that are done again."""
    remarks: tuple[str, ...] = ()
    """What the user is told."""
    sets_aside: bool = False
    """Whether what the run folder holds is not of this run's course."""
    damaged: tuple[Path, ...] = ()
    """Checkpoints that are newer, and were passed over."""
    rows_from: Path | None = None
    """The ledger whose rows this one begins with, if it is another one."""


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
    if config.resume == "never" and not begun_anew(record):
        return Start(sets_aside=True)
    former = record.get("resumed_from")
    if config.resume not in ("auto", "never") and former != str(Path(config.resume).resolve()):
        return start_at(Path(config.resume), folder, config, precision)
    found, passed_over = newest_valid(folder.checkpoints)
    if found is None:
        if passed_over:
            raise UserError(
                *passed_over,
                f"none of the checkpoints in {folder.checkpoints} is valid; repair one, or start anew with --resume never, "
                "which sets them aside",
            )
        if isinstance(former, str):
            # It died before it had a checkpoint of its own.
            return start_at(Path(former), folder, config, precision, again=True)
        return Start(repeated=count_rows(folder.ledger_file))
    checkpoint, manifest = found
    state = read_state(checkpoint)
    check_state(state, checkpoint, config, precision)
    # The row of a step that was still to be evaluated is written again; the step is not done again.
    repeated = max(0, check_end(folder.ledger_file, manifest.ledger) - bool(state["pending"]))
    return Start(
        manifest.step,
        checkpoint,
        state,
        manifest.ledger,
        manifest.seal,
        repeated=repeated,
        remarks=tuple(passed_over),
        damaged=tuple(other for other in sealed_folders(folder.checkpoints) if step_of(other) > manifest.step),
    )


def begun_anew(record: Mapping[str, Any]) -> bool:
    """Return whether an agent started this process again after the run had begun anew: from there on it goes on."""
    again = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"
    return again and record.get("started_by") is not None and record["started_by"] == agent()


def newest_valid(parent: Path) -> tuple[tuple[Path, Manifest] | None, list[str]]:
    """Return the newest valid checkpoint, and a sentence for each that was passed over."""
    remarks: list[str] = []
    for folder in sealed_folders(parent):
        try:
            return (folder, inspect(folder)), remarks
        except DamagedError as damage:
            remarks.append(f"the checkpoint {folder} is passed over: {damage}")
    return None, remarks


def start_at(checkpoint: Path, folder: RunFolder, config: Config, precision: str, again: bool = False) -> Start:
    """Return the start from a checkpoint, or the newest of a run, that the user named.

    What the run folder had done itself is set aside, unless it began there already and begins there again.
    """
    named = checkpoint
    if not checkpoint.is_dir():
        raise UserError(
            f"resume is '{named}', but there is no such folder; give auto, never, or a checkpoint such as "
            f"{folder.checkpoints}/step-000100"
        )
    remarks: list[str] = []
    if (checkpoint / "checkpoints").is_dir():
        found, remarks = newest_valid(checkpoint / "checkpoints")
        if found is None:
            raise UserError(*remarks, f"resume is '{named}', a run folder without a valid checkpoint")
        checkpoint, manifest = found
    else:
        try:
            manifest = inspect(checkpoint)
        except DamagedError as damage:
            raise UserError(f"resume is '{named}', which is no valid checkpoint: {damage}") from None
    state = read_state(checkpoint)
    check_state(state, checkpoint, config, precision)
    ledger, end = checkpoint.parent.parent / folder.ledger_file.name, manifest.ledger
    try:
        after = check_end(ledger, end)
    except UserError as error:
        # The numbers do not need the earlier rows.
        end, after = replace(end, bytes=0), 0
        remarks += [*error.problems, f"the ledger of this run begins at step {end.rows + 1:,}"]
    other = ledger.resolve() != folder.ledger_file.resolve()
    done_before = count_rows(ledger) - after if end.bytes else 0
    repeated = max(0, count_rows(folder.ledger_file) - done_before - bool(state["pending"])) if again else 0
    return Start(
        manifest.step,
        checkpoint,
        state,
        end,
        manifest.seal,
        named=str(named.resolve()),
        repeated=repeated,
        remarks=tuple(remarks),
        sets_aside=not again,
        rows_from=ledger if other and end.bytes else None,
    )


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


def count_rows(ledger: Path) -> int:
    """Return the rows of a ledger of which nothing else is left."""
    return sum(1 for _ in ledger.open("rb")) if ledger.is_file() else 0
