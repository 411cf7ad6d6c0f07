"""What stands on the page of a run, section by section; `report.html.jinja` lays it out."""

import json
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from toolkit.output.console import clock
from toolkit.output.meters import described
from toolkit.report import charts, pictures
from toolkit.report.charts import Chart, number
from toolkit.report.curves import curves_of, thinned
from toolkit.report.parts import Item, Page, Table, made, sections_of
from toolkit.report.predictions import predictions
from toolkit.report.saved import SavedRun
from toolkit.verify.evidence import starts_of

METRICS = 4
"""Metrics that have a tile at the top."""
DRAWN = 8
"""Metrics that are drawn; the table has all."""


def page_of(run: SavedRun) -> Page:
    """Return the page of one run; what a damaged folder has nothing for is left out, and named at the top."""
    damage: list[str] = []
    parts = {
        "Result": results,
        "Curves": curves,
        "Predictions": predictions,
        "Time and memory": time_and_memory,
        "What was run": what_was_run,
    }
    sections = sections_of(parts, damage, run)
    top = made("the line below the title", partial(lead, run), "", damage)
    figures = made("the figures at the top", partial(tiles, run), list[tuple[str, str, str]](), damage)
    told = made("the warnings", partial(alerts, run), list(run.remarks), damage)
    return Page(run.name, run.status, top, figures, [*damage, *told], sections)


def lead(run: SavedRun) -> str:
    """Return in a sentence what the page is of."""
    recipe, total = run.record.get("recipe", "a run"), run.record.get("total_steps")
    done = max(run.last_step, int(run.record.get("step", 0) or 0))
    steps = f"{done:,} steps" if not isinstance(total, int) else f"{done:,} of {total:,} steps"
    samples = run.record.get("samples") or {}
    counts = f", {samples['train']:,} training and {samples['evaluate']:,} evaluation samples" if samples else ""
    return f"{recipe}: {steps}{counts}"


def tiles(run: SavedRun) -> list[tuple[str, str, str]]:
    """Return the figures at the top: the first metrics beside their baseline, and how fast it was."""
    metrics, of = latest_metrics(run)
    baseline = run.record.get("baseline") or {}
    found = [
        (name, number(value), f"baseline {number(baseline[name])}" if name in baseline else of)
        for name, value in list(metrics.items())[:METRICS]
    ]
    seconds = run.record.get("seconds") or {}
    if seconds:
        found.append(
            ("training", clock(seconds.get("training", 0.0)), f"{clock(seconds.get('preparing', 0.0))} before it")
        )
    meters = run.record.get("meters") or {}
    if meters.get("samples_per_second"):
        found.append(("samples/s", number(meters["samples_per_second"]), "of the last start"))
    return found


def latest_metrics(run: SavedRun) -> tuple[Mapping[str, Any], str]:
    """Return the metrics of the weights that were saved, or else of the last evaluation, and which they are."""
    if metrics := run.record.get("metrics"):
        step = (run.record.get("exported") or {}).get("step")
        return metrics, f"after step {step:,}" if isinstance(step, int) else ""
    if run.evaluations:
        step = max(run.evaluations)
        return run.evaluations[step], f"after step {step:,}"
    return {}, ""


def alerts(run: SavedRun) -> list[str]:
    """Return what the reader has to know before any figure."""
    record = run.record
    found = [*run.remarks]
    if run.status == "died":
        found.append("no process works on this run: it has died; the same command goes on from its newest checkpoint")
    if run.status == "running":
        found.append("this run is under way: the page shows it as it was when it was made")
    found += [f"the run ended: {problem}" for problem in record.get("problems") or ()]
    if record.get("reason"):
        found.append(f"it was asked to stop: {record['reason']}")
    if record.get("repeated"):
        found.append(f"{record['repeated']:,} step(s) were done again after a crash")
    if record.get("skipped"):
        found.append(f"{record['skipped']:,} step(s) left the weights alone: their gradient was not finite")
    return [*found, *(f"warning: {warning}" for warning in record.get("warnings") or ())]


def results(run: SavedRun) -> Iterator[Item]:
    """Yield the metrics, beside those of the trivial prediction."""
    metrics, of = latest_metrics(run)
    baseline = run.record.get("baseline") or {}
    if metrics or baseline:
        exported = run.record.get("exported") or {}
        rule = f", the evaluation with the {exported['rule']}" if exported.get("rule") else ""
        rows = [
            [name, number(metrics.get(name)), number(baseline.get(name))]
            for name in dict.fromkeys([*metrics, *baseline])
        ]
        yield Table("Metrics", ["metric", "this model", "baseline"], rows, f"Of the weights {of}{rule}." if of else "")
    steps = thinned(run)
    if steps:
        rows = [
            [f"{step:,}", *(number(run.evaluations[step].get(name)) for name in run.metric_names)] for step in steps
        ]
        left = len(run.evaluations) - len(steps)
        note = f"{left:,} of {len(run.evaluations):,} evaluations are left out." if left else ""
        yield Table("Evaluations", ["after step", *run.metric_names], rows, note, folded=len(rows) > charts.ROWS)


def curves(run: SavedRun) -> Iterator[Chart]:
    """Yield what became of loss, metrics, rate and gradient over the steps."""
    marks = [(step, resume_text(step, start)) for step, start in run.resumes]
    found, steps = curves_of(run), thinned(run)
    note = "Dashed vertical lines: the run was started again there." if marks else ""
    evaluated = {step: run.evaluations[step].get("loss") for step in steps}
    if "loss" in found or any(evaluated.values()):
        series = {"training": found["loss"]} if "loss" in found else {}
        band = "The band goes from the lowest to the highest of the steps that one point stands for."
        bands = any(not one.is_exact() for one in series.values())
        yield charts.lines(
            "Loss",
            series,
            marks,
            {"evaluation": evaluated},
            " ".join(part for part in (band if bands else "", note) if part),
        )
    for name, sets in list(families(run).items())[:DRAWN]:
        dots = {label: {step: run.evaluations[step].get(key) for step in steps} for label, key in sets.items()}
        yield charts.lines(name, {}, marks, dots, note)
    for name in ("learning rate", "gradient norm"):
        if name in found:
            positive = name == "gradient norm" and bool((found[name].lowest > 0).all())
            wide = positive and bool(found[name].highest.max() > 100 * found[name].lowest.min())
            yield charts.lines(name.capitalize(), {name: found[name]}, marks, form=".3~g", logarithmic=wide, note=note)


def families(run: SavedRun) -> dict[str, dict[str, str]]:
    """Return for each metric but the loss the keys by which evaluations have it: for all samples, for each group."""
    found: dict[str, dict[str, str]] = {}
    for key in run.metric_names:
        group, _, name = key.rpartition("/")
        if f"{group}/loss" not in run.metric_names:  # the name itself has this sign, such as that of a class
            group, name = "", key
        if name != "loss" or group:
            title = name if name != "loss" else "Loss by group"
            found.setdefault(title, {})[group or "all"] = key
    return found


def resume_text(step: int, start: Mapping[str, Any]) -> str:
    """Return what a vertical line says of a start."""
    return f"started again before step {step:,} on {topology_text(start)}"


def topology_text(start: Mapping[str, Any]) -> str:
    """Return the processes and devices of a start."""
    count = start.get("processes", "?")
    return f"{count} process{'es' if count != 1 else ''}, {start.get('device', '?')}, {start.get('strategy', '?')}"


def time_and_memory(run: SavedRun) -> Iterator[Item]:
    """Yield where the time went, how fast steps were, and what they took."""
    if run.record.get("meters"):
        yield Table(
            "Meters of the last start", ["", ""], [list(row) for row in described(dict(run.record["meters"])).items()]
        )
    if parts := time_spent(run):
        yield pictures.spent(parts)
    found = curves_of(run)
    marks = [(step, resume_text(step, start)) for step, start in run.resumes]
    for name in ("samples/s", "tokens/s", "padding", "waiting for data", "host memory (GB)", "device memory (GB)"):
        if name in found and float(found[name].highest.max()) > 0:
            shares = name in ("padding", "waiting for data")
            title = f"{name.capitalize()}, share" if shares else name[0].upper() + name[1:]
            form = ".1~%" if shares else ".3~g" if name.endswith("(GB)") else ".3~s"
            yield charts.lines(title, {name: found[name]}, marks, form=form)


def time_spent(run: SavedRun) -> dict[str, float]:
    """Return where the seconds of a run went: those of its steps from the ledger, the rest by what is left over."""
    recorded = run.record.get("seconds") or {}
    of = {name: float(np.nansum(run.columns[name])) for name in ("seconds", "waiting", "saving")}
    if not of["seconds"]:
        return {}
    parts = {
        "preparing": float(recorded.get("preparing", 0.0)),
        "steps": of["seconds"] - of["waiting"],
        "waiting for data": of["waiting"],
        "waiting for checkpoints": of["saving"],
    }
    rest = float(recorded.get("training", 0.0)) - of["seconds"] - of["saving"]
    parts["evaluation and the end"] = max(0.0, rest)
    return {name: seconds for name, seconds in parts.items() if seconds > 0}


def what_was_run(run: SavedRun) -> Iterator[Item]:
    """Yield command, settings, data, versions and machines."""
    record, starts = run.record, starts_of(run.record)
    commands = list(dict.fromkeys(str(start["command"]) for start in starts if start.get("command")))
    if commands:
        yield Table("Command", [""], [[command] for command in commands])
    changed = record.get("changed")
    if isinstance(changed, Mapping):
        rows = [[key, shown(run.settings.get(key)), shown(default)] for key, default in changed.items()]
        yield Table(
            "Settings that differ from the recipe's defaults",
            ["setting", "here", "default"],
            rows or [["none", "", ""]],
        )
    plan = record.get("plan") or {}
    if plan:
        yield Table("Plan", ["", ""], [[name, str(text)] for name, text in plan.items()])
    data = [[f"{name} samples", f"{count:,}"] for name, count in (record.get("samples") or {}).items()]
    data += [[f"hash of the {name} data", str(digest)] for name, digest in (record.get("data") or {}).items()]
    data += [[str(path), str(digest)] for path, digest in (record.get("files") or {}).items()]
    if data:
        yield Table("Data", ["", ""], data)
    if starts:
        rows = [
            [
                f"{start.get('first_step', 1):,}",
                str(start.get("started", "")),
                topology_text(start),
                str(start.get("precision")),
            ]
            for start in starts
        ]
        yield Table("Starts", ["from step", "when", "on", "mixed precision"], rows)
    if record.get("versions"):
        yield Table("Versions", ["package", "version"], [[*row] for row in record["versions"].items()], folded=True)
    if run.settings:
        rows = [[key, shown(value)] for key, value in run.settings.items()]
        yield Table("All settings", ["setting", "value"], rows, folded=True)


def shown(value: Any) -> str:
    """Return a setting as its file has it."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
