"""Holding a run against what it promised: nothing in its folder was changed, and every step saw the samples that it should.

What a run left behind is only read: the ledger's rows are linked to each other, the checkpoints are sealed and say where the
ledger ended, and which samples a step saw follows from the configuration. No code runs but a recipe that the user names.
"""

from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from toolkit.checkpoint.format import digest_of_file
from toolkit.config.schema import Config
from toolkit.config.suggestions import show
from toolkit.config.yaml import flatten, read_yaml
from toolkit.errors import UserError
from toolkit.output.provenance import differences
from toolkit.output.run_folder import RunFolder, is_locked
from toolkit.verify.checkpoints import check_checkpoint, check_seals, check_settings
from toolkit.verify.evidence import (
    Expected,
    LedgerFound,
    examined,
    expectation,
    is_count,
    link_before,
    read_whole,
    record_of,
)
from toolkit.verify.ledger import check_end, check_links, check_rates, check_samples, check_steps
from toolkit.verify.recipe_file import load_recipe
from toolkit.verify.results import CheckResult, Report, counted


def verify(run: Path, recipe: Path | None = None) -> Report:
    """Check everything that a run folder holds but the exported model.

    Args:
        run: the run folder, of a finished run or of one that is under way.
        recipe: the file of the recipe, whose code is run to read the data again.

    Raises:
        UserError: it is no run folder, or the file no recipe.
    """
    folder = RunFolder(run)
    check_is_run(folder)
    chosen = None if recipe is None else load_recipe(recipe)
    config, config_finding = settings_of(folder)
    record = record_of(run)
    # In this order: what a living run adds meanwhile is then never missing from what is read later.
    checkpoints = [*reversed([*examined(folder.checkpoints)])]
    ledger = read_whole(folder.ledger_file, lambda first: link_before(first, checkpoints, record))
    expected, missing = expectation(config, record)
    results = [
        config_finding,
        check_record(folder, record, expected, ledger),
        check_steps(ledger, record),
        check_links(ledger),
        check_end(ledger, record),
        check_samples(ledger, expected, missing),
        check_rates(ledger, expected, missing),
        *(check_checkpoint(found, ledger) for found in checkpoints),
        check_seals(checkpoints, record),
        check_settings(checkpoints, config, record, expected, chosen[0] if chosen else None),
        check_starts(record),
        check_files(record, chosen is not None),
    ]
    if chosen:
        results.append(check_recipe(folder, record, *chosen))
    return Report(run, tuple(results))


def check_is_run(folder: RunFolder) -> None:
    """Refuse a folder that holds no run.

    Raises:
        UserError: there is nothing to check.
    """
    parts = [folder.config_file, folder.ledger_file, folder.checkpoints]
    if any(part.exists() for part in parts):
        return
    if status := record_of(folder.path).get("status"):
        raise UserError(f"nothing was trained in {folder.path}: run.json says {status}")
    raise UserError(f"{folder.path} is no run folder: it has neither run.json nor config.yaml nor ledger.jsonl")


def settings_of(folder: RunFolder) -> tuple[dict[str, Any], CheckResult]:
    """Return the configuration, empty where it can't be read."""
    try:
        config = read_yaml(folder.config_file)
    except UserError as error:
        return {}, CheckResult("config.yaml", problems=error.problems)
    return config, CheckResult("config.yaml", f"{len(flatten(config))} settings")


def check_record(
    folder: RunFolder, record: Mapping[str, Any], expected: Expected | None, ledger: LedgerFound
) -> CheckResult:
    """Check run.json by itself and against configuration and ledger."""
    status = record.get("status")
    if not isinstance(status, str):
        return CheckResult("run.json", problems=("it can't be read, or is not that of a run",))
    problems, total, step = [], record.get("total_steps"), record.get("step")
    if expected and total != expected.total_steps:
        problems.append(
            f"total_steps is {show(total)}, and by config.yaml there are {expected.total_steps:,} (of {expected.order.samples:,} samples)"
        )
    if status == "finished":
        if step != total:
            problems.append(f"it says finished, at step {show(step)} of {show(total)}")
        metrics, evaluation = record.get("metrics"), ledger.last.get("evaluation")
        if ledger.rows and (metrics or {}) != (evaluation or {}):
            problems.append(f"metrics is {show(metrics)}, and the last row of the ledger has {show(evaluation)}")
        whole = ledger.rows and ledger.rows[0].step == 1
        if whole and record.get("skipped", ledger.skipped) != ledger.skipped:
            problems.append(f"skipped is {show(record['skipped'])}, and the ledger has {ledger.skipped:,} such steps")
    told = f"{status}, {counted(step)} of {counted(total)} steps"
    if status != "finished":
        last = ledger.last.get("step")
        told = f"{status}, {counted(last if is_count(last) else step)} of {counted(total)} steps are in the ledger"
        if status == "running" and not is_locked(folder.path):
            told += "; no process works on it: it has died"
    return CheckResult("run.json", told, tuple(problems))


def check_starts(record: Mapping[str, Any]) -> CheckResult:
    """Compare what the starts of the run were made with: versions, code, kind of machine."""
    what, topology = "starts", record.get("topology")
    starts = [start for start in topology if isinstance(start, Mapping)] if isinstance(topology, list) else []
    told = [start for start in starts if all(isinstance(start.get(key), Mapping) for key in ("versions", "source"))]
    if not told:
        return CheckResult(what, "run.json does not say what they were made with", checked=False)
    remarks = []
    for before, now in pairwise(told):
        if found := ", ".join(differences(before, now)):
            remarks.append(f"from step {counted(now.get('first_step'))} on: {found}")
    same = "" if remarks else ", all with the same versions, code and kind of machine" if len(told) > 1 else ""
    return CheckResult(what, f"{len(starts)}{same}", remarks=tuple(remarks))


def check_files(record: Mapping[str, Any], with_recipe: bool) -> CheckResult:
    """Check that the files that the data was read from are what they were."""
    what, files = "data files", record.get("files")
    if not files:
        told = "the data did not come from files that run.json lists"
        return CheckResult(what, told if with_recipe else f"{told}; --recipe FILE reads it again", checked=False)
    if not isinstance(files, Mapping):
        return CheckResult(what, problems=("run.json does not tell them",))
    problems = []
    for name, entry in files.items():
        size, digest = (entry.get("bytes"), entry.get("sha256")) if isinstance(entry, Mapping) else (None, None)
        try:
            found = Path(name).stat().st_size
            if found != size:
                problems.append(f"{name} has {found:,} bytes, and had {counted(size)}")
            elif digest_of_file(Path(name)) != digest:
                problems.append(f"{name} has another content than when the run began")
        except (OSError, ValueError) as error:
            problems.append(f"{name} can't be read ({getattr(error, 'strerror', None) or error})")
    return CheckResult(what, f"{len(files)} file(s) as when the run began", tuple(problems))


def check_recipe(
    folder: RunFolder, record: Mapping[str, Any], config_class: type[Config], task: Callable[[Any], Any]
) -> CheckResult:
    """Build the task of a recipe and hold its data against what the run was trained on."""
    from toolkit.config.parser import parse

    what = "data by the recipe"
    try:
        config = parse(config_class, "", ["--config", str(folder.config_file)])
        built = task(config)
        sources = {"train": built.data.train, "evaluate": built.data.evaluate}
        found = {name: None if source is None else (source.digest(), len(source)) for name, source in sources.items()}
    except UserError as error:
        return CheckResult(what, problems=error.problems)
    except Exception as error:
        # The recipe is the user's: whatever it raises is what there is to tell.
        return CheckResult(what, problems=(f"the recipe could not read it: {type(error).__name__}: {error}",))
    problems = []
    for name, label in (("train", "training"), ("evaluate", "evaluation")):
        digest, count = found[name] or (None, 0)
        then = [
            values.get(name) if isinstance(values := record.get(key), Mapping) else None for key in ("data", "samples")
        ]
        if [digest, count] != then:
            problems.append(
                f"the {label} data is not what the run saw: {count:,} samples with the digest {digest}, and then {counted(then[1])} with "
                f"{then[0]}"
            )
    return CheckResult(what, "training and evaluation data have the digests of run.json", tuple(problems))
