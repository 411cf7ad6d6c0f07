"""Whether a command fits the run that it goes on with: its settings, its length, its precision, its data."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolkit.config.fields import changes_numbers, is_declared
from toolkit.config.schema import Config
from toolkit.config.suggestions import show
from toolkit.config.yaml import as_mapping, differing
from toolkit.errors import UserError
from toolkit.output.run_folder import RunFolder, begun_in, read_record
from toolkit.schedules import same_rates

Differences = list[tuple[str, Any, Any]]
"""For each setting its name, its value in the run, and its value in the command."""

LENGTH = ("epochs", "steps")
GOES_ON = ("auto", "strict")
"""The values of `resume` that go on from the newest valid checkpoint."""


@dataclass(frozen=True)
class ChangedSettings:
    """The settings of a command that differ from those that the run was begun with."""

    numbers: Differences
    """Those that would change the numbers of the run."""
    length: Differences
    """How long it is to be. `check_length` decides whether that fits the steps that are done."""
    located: Differences
    """Those that say where data is. The digests decide whether it is the same data."""

    @property
    def refused(self) -> Differences:
        """All differences that the run refuses; none where only length or place of data differ."""
        return [*self.numbers, *self.length] if self.numbers else []


def changed_settings(config: Config, previous: Mapping[str, Any], folder: str | None) -> ChangedSettings:
    """Compare settings by what they mean.

    Args:
        config: of this command.
        previous: the configuration that the run was begun with.
        folder: the working folder in which the run was begun, for its relative paths; None if that was not written
            down.

    Raises:
        UserError: `resume` names nothing. (A finished run would not look for it.)
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
    """Return what is wrong with a `resume` that names no folder; the one that the run began with may be gone."""
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
    """Return the message for a `resume` that names no folder."""
    return (
        f"resume is '{resume}', but there is no such folder; give auto, strict, never, or a checkpoint such as "
        f"{folder.checkpoints}/step-000100"
    )


def is_same_place(before: Any, now: Any, folder: str | None) -> bool:
    """Return whether two settings are paths of the same file or folder, and it exists."""
    if not (isinstance(before, str) and isinstance(now, str)):
        return False
    try:
        return Path(now).expanduser().samefile(Path(folder or ".") / Path(before).expanduser())
    except (OSError, ValueError, RuntimeError):  # no such file; a text with a null byte; no such user
        return False


def check_length(config: Config, done: int, before: int, now: int) -> None:
    """Refuse a new length of a run if the steps that are done would have been others in a run of that length.

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
            f"the run has done {done:,} steps, and is now to take {now:,} in all (epochs, steps); give at least as "
            "many, or another folder with --output"
        )
    if not same_rates(config.optim, done, before, now):
        raise UserError(
            f"the run was to take {before:,} steps and is now to take {now:,} (epochs, steps), and its learning rate "
            f"depends on that: the {done:,} steps done would have had other rates (optim.schedule "
            f"{config.optim.schedule}, optim.warmup {config.optim.warmup:g}). Give its previous length; or train its "
            "saved model further as a run of its own (--model.name <the run folder>/model and another --output); or "
            "start from scratch with --resume never. (A run with --optim.schedule constant and a whole number of "
            "warm-up steps can be made longer; one with wsd too, before its rate begins to fall.)"
        )


def listed(differences: Differences) -> str:
    """Return differing settings with both values."""
    return "; ".join(f"{key} was {show(before)} and is now {show(after)}" for key, before, after in differences)


def check_state(
    state: Mapping[str, Any],
    checkpoint: Path,
    config: Config,
    precision: str,
    total_steps: int,
    record: Mapping[str, Any],
) -> None:
    """Compare a checkpoint with the configuration and the launch file; `record` is the run.json of its folder.

    Raises:
        UserError: the numbers of the run would change.
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
        f"the {names[key]} data is not what it was {when} (its digest was {digest} and is now {digests[key]}); put the "
        "previous data back, or start a new run with --output"
        for key, digest in before.items()
        if digest != digests[key]
    ]
    if problems:
        raise UserError(*problems)
