"""Where a run begins: at its first step, or at a checkpoint, and which one."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from toolkit.checkpoint.compatibility import GOES_ON, check_state, no_such_folder
from toolkit.checkpoint.format import DamagedError, Manifest, inspect, read_state
from toolkit.config.schema import Config
from toolkit.distributed.launch import agent
from toolkit.errors import UserError
from toolkit.output.ledger import LedgerEnd, check_end
from toolkit.output.run_folder import RunFolder, read_record, sealed_folders, step_of


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
    """The checkpoint or run that this run begins with, if the user named one that is not its own."""
    repeated: int = 0
    """Steps in the ledger that are done again."""
    remarks: tuple[str, ...] = ()
    """What is to be printed."""
    sets_aside: bool = False
    """Whether what the run folder holds is not a part of this run, so that it is moved aside."""
    damaged: tuple[Path, ...] = ()
    """Newer checkpoints, which are not valid."""
    rows_from: Path | None = None
    """The ledger of another run whose rows this ledger begins with, if any."""
    starts: tuple[Mapping[str, Any], ...] = ()
    """The starts that led to the checkpoint, each with its first step and its `provenance`."""


def choose_start(folder: RunFolder, config: Config, precision: str, total_steps: int) -> Start:
    """Return where the run goes on, in the main process, which holds the lock of the folder.

    Raises:
        UserError: there are checkpoints and none is valid, those that were sealed are gone, or the one that was named
        does
            not fit.
    """
    record = folder.record()
    if config.resume == "never" and not begun_from_scratch(record):
        return Start(sets_aside=True)
    previous = record.get("resumed_from")
    if config.resume not in (*GOES_ON, "never") and previous != str(Path(config.resume).resolve()):
        return start_at(Path(config.resume), folder, config, precision, total_steps)
    found, passed_over = newest_valid(folder.checkpoints)
    if found is None:
        if passed_over:
            raise UserError(
                *passed_over,
                f"none of the checkpoints in {folder.checkpoints} is valid; repair one, or start from scratch with "
                "--resume never, which sets them aside",
            )
        if isinstance(previous, str):
            # It died before it had a checkpoint of its own.
            return start_at(Path(previous), folder, config, precision, total_steps, again=True)
        rows = count_rows(folder.ledger_file)
        if rows and record.get("step"):
            gone = " (checkpoint.keep 0 keeps none of a finished run)" if record.get("status") == "finished" else ""
            raise UserError(
                f"the run in {folder.path} had a checkpoint of step {record['step']:,}, and there is none in "
                f"{folder.checkpoints} any more{gone}; put it back, or start from scratch with --resume never, which "
                "sets aside what is there"
            )
        remark = f"the run before ended at step {rows:,}, before it had a checkpoint: it starts from scratch"
        return Start(repeated=rows, remarks=(remark,) if rows else ())
    checkpoint, manifest = found
    state = read_state(checkpoint)
    check_state(state, checkpoint, config, precision, total_steps, record)
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
        starts=starts_of(state, record),
    )


def starts_of(state: Mapping[str, Any], record: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    """Return the starts that led to a checkpoint, given its state and the run.json of its folder."""
    if "starts" in state:
        return tuple(state["starts"])
    # An old checkpoint, which does not hold them: its run.json has the versions of the newest start alone.
    starts = record.get("topology") or [{}]
    return (*starts[:-1], {"versions": record.get("versions"), **starts[-1]})


def begun_from_scratch(record: Mapping[str, Any]) -> bool:
    """Return whether an agent restarted this process after the run began from scratch: then it goes on from there."""
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


def start_at(
    checkpoint: Path, folder: RunFolder, config: Config, precision: str, total_steps: int, again: bool = False
) -> Start:
    """Return the start from a checkpoint, or the newest of a run, that the user named.

    The steps that the run folder itself holds are moved aside, unless it began there already and begins there again.
    """
    named = checkpoint
    if not checkpoint.is_dir():
        raise UserError(no_such_folder(str(named), folder))
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
    state, record = read_state(checkpoint), read_record(checkpoint.parent.parent)
    check_state(state, checkpoint, config, precision, total_steps, record)
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
        starts=starts_of(state, record),
    )


def count_rows(ledger: Path) -> int:
    """Return the rows of a ledger of which nothing else is left."""
    return sum(1 for _ in ledger.open("rb")) if ledger.is_file() else 0
