"""Holding a run against what it promised: nothing in its folder was changed, and every step saw the samples that it should.

What a run left behind is only read: the ledger's rows are linked to each other, the checkpoints are sealed and say where the
ledger ended, and which samples a step saw follows from the configuration. No code runs but a recipe that the user names.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from toolkit.checkpoint import digest_of_file, step_of
from toolkit.config import Config, changes_numbers
from toolkit.diagnosis import show
from toolkit.errors import UserError
from toolkit.evidence import (
    CheckpointFound,
    Expected,
    LedgerFound,
    Row,
    examined,
    expectation,
    is_count,
    link_before,
    read_whole,
    recomputed,
    record_of,
    samples_in,
)
from toolkit.recipe_file import load_recipe
from toolkit.run_folder import RunFolder, is_locked
from toolkit.schedules import learning_rate
from toolkit.settings_file import as_mapping, differing, flatten, read_yaml

NAMED = 5
# The learning rate is computed anew, maybe by another machine's cosine.
SAME_RATE = 1e-12


@dataclass(frozen=True)
class Finding:
    """What one check came to."""

    what: str
    """What was checked."""
    told: str = ""
    """What was found, if nothing is wrong."""
    problems: tuple[str, ...] = ()
    checked: bool = True
    """Whether there was anything to check it by; if not, `told` says why."""

    def texts(self) -> tuple[str, ...]:
        """Return the result in words, a line each."""
        if self.problems:
            return self.problems
        return (f"ok: {self.told}" if self.checked else f"not checked: {self.told}",)


@dataclass(frozen=True)
class Report:
    """What all checks of a run came to."""

    folder: Path
    findings: tuple[Finding, ...]

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    @property
    def problems(self) -> tuple[str, ...]:
        """Everything that is wrong, a sentence each."""
        return tuple(f"{finding.what}: {problem}" for finding in self.findings for problem in finding.problems)

    def __str__(self) -> str:
        width = max((len(finding.what) for finding in self.findings), default=0)
        lines = [str(self.folder)]
        for finding in self.findings:
            for number, text in enumerate(finding.texts()):
                lines.append(f"  {finding.what if number == 0 else '':<{width}}  {text}")
        count = len(self.problems)
        lines.append(f"{count} thing(s) are wrong" if count else "nothing is wrong")
        return "\n".join(lines)


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
    expected, lacking = expectation(config, record)
    findings = [
        config_finding,
        check_record(folder, record, expected, ledger),
        check_steps(ledger, record),
        check_links(ledger),
        check_end(ledger, record),
        check_samples(ledger, expected, lacking),
        check_rates(ledger, expected, lacking),
        *(check_checkpoint(found, ledger) for found in checkpoints),
        check_seals(checkpoints, record),
        check_settings(checkpoints, config, record, chosen[0] if chosen else None),
        check_files(record, chosen is not None),
    ]
    if chosen:
        findings.append(check_recipe(folder, record, *chosen))
    return Report(run, tuple(findings))


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


def settings_of(folder: RunFolder) -> tuple[dict[str, Any], Finding]:
    """Return the configuration, empty where it can't be read."""
    try:
        config = read_yaml(folder.config_file)
    except UserError as error:
        return {}, Finding("config.yaml", problems=error.problems)
    return config, Finding("config.yaml", f"{len(flatten(config))} settings")


def begins_later(first: int, record: Mapping[str, Any]) -> bool:
    """Return whether run.json says that the run began at this step, at a checkpoint whose ledger is elsewhere."""
    starts = record.get("topology")
    begun = (
        [start.get("first_step") for start in starts if isinstance(start, Mapping)] if isinstance(starts, list) else []
    )
    # A checkpoint that is followed by an evaluation is written before the row of its own step.
    return bool(record.get("resumed_from")) and (first in begun or first + 1 in begun)


def check_record(
    folder: RunFolder, record: Mapping[str, Any], expected: Expected | None, ledger: LedgerFound
) -> Finding:
    """Check run.json by itself and against configuration and ledger."""
    status = record.get("status")
    if not isinstance(status, str):
        return Finding("run.json", problems=("it can't be read, or is not that of a run",))
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
    return Finding("run.json", told, tuple(problems))


def check_steps(ledger: LedgerFound, record: Mapping[str, Any]) -> Finding:
    """Check that every step stands in the ledger once, one after the other."""
    finished = record.get("status") == "finished"
    if ledger.missing:
        if not finished and not record.get("step"):
            return Finding("ledger", "there is none yet", checked=False)
        return Finding("ledger", problems=(f"ledger.jsonl can't be read ({ledger.missing})",))
    problems = []
    if ledger.unreadable:
        problems.append(f"{several('line', ledger.unreadable)}: no row of a ledger")
    if ledger.half and finished:
        problems.append("its last line is half written, though the run is finished")
    steps = ledger.steps()
    if len(steps) < len(ledger.rows):
        problems.append(f"{len(ledger.rows) - len(steps):,} row(s) name no step")
    there = sorted(set(steps))
    later = bool(there) and there[0] > 1 and begins_later(there[0], record)
    begin = there[:1] if later else [0]
    gaps = [(a + 1, b - 1) for a, b in pairwise([*begin, *there]) if b > a + 1]
    if gaps:
        shown = [f"{a:,}" if a == b else f"{a:,} to {b:,}" for a, b in gaps]
        problems.append(f"missing: step {', '.join(shown[:NAMED])}{and_more(shown)}")
    if len(there) < len(steps):
        seen: set[int] = set()
        twice = [step for step in steps if step in seen or seen.add(step)]  # type: ignore[func-returns-value]
        problems.append(f"{several('step', twice)}: there more than once")
    if moved := [b for a, b in pairwise(steps) if b < a]:
        problems.append(f"{several('step', moved)}: after a later one")
    if not steps:
        return Finding("ledger", "it has no row yet", tuple(problems), checked=bool(problems))
    told = f"{len(steps):,} rows, steps {there[0]:,} to {there[-1]:,}, each once"
    if later:
        told += (
            f"; it begins there because the run goes on from {record['resumed_from']}, whose ledger it does not have"
        )
    if ledger.half:
        told += "; one more is half written, as a run that is killed leaves it"
    return Finding("ledger", told, tuple(problems))


def check_links(ledger: LedgerFound) -> Finding:
    """Check that no row was changed, dropped or moved after it was written."""
    if not ledger.rows:
        return Finding("links of the ledger", "there is no row", checked=False)
    problems = []
    if ledger.broken:
        problems.append(
            f"the first link that does not fit is that of {named(ledger.broken[0])}: this row was changed or moved, or the one before "
            f"it taken away ({len(ledger.broken):,} in all)"
        )
    if ledger.rewritten:
        problems.append(f"{several('step', ledger.rewritten)}: written in another way than a ledger is")
    told = "each row has the link that follows from it and the row before"
    if ledger.unlinked:
        told += "; but for the first: the checkpoint that it goes on from is not there any more"
    return Finding("links of the ledger", told, tuple(problems))


def check_end(ledger: LedgerFound, record: Mapping[str, Any]) -> Finding:
    """Check that a finished run's ledger ends where run.json says."""
    what, end = "end of the ledger", record.get("ledger")
    if record.get("status") != "finished":
        return Finding(what, "run.json tells it when the run is finished", checked=False)
    if not isinstance(end, Mapping) or set(end) != {"rows", "bytes", "chain"}:
        return Finding(what, problems=("run.json does not tell it, though the run is finished",))
    last = ledger.rows[-1] if ledger.rows else Row(0, 0, "", None, None, None, None)
    problems = [
        f"{name} {show(value)}, by run.json {show(end[key])}"
        for name, key, value in (
            ("its last step is", "rows", last.step),
            ("its size in bytes is", "bytes", ledger.size),
            ("its last link is", "chain", last.link),
        )
        if value != end[key]
    ]
    return Finding(what, f"{ledger.size:,} bytes, as when the run was finished", tuple(problems))


def check_samples(ledger: LedgerFound, expected: Expected | None, lacking: str) -> Finding:
    """Compute anew which samples every step should have seen, and hold it against its row."""
    if expected is None or not ledger.rows:
        return Finding("samples", lacking or "there is no row", checked=False)
    order = expected.order
    # Counts come first: with a batch size that was altered, a single batch might not fit in memory.
    counted_right = {
        row.step
        for row in ledger.rows
        if is_count(row.step) and 1 <= row.step <= expected.total_steps and row.samples == samples_in(order, row.step)
    }
    fingerprints = dict(recomputed(order, sorted(counted_right)))
    wrong = [
        row.step
        for row in ledger.rows
        if not is_count(row.step)
        or row.step not in fingerprints
        or row.samples != samples_in(order, row.step)
        or row.fingerprint != fingerprints[row.step]
        or row.epoch != row.step / order.steps_per_epoch
    ]
    if wrong:
        text = f"{several('step', wrong)}: other samples than config.yaml and run.json lead to"
        return Finding("samples", problems=(text,))
    return Finding(
        "samples",
        f"the fingerprints of {len(ledger.rows):,} steps, computed anew for batches of {order.batch_size:,} of {order.samples:,} samples",
    )


def check_rates(ledger: LedgerFound, expected: Expected | None, lacking: str) -> Finding:
    """Hold the learning rate of every row against the schedule."""
    if expected is None or not ledger.rows:
        return Finding("learning rates", lacking or "there is no row", checked=False)
    optim, total, wrong = expected.optim, expected.total_steps, []
    for row in ledger.rows:
        rate = learning_rate(optim, row.step - 1, total) if is_count(row.step) else math.nan
        found = row.learning_rate
        if not isinstance(found, int | float) or not abs(found - rate) <= SAME_RATE * optim.lr:
            wrong.append(row.step)
    if wrong:
        return Finding("learning rates", problems=(f"{several('step', wrong)}: another one than config.yaml leads to",))
    return Finding("learning rates", f"{optim.schedule}, as config.yaml says")


def check_checkpoint(found: CheckpointFound, ledger: LedgerFound) -> Finding:
    """Hold a checkpoint against its seal and against the ledger."""
    name = found.folder.name
    if found.manifest is None:
        return Finding(name, problems=(str(found.damage),))
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
    return Finding(name, told, (problem,) if problem else ())


def check_seals(checkpoints: Sequence[CheckpointFound], record: Mapping[str, Any]) -> Finding:
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
        return Finding(what, "there is no checkpoint", tuple(problems), checked=False)
    told = f"{len(sealed)} checkpoint(s), each names the one before"
    if gaps:
        told += f" (deleted ones came before {', '.join(gaps)})"
    return Finding(what, told, tuple(problems))


def check_settings(
    checkpoints: Sequence[CheckpointFound],
    config: Mapping[str, Any],
    record: Mapping[str, Any],
    config_class: type[Config] | None,
) -> Finding:
    """Hold config.yaml and run.json against what is sealed in the checkpoints."""
    what, problems, doubtful = "settings", {}, {}
    shared = flatten(as_mapping(Config()))
    judge = Config() if config_class is None else config_class()
    sealed = [found for found in checkpoints if found.manifest and isinstance(found.state.get("config"), Mapping)]
    for found in sealed:
        for key, now, then in differing(config, found.state["config"]) if config else []:
            text = f"{key} is {show(now)} in config.yaml and {show(then)} in {found.folder.name}"
            if config_class is None and key not in shared:
                doubtful[key] = f"{text} (of the recipe: it may change no number; --recipe FILE tells)"
            elif changes_numbers(judge, key):
                problems[key] = text
        for key in ("data", "total_steps") if record else ():
            if record.get(key) != found.state.get(key):
                problems[key] = (
                    f"{key} is {show(record.get(key))} in run.json and {show(found.state.get(key))} in {found.folder.name}"
                )
    if not sealed or (not config and not record):
        return Finding(what, "there is no checkpoint to hold them against", checked=False)
    told = "; ".join(["config.yaml and run.json say what the checkpoints say", *doubtful.values()])
    return Finding(what, told, tuple(problems.values()))


def check_files(record: Mapping[str, Any], with_recipe: bool) -> Finding:
    """Check that the files that the data was read from are what they were."""
    what, files = "data files", record.get("files")
    if not files:
        told = "the data did not come from files that run.json lists"
        return Finding(what, told if with_recipe else f"{told}; --recipe FILE reads it again", checked=False)
    if not isinstance(files, Mapping):
        return Finding(what, problems=("run.json does not tell them",))
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
    return Finding(what, f"{len(files)} file(s) as when the run began", tuple(problems))


def check_recipe(
    folder: RunFolder, record: Mapping[str, Any], config_class: type[Config], task: Callable[[Any], Any]
) -> Finding:
    """Build the task of a recipe and hold its data against what the run was trained on."""
    from toolkit.command_line import parse

    what = "data by the recipe"
    try:
        config = parse(config_class, "", ["--config", str(folder.config_file)])
        built = task(config)
        sources = {"train": built.train, "evaluate": built.evaluate}
        found = {name: None if source is None else (source.digest(), len(source)) for name, source in sources.items()}
    except UserError as error:
        return Finding(what, problems=error.problems)
    except Exception as error:
        # The recipe is the user's: whatever it raises is what there is to tell.
        return Finding(what, problems=(f"the recipe could not read it: {type(error).__name__}: {error}",))
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
    return Finding(what, "training and evaluation data have the digests of run.json", tuple(problems))


def counted(value: Any) -> str:
    """Return a count for people, or what stands in its place."""
    return f"{value:,}" if is_count(value) else show(value)


def named(step: Any) -> str:
    """Return the name of a row."""
    return f"step {step:,}" if is_count(step) else f"a row that names the step {show(step)}"


def several(what: str, numbers: Sequence[Any]) -> str:
    """Return the first few numbers, and how many there are in all."""
    return f"{what} {', '.join(map(counted, numbers[:NAMED]))}{and_more(numbers)}"


def and_more(entries: Sequence[Any]) -> str:
    """Say how many are not named."""
    return f" and {len(entries) - NAMED:,} more" if len(entries) > NAMED else ""
