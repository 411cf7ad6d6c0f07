"""Going on from a checkpoint: which one, and whether it fits this run."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from toolkit.checkpoint.format import DamagedError, Manifest, inspect, read_state
from toolkit.config.schema import Config, changes_numbers, is_declared
from toolkit.config.suggestions import show
from toolkit.config.yaml import as_mapping, differing
from toolkit.distributed.launch import agent
from toolkit.errors import UserError
from toolkit.output.ledger import LedgerEnd, check_end
from toolkit.output.run_folder import RunFolder, begun_in, read_record, sealed_folders, step_of
from toolkit.schedules import same_rates

Differences = list[tuple[str, Any, Any]]

LENGTH = ("epochs", "steps")
GOES_ON = ("auto", "strict")
"""The values of `resume` that go on from the newest valid checkpoint."""


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
    starts: tuple[Mapping[str, Any], ...] = ()
    """The starts that led to the checkpoint, each with its first step and its `provenance`."""


@dataclass(frozen=True)
class ChangedSettings:
    """The settings that a command gives otherwise than the run was begun with."""

    numbers: Differences
    """Those that would change the numbers of the run."""
    length: Differences
    """How long it is to be: whether that fits the steps that are done, `check_length` tells."""
    located: Differences
    """Those that say where data is: whether it is the same data, its digests tell."""

    @property
    def refused(self) -> Differences:
        """Everything that differs, if anything does that can't be had in one run."""
        return [*self.numbers, *self.length] if self.numbers else []


def changed_settings(config: Config, previous: Mapping[str, Any], folder: str | None) -> ChangedSettings:
    """Compare settings by what they mean.

    Args:
        config: of this command.
        previous: the configuration that the run was begun with.
        folder: the folder in which the run was begun, where its relative paths begin; None if that was not written down.

    Raises:
        UserError: `resume` names nothing; a run of which nothing is left to do would not look for it.
    """
    found = ChangedSettings([], [], [])
    for key, before, now in differing(previous, as_mapping(config)):
        if not changes_numbers(config, key) or is_same_place(before, now, folder):
            continue
        if key in LENGTH:
            found.length.append((key, before, now))
        elif is_declared(config, key, "locates"):
            found.located.append((key, before, now))
        else:
            found.numbers.append((key, before, now))
    if problem := names_nothing(config.resume, Path(str(config.output))):
        others = [f"the run in {config.output} has other settings: {listed(found.refused)}"] if found.refused else []
        raise UserError(problem, *others)
    return found


def names_nothing(resume: str, output: Path) -> str | None:
    """Return what is wrong with a `resume` that names no folder; that which the run in `output` began with may be gone by now."""
    if resume in (*GOES_ON, "never"):
        return None
    place = Path(resume)
    try:
        known = place.is_dir() or read_record(output).get("resumed_from") == str(place.resolve())
    except (OSError, ValueError):  # a name that is too long; a text with a null byte
        known = False
    if known:
        return None
    return no_such_folder(resume, RunFolder(output))


def no_such_folder(resume: str, folder: RunFolder) -> str:
    """Return what the user is told of a `resume` that names no folder."""
    return (
        f"resume is '{resume}', but there is no such folder; give auto, strict, never, or a checkpoint such as "
        f"{folder.checkpoints}/step-000100"
    )


def is_same_place(before: Any, now: Any, folder: str | None) -> bool:
    """Return whether two settings are paths of one file or folder, which is there."""
    if not (isinstance(before, str) and isinstance(now, str)):
        return False
    try:
        return Path(now).expanduser().samefile(Path(folder or ".") / Path(before).expanduser())
    except (OSError, ValueError, RuntimeError):  # no such file; a text with a null byte; no such user
        return False


def check_length(config: Config, done: int, before: int, now: int) -> None:
    """Refuse to change the length of a run where the steps done would have been others in a run of the new length.

    Args:
        config: of this command.
        done: optimizer steps done.
        before: optimizer steps that the run was to take.
        now: optimizer steps that it is to take.

    Raises:
        UserError: it has done more steps already, or their learning rates would have been others.
    """
    if now < done:
        raise UserError(
            f"the run has done {done:,} steps, and is now to take {now:,} in all (epochs, steps); give at least as many, or "
            "another folder with --output"
        )
    if not same_rates(config.optim, done, before, now):
        raise UserError(
            f"the run was to take {before:,} steps and is now to take {now:,} (epochs, steps), and its learning rate depends on "
            f"that: the {done:,} steps done would have had other rates (optim.schedule {config.optim.schedule}, optim.warmup "
            f"{config.optim.warmup:g}). Give its former length; or train its saved model further as a run of its own (--model.name "
            "<the run folder>/model and another --output); or start from scratch with --resume never. (A run with "
            "--optim.schedule constant and a whole number of warm-up steps can be made longer.)"
        )


def listed(differences: Differences) -> str:
    """Return differing settings with both values."""
    return "; ".join(f"{key} was {show(before)} and is now {show(after)}" for key, before, after in differences)


def choose_start(folder: RunFolder, config: Config, precision: str, total_steps: int) -> Start:
    """Return where the run goes on, in the main process, which holds the lock of the folder.

    Raises:
        UserError: there are checkpoints and none is valid, those that were sealed are gone, or the one that was named does
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
                f"none of the checkpoints in {folder.checkpoints} is valid; repair one, or start anew with --resume never, "
                "which sets them aside",
            )
        if isinstance(previous, str):
            # It died before it had a checkpoint of its own.
            return start_at(Path(previous), folder, config, precision, total_steps, again=True)
        rows = count_rows(folder.ledger_file)
        if rows and record.get("step"):
            gone = " (checkpoint.keep 0 keeps none of a finished run)" if record.get("status") == "finished" else ""
            raise UserError(
                f"the run in {folder.path} had a checkpoint of step {record['step']:,}, and there is none in {folder.checkpoints} "
                f"any more{gone}; put it back, or start from scratch with --resume never, which sets aside what is there"
            )
        said = f"the run before ended at step {rows:,}, before it had a checkpoint: it starts from scratch"
        return Start(repeated=rows, remarks=(said,) if rows else ())
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
    # Written before checkpoints told it: run.json had the versions of the newest start alone.
    starts = record.get("topology") or [{}]
    return (*starts[:-1], {"versions": record.get("versions"), **starts[-1]})


def begun_from_scratch(record: Mapping[str, Any]) -> bool:
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


def start_at(
    checkpoint: Path, folder: RunFolder, config: Config, precision: str, total_steps: int, again: bool = False
) -> Start:
    """Return the start from a checkpoint, or the newest of a run, that the user named.

    What the run folder had done itself is set aside, unless it began there already and begins there again.
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


def check_state(
    state: Mapping[str, Any],
    checkpoint: Path,
    config: Config,
    precision: str,
    total_steps: int,
    record: Mapping[str, Any],
) -> None:
    """Hold a checkpoint against the configuration and the launch file; `record` is the run.json of its folder.

    Raises:
        UserError: the numbers of the run would change on the way.
    """
    differences = changed_settings(config, state["config"], begun_in(record)).refused
    if state["precision"] != precision:
        differences.append(("mixed precision (of the launch file)", state["precision"], precision))
    if differences:
        raise UserError(
            f"the checkpoint {checkpoint} is of a run with other numbers: {listed(differences)}. Give its settings, "
            "or start a new run with --output"
        )
    check_length(config, state["step"], state["total_steps"], total_steps)


def check_data(digests: Mapping[str, str | None], before: Mapping[str, str | None], when: str) -> None:
    """Refuse to go on with other data than the run began with.

    Args:
        digests: of the data now.
        before: of the data then.
        when: when that was, in words.

    Raises:
        UserError: a digest differs.
    """
    names = {"train": "training", "evaluate": "evaluation"}
    problems = [
        f"the {names[key]} data is not what it was {when} (its digest was {digest} and is now {digests[key]}); put the former "
        "data back, or start a new run with --output"
        for key, digest in before.items()
        if digest != digests[key]
    ]
    if problems:
        raise UserError(*problems)


def count_rows(ledger: Path) -> int:
    """Return the rows of a ledger of which nothing else is left."""
    return sum(1 for _ in ledger.open("rb")) if ledger.is_file() else 0
