"""The page of several runs: what differs, what came of it, and their curves over each other."""

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from toolkit.errors import UserError
from toolkit.output.console import clock
from toolkit.report import charts
from toolkit.report.charts import Chart, number
from toolkit.report.curves import Curve, curves_of, thinned
from toolkit.report.page import DRAWN, alerts, latest_metrics, shown, topology_text
from toolkit.report.parts import Page, Table, made, sections_of
from toolkit.report.saved import SavedRun
from toolkit.verify.compare import compare
from toolkit.verify.evidence import starts_of

OF_PLACE = ("output", "config")
"""Settings that differ between any two runs."""


def side_by_side(runs: Sequence[SavedRun]) -> Page:
    """Return the page of several runs: what differs, what came of it, and the curves over each other."""
    names = distinct_names(runs)
    damage: list[str] = []
    parts: dict[str, Callable[..., Iterator[Table | Chart]]] = {
        "What differs": what_differs,
        "Results": results_side_by_side,
        "Curves": curves_side_by_side,
    }
    sections = sections_of(parts, damage, runs, names)
    told = [
        f"{name}: {alert}"
        for name, run in zip(names, runs, strict=True)
        for alert in made(f"the warnings of {name}", partial(alerts, run), list(run.remarks), damage)
    ]
    return Page(
        f"{len(runs)} runs",
        "side by side",
        ", ".join(names),
        [],
        [*damage, *told],
        sections,
    )


def distinct_names(runs: Sequence[SavedRun]) -> list[str]:
    """Return a name for each run, by as much of its folder as it takes."""
    parts = [run.folder.resolve().parts for run in runs]
    for depth in range(1, max(map(len, parts)) + 1):
        names = ["/".join(part[-depth:]) for part in parts]
        if len(set(names)) == len(names):
            break
    return names


def what_differs(runs: Sequence[SavedRun], names: Sequence[str]) -> Iterator[Table]:
    """Yield settings, data, versions and machines that are not the same in all runs, and where their numbers part."""
    views = {
        "Settings": [{key: value for key, value in run.settings.items() if key not in OF_PLACE} for run in runs],
        "Data": [{**(run.record.get("samples") or {}), **digests(run)} for run in runs],
        "Versions and code": [versions_of(run) for run in runs],
        "Machines": [{"started on": "; ".join(map(topology_text, starts_of(run.record)))} for run in runs],
    }
    for title, view in views.items():
        keys = dict.fromkeys(key for one in view for key in one)
        rows = [
            [key, *(shown(one.get(key)) for one in view)]
            for key in keys
            if len({json.dumps(one.get(key), default=str) for one in view}) > 1
        ]
        if rows:
            yield Table(title, [title.lower(), *names], rows)
        else:
            yield Table(title, [title.lower()], [["the same in all runs"]])
    verdicts: list[list[str]] = []
    for run, name in zip(runs[1:], names[1:], strict=True):
        try:
            verdict = compare(runs[0].folder, run.folder).verdict()
        except UserError as error:
            verdict = "; ".join(error.problems)
        verdicts.append([name, verdict])
    yield Table(f"Numbers, against {names[0]}", ["run", "step by step"], verdicts)


def digests(run: SavedRun) -> dict[str, Any]:
    """Return the hashes of a run's data."""
    return {f"hash of the {name} data": digest for name, digest in (run.record.get("data") or {}).items()}


def versions_of(run: SavedRun) -> dict[str, Any]:
    """Return the versions of packages and of the source code of the newest start."""
    starts = starts_of(run.record)
    source = (starts[-1].get("source") or {}) if starts else {}
    return {**(run.record.get("versions") or {}), **{f"code of {name}": digest for name, digest in source.items()}}


def results_side_by_side(runs: Sequence[SavedRun], names: Sequence[str]) -> Iterator[Table]:
    """Yield the metrics of all runs in one table, and how they stand."""
    latest = [latest_metrics(run) for run in runs]
    metrics = [own for own, _ in latest]
    keys = dict.fromkeys(key for one in metrics for key in one)
    head = ["run", "status", "steps", "of step", *keys, "training", "samples/s"]
    rows = []
    for name, run, (own, of) in zip(names, runs, latest, strict=True):
        seconds, meters = run.record.get("seconds") or {}, run.record.get("meters") or {}
        spent = clock(seconds["training"]) if "training" in seconds else "–"
        figures = [number(own.get(key)) for key in keys]
        rows.append(
            [
                name,
                run.status,
                f"{run.last_step:,}",
                of.removeprefix("after step "),
                *figures,
                spent,
                number(meters.get("samples_per_second")),
            ]
        )
    yield Table("Metrics of the saved weights, or else of the last evaluation", head, rows)


def curves_side_by_side(runs: Sequence[SavedRun], names: Sequence[str]) -> Iterator[Chart]:
    """Yield the curves of all runs over each other."""
    found = [curves_of(run) for run in runs]
    steps = [thinned(run) for run in runs]
    of_all: dict[str, dict[str, Curve]] = {}
    for name, curves_of_one in zip(names, found, strict=True):
        for title, one in curves_of_one.items():
            of_all.setdefault(title, {})[name] = one
    if "loss" in of_all:
        yield charts.lines("Training loss", of_all.pop("loss"), among=names)
    metrics = dict.fromkeys(key for run in runs for key in run.metric_names)
    for key in list(metrics)[:DRAWN]:
        dots = {
            name: {step: run.evaluations[step].get(key) for step in own}
            for name, run, own in zip(names, runs, steps, strict=True)
        }
        title = "Evaluation loss" if key == "loss" else key
        yield charts.lines(title, {}, (), {name: some for name, some in dots.items() if some}, among=names)
    for title, series in of_all.items():
        yield charts.lines(title[0].upper() + title[1:], series, form=".3~g", among=names)
