"""Holding checkpoints against their seals, the ledger, each other and the configuration."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from toolkit.checkpoint.compatibility import LENGTH
from toolkit.config.schema import Config, changes_numbers, is_declared
from toolkit.config.suggestions import show
from toolkit.config.yaml import as_mapping, differing, flatten
from toolkit.output.run_folder import step_of
from toolkit.schedules import same_rates
from toolkit.verify.evidence import (
    CheckpointFound,
    Expected,
    LedgerFound,
    is_count,
)
from toolkit.verify.results import CheckResult


def check_checkpoint(found: CheckpointFound, ledger: LedgerFound) -> CheckResult:
    """Hold a checkpoint against its seal and against the ledger."""
    name = found.folder.name
    if found.manifest is None:
        return CheckResult(name, problems=(str(found.damage),))
    end, problem = found.manifest.ledger, ""
    if end.bytes:
        place = bisect_left(ledger.rows, end.bytes, key=lambda row: row.end)
        row = ledger.rows[place] if place < len(ledger.rows) else None
        if row is None:
            problem = f"the ledger is shorter than when it was sealed, after row {end.rows:,}"
        elif (row.end, row.step, row.link) != (end.bytes, end.rows, end.chain):
            problem = (
                f"the ledger is not the one that it was sealed with: row {end.rows:,} with the link {end.chain} ended at byte "
                f"{end.bytes:,}"
            )
    elif ledger.rows and ledger.rows[0].step != end.rows + 1:
        problem = f"when it was sealed the ledger was to begin with step {end.rows + 1:,}"
    size = sum(entry.bytes for entry in found.manifest.files.values())
    told = f"{len(found.manifest.files)} files, {size:,} bytes, as sealed after row {end.rows:,} of the ledger"
    return CheckResult(name, told, (problem,) if problem else ())


def check_seals(checkpoints: Sequence[CheckpointFound], record: Mapping[str, Any]) -> CheckResult:
    """Check that each checkpoint, the oldest first, names the one before; deleted ones leave a gap."""
    what, problems, gaps = "chain of checkpoints", [], []
    sealed = [(found.folder.name, found.manifest) for found in checkpoints if found.manifest]
    of_seal = {manifest.seal: name for name, manifest in sealed}
    for (before, earlier), (name, manifest) in pairwise(sealed):
        if manifest.previous == earlier.seal:
            continue
        if manifest.previous is None or manifest.previous in of_seal:
            said = "none" if manifest.previous is None else of_seal[manifest.previous]
            problems.append(f"{name} says that the checkpoint before it was {said}, and {before} lies there")
        else:
            gaps.append(name)
    step = record.get("step")
    newest = max((step_of(found.folder) for found in checkpoints), default=0)
    if record.get("status") != "finished" and is_count(step) and step > newest:
        problems.append(f"run.json tells of a checkpoint of step {step:,}, and the newest is of step {newest:,}")
    if not checkpoints:
        return CheckResult(what, "there is no checkpoint", tuple(problems), checked=False)
    told = f"{len(sealed)} checkpoint(s), each names the one before"
    if gaps:
        told += f" (deleted ones came before {', '.join(gaps)})"
    return CheckResult(what, told, tuple(problems))


def check_settings(
    checkpoints: Sequence[CheckpointFound],
    config: Mapping[str, Any],
    record: Mapping[str, Any],
    expected: Expected | None,
    config_class: type[Config] | None,
) -> CheckResult:
    """Hold config.yaml and run.json against what is sealed in the checkpoints.

    A run that was made longer has another length in its older checkpoints, and the same learning rates up to them.
    """
    what, problems, doubtful = "settings", {}, {}
    shared = flatten(as_mapping(Config()))
    judge = Config() if config_class is None else config_class()
    sealed = [found for found in checkpoints if found.manifest and isinstance(found.state.get("config"), Mapping)]
    for found in sealed:
        same_course = is_same_course(found, expected)
        for key, now, then in differing(config, found.state["config"]) if config else []:
            if (same_course and key in LENGTH) or is_declared(judge, key, "locates"):
                continue  # where the data is may be said in other words: its digests are compared below
            text = f"{key} is {show(now)} in config.yaml and {show(then)} in {found.folder.name}"
            if config_class is None and key not in shared:
                doubtful[key] = f"{text} (of the recipe: it may change no number; --recipe FILE tells)"
            elif changes_numbers(judge, key):
                problems[key] = text
        for key in ("data", "total_steps") if record else ():
            if key == "total_steps" and same_course and expected and record.get(key) == expected.total_steps:
                continue
            if record.get(key) != found.state.get(key):
                problems[key] = (
                    f"{key} is {show(record.get(key))} in run.json and {show(found.state.get(key))} in {found.folder.name}"
                )
    if not sealed or (not config and not record):
        return CheckResult(what, "there is no checkpoint to hold them against", checked=False)
    told = "; ".join(["config.yaml and run.json say what the checkpoints say", *doubtful.values()])
    return CheckResult(what, told, tuple(problems.values()))


def is_same_course(found: CheckpointFound, expected: Expected | None) -> bool:
    """Return whether the steps up to a checkpoint are those of the whole run, which may have been made longer since."""
    if expected is None or found.manifest is None or not is_count(total := found.state.get("total_steps")):
        return False
    step = found.manifest.step
    return step <= expected.total_steps and same_rates(expected.optim, step, total, expected.total_steps)
