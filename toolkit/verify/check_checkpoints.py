"""Checks of checkpoints: against their seals, the ledger, each other and the settings."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from toolkit.checkpoint.compatibility import LENGTH
from toolkit.config.fields import changes_numbers, is_declared
from toolkit.config.schema import Config
from toolkit.config.suggestions import show
from toolkit.config.yaml import as_mapping, differing, flatten
from toolkit.output.run_folder import step_of
from toolkit.schedules import same_rates
from toolkit.verify.check_ledger import Expected
from toolkit.verify.evidence import CheckpointEvidence, LedgerEvidence, is_count
from toolkit.verify.results import CheckResult


def check_checkpoint(found: CheckpointEvidence, ledger: LedgerEvidence) -> CheckResult:
    """Compare a checkpoint with its seal and with the ledger."""
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
                f"the ledger is not the one that it was sealed with: row {end.rows:,} with the link {end.chain} ended "
                f"at byte {end.bytes:,}"
            )
    elif ledger.rows and ledger.rows[0].step != end.rows + 1:
        problem = f"when it was sealed the ledger was to begin with step {end.rows + 1:,}"
    size = sum(entry.bytes for entry in found.manifest.files.values())
    message = f"{len(found.manifest.files)} files, {size:,} bytes, as sealed after row {end.rows:,} of the ledger"
    return CheckResult(name, message, (problem,) if problem else ())


def check_seals(checkpoints: Sequence[CheckpointEvidence], record: Mapping[str, Any]) -> CheckResult:
    """Check that each checkpoint, the oldest first, names the one before it; deleted ones leave a gap."""
    name, problems, gaps = "chain of checkpoints", [], []
    sealed = [(found.folder.name, found.manifest) for found in checkpoints if found.manifest]
    folder_of_seal = {manifest.seal: folder for folder, manifest in sealed}
    for (before, earlier), (folder, manifest) in pairwise(sealed):
        if manifest.previous == earlier.seal:
            continue
        if manifest.previous is None or manifest.previous in folder_of_seal:
            named = "none" if manifest.previous is None else folder_of_seal[manifest.previous]
            problems.append(f"{folder} says that the checkpoint before it was {named}, and {before} lies there")
        else:
            gaps.append(folder)
    step = record.get("step")
    newest = max((step_of(found.folder) for found in checkpoints), default=0)
    if record.get("status") != "finished" and is_count(step) and step > newest:
        problems.append(f"run.json tells of a checkpoint of step {step:,}, and the newest is of step {newest:,}")
    if not checkpoints:
        return CheckResult(name, "there is no checkpoint", tuple(problems), checked=False)
    message = f"{len(sealed)} checkpoint(s), each names the one before"
    if gaps:
        message += f" (deleted ones came before {', '.join(gaps)})"
    return CheckResult(name, message, tuple(problems))


def check_settings(
    checkpoints: Sequence[CheckpointEvidence],
    config: Mapping[str, Any],
    record: Mapping[str, Any],
    expected: Expected | None,
    config_class: type[Config] | None,
) -> CheckResult:
    """Compare config.yaml and run.json with what the checkpoints hold.

    The older checkpoints of a run that was made longer have another length, and the same learning rates up to their
    step.
    """
    name, problems, doubtful = "settings", {}, {}
    shared = flatten(as_mapping(Config()))
    declared = Config() if config_class is None else config_class()
    sealed = [found for found in checkpoints if found.manifest and isinstance(found.state.get("config"), Mapping)]
    for found in sealed:
        same_course = is_same_course(found, expected)
        for key, now, then in differing(config, found.state["config"]) if config else []:
            # A path to the data may differ: the digests of the data are compared below.
            if (same_course and key in LENGTH) or is_declared(declared, key, "locates"):
                continue
            difference = f"{key} is {show(now)} in config.yaml and {show(then)} in {found.folder.name}"
            if config_class is None and key not in shared:
                doubtful[key] = f"{difference} (of the recipe: it may change no number; --recipe FILE tells)"
            elif changes_numbers(declared, key):
                problems[key] = difference
        for key in ("data", "total_steps") if record else ():
            now, then = record.get(key), found.state.get(key)
            if key == "total_steps" and same_course and expected and now == expected.total_steps:
                continue
            if now != then:
                problems[key] = f"{key} is {show(now)} in run.json and {show(then)} in {found.folder.name}"
    if not sealed or (not config and not record):
        return CheckResult(name, "there is no checkpoint to hold them against", checked=False)
    message = "; ".join(["config.yaml and run.json say what the checkpoints say", *doubtful.values()])
    return CheckResult(name, message, tuple(problems.values()))


def is_same_course(found: CheckpointEvidence, expected: Expected | None) -> bool:
    """Return whether the run, even if it was made longer since, has the same steps up to a checkpoint."""
    if expected is None or found.manifest is None or not is_count(total := found.state.get("total_steps")):
        return False
    step = found.manifest.step
    return step <= expected.total_steps and same_rates(expected.optim, step, total, expected.total_steps)
