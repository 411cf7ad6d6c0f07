"""Check a run folder: nothing in it was changed, and every step saw the samples that it should have seen.

The folder is only read. The rows of the ledger are linked to each other, the checkpoints are sealed and say where the
ledger ended, and the samples of a step follow from the settings. No code is run but a recipe that the user names.
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
from toolkit.output.nearby_runs import no_run_folder
from toolkit.output.provenance import differences
from toolkit.output.run_folder import RunFolder, is_locked
from toolkit.recipe_file import load_recipe
from toolkit.verify.check_checkpoints import check_checkpoint, check_seals, check_settings
from toolkit.verify.check_ledger import (
    Expected,
    check_end,
    check_links,
    check_rates,
    check_samples,
    check_steps,
    expected_of,
)
from toolkit.verify.evidence import (
    LedgerEvidence,
    examine_checkpoints,
    examine_ledger,
    is_count,
    link_before,
    record_of,
    starts_of,
)
from toolkit.verify.results import CheckResult, Report, count_text


def verify(run: Path, recipe: Path | None = None) -> Report:
    """Check everything in a run folder but the exported model.

    Args:
        run: the run folder, of a finished run or of one that is still running.
        recipe: the recipe's file; its code is run to read the data again.

    Raises:
        UserError: it is no run folder, or the file is no recipe.
    """
    folder = RunFolder(run)
    check_is_run(folder)
    loaded = None if recipe is None else load_recipe(recipe)
    config, config_result = read_settings(folder)
    record = record_of(run)
    # In this order nothing is missing from what is read later, even if the run goes on meanwhile.
    checkpoints = [*reversed([*examine_checkpoints(folder.checkpoints)])]
    ledger = examine_ledger(folder.ledger_file, lambda first: link_before(first, checkpoints, record))
    expected, missing = expected_of(config, record)
    results = [
        config_result,
        check_record(folder, record, config, expected, ledger),
        check_steps(ledger, record),
        check_links(ledger),
        check_end(ledger, record),
        check_samples(ledger, expected, missing),
        check_rates(ledger, expected, missing),
        *(check_checkpoint(found, ledger) for found in checkpoints),
        check_seals(checkpoints, record),
        check_settings(checkpoints, config, record, expected, loaded[0] if loaded else None),
        check_starts(record),
        check_files(record, loaded is not None),
    ]
    if loaded:
        results.append(check_recipe(folder, record, *loaded))
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
    if folder.path.suffix == ".py" and folder.path.is_file():
        raise UserError(
            f"{folder.path} is no run folder, and looks like a recipe: toolkit verify --resume {folder.path} kills and "
            "resumes it, and toolkit verify RUN checks one of its runs"
        )
    raise UserError(no_run_folder(folder.path, "it has neither run.json nor config.yaml nor ledger.jsonl"))


def read_settings(folder: RunFolder) -> tuple[dict[str, Any], CheckResult]:
    """Return the settings, empty where they can't be read, and the result of reading them."""
    try:
        config = read_yaml(folder.config_file)
    except UserError as error:
        return {}, CheckResult("config.yaml", problems=error.problems)
    return config, CheckResult("config.yaml", f"{len(flatten(config))} settings")


def check_record(
    folder: RunFolder,
    record: Mapping[str, Any],
    config: Mapping[str, Any],
    expected: Expected | None,
    ledger: LedgerEvidence,
) -> CheckResult:
    """Check run.json by itself, and against the settings and the ledger."""
    status = record.get("status")
    if not isinstance(status, str):
        return CheckResult("run.json", problems=("it can't be read, or is not that of a run",))
    problems, total, step = [], record.get("total_steps"), record.get("step")
    if expected and total != expected.total_steps:
        problems.append(
            f"total_steps is {show(total)}, and by config.yaml there are {expected.total_steps:,} "
            f"(of {expected.order.samples:,} samples)"
        )
    if status == "finished":
        patience, waited = flatten(config).get("evaluate.patience"), record.get("since_best")
        if step != total and not (is_count(patience) and is_count(waited) and waited >= patience):
            problems.append(f"it says finished, at step {show(step)} of {show(total)}")
        if ledger.rows and ledger.rows[-1].step != step:
            problems.append(
                f"it says finished, at step {show(step)}, and the ledger ends with {show(ledger.last.get('step'))}"
            )
        noted = record.get("exported")
        exported = noted.get("step") if isinstance(noted, Mapping) else step
        metrics = record.get("metrics")
        evaluation = ledger.evaluations.get(exported) if is_count(exported) else None
        # Of a run that began at another one's checkpoint the best may come before its own ledger.
        begins = ledger.rows[0].step if ledger.rows else None
        known = is_count(begins) and (not is_count(exported) or exported >= begins)
        # `toolkit export` evaluates a step that had no evaluation.
        made_since = is_count(exported) and exported not in ledger.evaluations and exported != step
        if known and not made_since and (metrics or {}) != (evaluation or {}):
            problems.append(
                f"metrics is {show(metrics)}, and the ledger has {show(evaluation)} after step {count_text(exported)}"
            )
        whole = ledger.rows and ledger.rows[0].step == 1
        if whole and record.get("skipped", ledger.skipped) != ledger.skipped:
            problems.append(f"skipped is {show(record['skipped'])}, and the ledger has {ledger.skipped:,} such steps")
        message = f"{status}, {count_text(step)} of {count_text(total)} steps"
    else:
        last = ledger.last.get("step")
        done = count_text(last if is_count(last) else step)
        message = f"{status}, {done} of {count_text(total)} steps are in the ledger"
        if status == "running" and not is_locked(folder.path):
            message += "; no process works on it: it has died"
    return CheckResult("run.json", message, tuple(problems))


def check_starts(record: Mapping[str, Any]) -> CheckResult:
    """Compare the versions, the code and the kind of machine of all starts of the run."""
    name, starts = "starts", starts_of(record)
    known = [start for start in starts if all(isinstance(start.get(key), Mapping) for key in ("versions", "source"))]
    if not known:
        return CheckResult(name, "run.json does not say what they were made with", checked=False)
    notes = []
    for before, now in pairwise(known):
        if changed := ", ".join(differences(before, now)):
            notes.append(f"from step {count_text(now.get('first_step'))} on: {changed}")
    same = "" if notes else ", all with the same versions, code and kind of machine" if len(known) > 1 else ""
    return CheckResult(name, f"{len(starts)}{same}", notes=tuple(notes))


def check_files(record: Mapping[str, Any], with_recipe: bool) -> CheckResult:
    """Check that the data files are unchanged."""
    name, files = "data files", record.get("files")
    if not files:
        message = "the data did not come from files that run.json lists"
        return CheckResult(name, message if with_recipe else f"{message}; --recipe FILE reads it again", checked=False)
    if not isinstance(files, Mapping):
        return CheckResult(name, problems=("run.json does not tell them",))
    problems = []
    for path, entry in files.items():
        size, digest = (entry.get("bytes"), entry.get("sha256")) if isinstance(entry, Mapping) else (None, None)
        try:
            found = Path(path).stat().st_size
            if found != size:
                problems.append(f"{path} has {found:,} bytes, and had {count_text(size)}")
            elif digest_of_file(Path(path)) != digest:
                problems.append(f"{path} has another content than when the run began")
        except (OSError, ValueError) as error:
            problems.append(f"{path} can't be read ({getattr(error, 'strerror', None) or error})")
    return CheckResult(name, f"{len(files)} file(s) as when the run began", tuple(problems))


def check_recipe(
    folder: RunFolder, record: Mapping[str, Any], config_class: type[Config], task: Callable[[Any], Any]
) -> CheckResult:
    """Read the data with the recipe, and compare it with the data that the run was trained on."""
    from toolkit.config.parser import parse

    name = "data by the recipe"
    try:
        built = task(parse(config_class, "", ["--config", str(folder.config_file)]))
        sources = {"train": built.data.train, "evaluate": built.data.evaluate}
        found = {
            key: (None, 0) if source is None else (source.digest(), len(source)) for key, source in sources.items()
        }
    except UserError as error:
        own, given = record.get("recipe"), config_class.__module__.removeprefix("recipe_")
        if isinstance(own, str) and own != given:
            return CheckResult(
                name, problems=(f"the run is one of the recipe {own}, and this is {given}: name that one",)
            )
        return CheckResult(name, problems=error.problems)
    except Exception as error:
        # The recipe is the user's code and may raise anything.
        return CheckResult(name, problems=(f"the recipe could not read it: {type(error).__name__}: {error}",))

    def entry(name: str, key: str) -> Any:
        return values.get(key) if isinstance(values := record.get(name), Mapping) else None

    problems = []
    for key, label in (("train", "training"), ("evaluate", "evaluation")):
        (digest, count), then = found[key], (entry("data", key), entry("samples", key))
        if (digest, count) != then:
            problems.append(
                f"the {label} data is not what the run saw: {count:,} samples with the digest {digest}, and then "
                f"{count_text(then[1])} with {then[0]}"
            )
    return CheckResult(name, "training and evaluation data have the digests of run.json", tuple(problems))
