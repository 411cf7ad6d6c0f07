"""Whose a run folder is, and whether there is anything left to do in it."""

import json
from contextlib import suppress
from pathlib import Path

from toolkit.checkpoint.compatibility import GOES_ON, changed_settings, check_data, check_length, listed
from toolkit.checkpoint.resume import begun_from_scratch
from toolkit.config.schema import Config
from toolkit.config.yaml import read_yaml
from toolkit.distributed.preflight import digests_of_data
from toolkit.errors import UserError
from toolkit.output.evaluation_file import numbers
from toolkit.output.result import Result
from toolkit.output.run_folder import RunFolder, begun_in
from toolkit.schedules import total_steps
from toolkit.task import Task


def claim(folder: RunFolder, config: Config, precision: str) -> Result | None:
    """Take the folder for this run; return the result if it holds the finished run already.

    Where the settings say in other words where the data is, the folder is taken, and the run compares the data.

    Raises:
        UserError: the folder belongs to another run or to something else; nothing in it was changed.
    """
    try:
        new = folder.is_new()
    except OSError as error:
        raise UserError(
            f"the run folder {folder.path} can't be read ({error.strerror}); give another one with --output"
        ) from None
    if new:
        folder.claim()
        return None
    if not folder.config_file.is_file() or not folder.record():
        raise UserError(
            f"the folder {folder.path} holds files that are not those of a run; give another one with --output"
        )
    record = folder.record()
    if config.resume == "never" and not begun_from_scratch(record):
        folder.claim()
        return None
    changed = changed_settings(config, read_yaml(folder.config_file), begun_in(record))
    differences = changed.refused
    starts = record.get("topology") or [{}]
    if starts[-1].get("precision", precision) != precision:
        differences.append(("mixed precision (of the launch file)", starts[-1]["precision"], precision))
    if differences:
        raise UserError(
            f"the folder {folder.path} belongs to another run: {listed(differences)}. Give another folder with "
            "--output, or the settings of that run, or set that run aside and start from scratch with --resume never"
        )
    if not changed.located and (finished := nothing_to_do(folder, config)):
        return finished
    folder.claim()
    # Another process may have finished it while this one looked.
    finished = None if changed.located else nothing_to_do(folder, config)
    if finished:
        folder.release()
    return finished


def nothing_to_do(folder: RunFolder, config: Config, task: Task | None = None) -> Result | None:
    """Return the result of a run that is finished, unless the command asks for more steps or to start from scratch.

    Args:
        folder: the run folder.
        config: of this command; its settings are those of the run.
        task: where it says in other words where the data is, the data to compare.

    Raises:
        UserError: the run can't be made longer, or the data is not that of the run.
    """
    record = folder.record()
    if record.get("status") != "finished" or (config.resume == "never" and not begun_from_scratch(record)):
        return None
    total, patience = total_steps(config, record["samples"]["train"]), config.evaluate.patience
    ended_early = record["step"] < record["total_steps"]
    if ended_early and (patience is None or record.get("since_best", 0) < patience):
        return None
    if total != record["total_steps"]:
        check_length(config, record["step"], record["total_steps"], total)
        return None
    if task is not None:
        check_data(digests_of_data(task), record["data"], f"when the run in {folder.path} was made")
    return finished_result(folder)


def finished_result(folder: RunFolder) -> Result | None:
    """Return the result of a finished run."""
    record = folder.record()
    if record.get("status") != "finished":
        return None
    metrics, baseline = numbers(record["metrics"]), numbers(record["baseline"])
    exported = (record.get("exported") or {}).get("step")
    other = exported if exported != record["step"] else None
    return Result(metrics, baseline, record["step"], folder.path, record.get("undefined", {}), other)


def rate_begun_with(config: Config) -> float | None:
    """Return the learning rate of the run that this command goes on with, if it gives none itself.

    What a recipe takes where none is given may be otherwise in a later version.
    """
    if config.optim.lr is not None or config.evaluate.only or config.resume == "never":
        return None
    # What can't be read is reported later.
    with suppress(OSError, UserError, ValueError, KeyError, TypeError):
        if config.resume in GOES_ON:
            settings = read_yaml(Path(str(config.output)) / "config.yaml")
        else:
            settings = json.loads((Path(config.resume) / "state.json").read_text(encoding="utf-8"))["config"]
        rate = settings["optim"]["lr"]
        return rate if isinstance(rate, float) else None
    return None
