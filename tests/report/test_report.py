"""`toolkit report`: the page holds what the run folder does, whatever state that is in, and fetches nothing."""

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import vl_convert
from hypothesis import given
from hypothesis import strategies as st
from resuming import acting, run, stopped
from tiny_recipe import Tiny
from tiny_recipe import task as tiny_task
from trial import command_here, state_of

from toolkit.details import class_details, right_class
from toolkit.output.console import Console
from toolkit.report.charts import lines
from toolkit.report.command import html, report
from toolkit.report.curves import POINTS, curve
from toolkit.report.entities import entity_errors
from toolkit.report.page import families
from toolkit.report.page import page_of as page_of_run
from toolkit.report.parts import Page, Section
from toolkit.report.saved import read_run
from toolkit.report.side_by_side import curves_side_by_side
from toolkit.task import Task

OUTCOMES = ("exact", "wrong_type", "wrong_boundary", "both_wrong", "missed", "spurious")
ENTITIES = [
    {"type": name, **dict(zip(OUTCOMES, counts, strict=True))}
    for name, *counts in (("", 0, 0, 0, 0, 0, 7), ("place", 1200, 30, 20, 3, 40, 50))
]
HOSTILE = "</script><script>alert(1)</script><!-- & \"quoted\" 'so'"


class Reader(HTMLParser):
    """What a browser would find in a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.specs: list[dict[str, Any]] = []
        self.scripts = 0
        self.headings: list[str] = []
        self.cells: list[str] = []
        self.inside: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.scripts += tag == "script"
        self.inside = ["spec"] if given.get("class") == "spec" else [tag]
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "action", "data", "srcset")]
        if tag in ("h3", "summary", "th", "td", "dd"):
            (self.headings if tag in ("h3", "summary") else self.cells).append("")

    def handle_endtag(self, tag: str) -> None:
        self.inside = []

    def handle_data(self, data: str) -> None:
        if self.inside == ["spec"]:
            self.specs.append(json.loads(data))
        elif self.inside and self.inside[0] in ("h3", "summary"):
            self.headings[-1] += data
        elif self.inside and self.inside[0] in ("th", "td", "dd"):
            self.cells[-1] += data


def classes(config: Tiny) -> Task:
    """Return the tiny task with everything that a report can draw of classes."""
    made = tiny_task(config)
    names = ["zero", HOSTILE, "two", "three", "four"]
    return replace(
        made,
        scores=lambda model, batch: [dict.fromkeys(names, 0.2)] * len(batch["labels"]),
        show=lambda number, prediction, reference: {"text": HOSTILE, "number": number},
        details=lambda given, right: {**class_details(names)(given, right), "entities": ENTITIES},
        quality=right_class(names),
    )


def page_of(folder: Path, *more: str | Path) -> Reader:
    """Make the page of a run, and return what is in it."""
    outcome = command_here("report", folder, *more)
    assert outcome.code == 0, outcome.errors
    return Reader((folder / "report.html").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report") / "run"
    run(folder, "--evaluate.every", "3", build=classes).done()
    return folder


def test_the_page_of_a_finished_run(finished: Path) -> None:
    before = state_of(finished)
    page = page_of(finished)
    for title in ("Metrics", "Evaluations", "Loss", "Learning rate", "Which class is taken for which", "Plan", "Data"):
        assert title in page.headings
    assert all(address.startswith("#") for address in page.addresses)
    record = json.loads((finished / "run.json").read_text())
    assert f"{record['metrics']['loss']:.4g}" in page.cells
    assert record["data"]["train"] in page.cells
    assert [spec["description"] for spec in page.specs]
    # Vega-Lite makes a picture of each.
    for spec in page.specs:
        assert "<svg" in vl_convert.vegalite_to_svg({**spec, "width": 400}, vl_version="6.4")
    # Nothing else in the folder has changed.
    assert {name: found for name, found in state_of(finished).items() if name != "report.html"} == before


def test_nothing_of_a_run_becomes_code(finished: Path) -> None:
    page = page_of(finished)
    # One for each chart, the library, and the one that draws.
    assert page.scripts == len(page.specs) + 2
    assert HOSTILE in page.cells


def test_errors_of_entities(finished: Path) -> None:
    page = page_of(finished)
    at = page.cells.index("wrong boundary") - 4
    assert page.cells[at : at + 8] == ["type", "entities", *(how.replace("_", " ") for how in OUTCOMES)]
    assert page.cells[at + 8 : at + 16] == ["place", "1,293", "1,200", "30", "20", "3", "40", "50"]
    assert page.cells[at + 16 : at + 32] == [
        *("(no type)", "0", "0", "0", "0", "0", "0", "7"),
        *("all types", "1,293", "1,200", "30", "20", "3", "40", "57"),
    ]
    spec = next(spec for spec in page.specs if spec["description"].startswith("1,200 of 1,293 entities"))
    bars = {(row["type"], row["what"]): row["length"] for row in spec["data"]["values"]}
    # Right of zero stand the entities of the references, left of it what is none; nothing is drawn of zeros.
    assert sum(length for (name, _), length in bars.items() if name == "place" and length > 0) == 1293
    assert bars["place", "spurious"] == -50
    assert ("(no type)", "missed") not in bars


def test_many_types_of_entities() -> None:
    rows = [{"type": f"t{number}", **dict.fromkeys(OUTCOMES, number)} for number in range(66)]
    chart = entity_errors(rows)
    assert chart.spec is not None
    assert "40 most frequent of 66 types" in chart.note
    assert {row["type"] for row in chart.spec["data"]["values"]} == {f"t{number}" for number in range(26, 66)}
    assert len(chart.rows) == 67
    assert "<svg" in vl_convert.vegalite_to_svg({**chart.spec, "width": 300}, vl_version="6.4")


def test_the_loss_of_each_step_is_drawn(finished: Path) -> None:
    loss = next(spec for spec in page_of(finished).specs if spec["description"].startswith("Loss"))
    drawn = [layer["data"]["values"] for layer in loss["layer"]]
    rows = [json.loads(line) for line in (finished / "ledger.jsonl").read_text().splitlines()]
    training = {row["step"]: row["value"] for values in drawn for row in values if row.get("series") == "training"}
    assert training == pytest.approx({row["step"]: row["loss"] for row in rows}, rel=1e-5)
    evaluated = {row["step"]: row["value"] for values in drawn for row in values if row.get("series") == "evaluation"}
    wanted = {row["step"]: row["evaluation"]["loss"] for row in rows if row["evaluation"]}
    assert evaluated == pytest.approx(wanted, rel=1e-5)


def test_a_run_that_went_on_shows_where(tmp_path: Path) -> None:
    folder = stopped(tmp_path / "run", 5)
    assert "preempted" in (command_here("report", folder), (folder / "report.html").read_text())[1]
    run(folder).done()
    marks = [
        layer["data"]["values"]
        for spec in page_of(folder).specs
        for layer in spec.get("layer", ())
        if "what" in str(layer["data"]["values"][:1])
    ]
    assert marks
    assert all([mark["step"] for mark in values] == [6] for values in marks)


def damaged(folder: Path, how: str) -> None:
    """Do something to a run folder."""
    record, ledger = folder / "run.json", folder / "ledger.jsonl"
    match how:
        case "half a row":
            ledger.write_bytes(ledger.read_bytes()[:-40])
        case "no rows":
            ledger.unlink()
        case "lines that are no rows":
            ledger.write_bytes(b"[1]\n{\n\xff\n" + ledger.read_bytes() + b'{"step": 2}\n')
        case "an earlier version":
            old = json.loads(record.read_text())
            kept = {key: old[key] for key in ("status", "step", "metrics", "recipe", "samples")}
            record.write_text(json.dumps(kept))
            (folder / "evaluation.json").unlink()
        case "nothing but run.json":
            for path in folder.iterdir():
                if path.name != "run.json":
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
        case "it died":
            record.write_text(json.dumps({**json.loads(record.read_text()), "status": "running"}))


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("half a row", "finished"),
        ("no rows", "the ledger has no row, but the run has done 12 steps"),
        ("lines that are no rows", "4 line(s) of the ledger can&#39;t be read"),
        ("an earlier version", "finished"),
        ("nothing but run.json", "config.yaml"),
        ("it died", "it has died"),
    ],
)
def test_a_folder_that_is_not_whole_has_a_page(finished: Path, tmp_path: Path, how: str, said: str) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    damaged(folder, how)
    page_of(folder)
    assert said in (folder / "report.html").read_text()


def places(value: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield where each value in a JSON object stands."""
    inside = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    for key, entry in inside:
        yield (*before, key)
        yield from places(entry, (*before, key))


@pytest.mark.parametrize("name", ["run.json", "evaluation.json"])
def test_any_value_of_another_kind_leaves_a_page(finished: Path, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    whole = json.loads((finished / name).read_text())
    for place in places(whole):
        for strange in (None, "\udcff", [1], 10**400):
            changed = json.loads(json.dumps(whole))
            inside = changed
            for key in place[:-1]:
                inside = inside[key]
            inside[place[-1]] = strange
            (folder / name).write_text(json.dumps(changed))
            page = page_of_run(read_run(folder))
            assert page.title == "run"
            assert len(page.alerts) <= 8
    assert not any("can't be shown" in alert for alert in page_of_run(read_run(finished)).alerts)


def test_predictions_of_other_data_are_named(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    evaluation = json.loads((folder / "evaluation.json").read_text())
    assert "These predictions are of other data than the run's own" not in page_of(folder).headings
    evaluation["data"] = {"samples": 3, "digest": "other", "told": "later.csv"}
    (folder / "evaluation.json").write_text(json.dumps(evaluation))
    page = page_of(folder)
    assert "These predictions are of other data than the run's own" in page.headings
    assert any(cell.startswith("3 samples of later.csv") for cell in page.cells)


def test_texts_may_hold_any_line_break(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    rows = [{"sample": number, "text": f"a{sign}b"} for number, sign in enumerate("\u2028\u2029\x85\x0b")]
    (folder / "predictions.jsonl").write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    assert [row["text"] for row in read_run(folder).examples] == [row["text"] for row in rows]


def test_a_sign_in_the_name_of_a_class_makes_no_group(finished: Path) -> None:
    metrics = {"loss": 1.0, "f1_I/O": 0.5, "hard/f1": 0.25, "hard/loss": 2.0}
    run = replace(read_run(finished), evaluations={12: metrics})
    assert families(run) == {
        "f1_I/O": {"all": "f1_I/O"},
        "f1": {"hard": "hard/f1"},
        "Loss by group": {"hard": "hard/loss"},
    }


def test_a_run_that_is_under_way(tmp_path: Path) -> None:
    pages: list[str] = []

    def look() -> None:
        report([tmp_path / "run"], tmp_path / "page.html", None, Console(is_main=True))
        pages.append((tmp_path / "page.html").read_text())

    run(tmp_path / "run", build=acting(look, training=7)).done()
    assert "this run is under way" in pages[0]


def test_runs_side_by_side(finished: Path, tmp_path: Path) -> None:
    other = run(tmp_path / "other", "--optim.lr", "0.01").done().folder
    path = tmp_path / "both.html"
    assert command_here("report", finished, other, "--output", path).code == 0
    page = Reader(path.read_text())
    assert page.headings.index("Settings") < page.headings.index("Training loss")
    assert page.cells[page.cells.index("optim.lr") + 2] == "0.01"
    assert any("they part at step 1" in cell for cell in page.cells)
    loss = next(spec for spec in page.specs if spec["description"].startswith("Training loss"))
    names = {row["series"] for layer in loss["layer"] for row in layer["data"]["values"] if "series" in row}
    assert names == {"run", "other"}


def test_twelve_runs_can_be_told_apart(finished: Path, tmp_path: Path) -> None:
    runs = [replace(read_run(finished), folder=tmp_path / f"run-{number}") for number in range(12)]
    # One run lacks a metric; the others look in its picture as they do in all.
    runs[3] = replace(runs[3], evaluations={})
    names = [run.name for run in runs]
    by_title = {chart.title: chart for chart in curves_side_by_side(runs, names)}
    loss, accuracy = by_title["Training loss"], by_title["accuracy"]
    look_of = {look.name: (look.colour, tuple(look.dash)) for look in loss.legend}
    assert list(look_of) == names
    assert len(set(look_of.values())) == 12
    assert len({colour for colour, _ in look_of.values()}) == 6
    assert {look.name: (look.colour, tuple(look.dash)) for look in accuracy.legend} == {
        name: look for name, look in look_of.items() if name != "run-3"
    }
    for chart in (loss, accuracy):
        assert chart.spec is not None
        line = next(layer for layer in chart.spec["layer"] if layer["mark"]["type"] == "line")
        colours, dashes = (line["encoding"][channel]["scale"] for channel in ("color", "strokeDash"))
        drawn = zip(colours["domain"], colours["range"], map(tuple, dashes["range"]), strict=True)
        assert {name: (colour, dash) for name, colour, dash in drawn} == {
            look.name: look_of[look.name] for look in chart.legend
        }
    # The legend stands above the picture as text.
    text = html(Page("runs", "", "", [], [], [Section("Curves", [loss])]))
    assert re.findall(r'<li><svg .*?stroke="(.*?)".*?stroke-dasharray="(.*?)".*?</svg> (.*?)</li>', text) == [
        (colour, " ".join(map(str, dash)), name) for name, (colour, dash) in look_of.items()
    ]


def test_of_more_lines_than_can_be_told_apart_the_first_are_drawn() -> None:
    one = curve(np.arange(1, 4), np.array([1.0, 2.0, 3.0]))
    chart = lines("x", {f"s{number}": one for number in range(9)}, dots={f"d{n}": {2: 0.5} for n in range(5)})
    assert chart.note == "12 of 14 are drawn; the table has all."
    assert [look.name for look in chart.legend] == [*(f"s{n}" for n in range(9)), "d0", "d1", "d2"]
    assert len(chart.head) == 15
    assert "d3" not in json.dumps(chart.spec["layer"])  # type: ignore[index]


def test_the_numbers_under_the_pointer_are_those_of_the_row() -> None:
    chart = lines("x", {"a.b['c']": curve(np.arange(1, 4), np.array([1.0, 2.0, 3.0]))}, dots={"f1": {2: 0.5}})
    area = vl_convert.vegalite_to_vega(chart.spec, vl_version="6.4")["marks"][-1]
    # The area around the nearest step, over which the pointer is, holds the row as its `datum`.
    assert area["name"].endswith("voronoi")
    told = area["encode"]["update"]["tooltip"]["signal"]
    for name in ("a.b['c']", "f1"):
        assert f"(isObject(datum.datum) ? datum.datum : datum)[{json.dumps(name)}]" in told
    assert 'datum["' not in told


def test_what_makes_no_page(finished: Path, tmp_path: Path) -> None:
    command_here("report", tmp_path).told(f"{tmp_path} is no run folder")
    command_here("report", finished / "model").told("is no run folder", f"did you mean {finished}, in which it lies?")
    command_here("report", finished, tmp_path, "--output", tmp_path / "a.html").told("is no run folder")
    command_here("report", finished, finished, "--output", tmp_path / "a.html").told("named twice")
    command_here("report", finished, tmp_path).told("--output runs.html")
    many = [finished.parent / f"run-{number}" for number in range(13)]
    command_here("report", *many, "--output", tmp_path / "a.html").told("13 runs are named", "at most 12")
    command_here("report", finished, "--output", tmp_path).told("which is a folder; name a file in it")
    command_here("report", finished, "--output", "/proc/none/a.html").told("can't be written")
    command_here("report", finished, "--follow", "0").told("--follow is 0; give 1 second or more")
    assert not list(tmp_path.iterdir())


def test_a_hundred_thousand_steps_fit_into_two_megabytes(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    rows = [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]
    random = np.random.default_rng(0)
    with (folder / "ledger.jsonl").open("w") as file:
        for step in range(1, 100_001):
            row = {**rows[step % len(rows)], "step": step, "loss": float(random.gamma(2)), "tokens": 512}
            row["evaluation"] = {f"metric_{n}": float(random.random()) for n in range(9)} if step % 50 == 0 else None
            file.write(json.dumps(row) + "\n")
    page_of(folder)
    assert (folder / "report.html").stat().st_size < 2e6
    assert read_run(folder).last_step == 100_000


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=2000), st.integers(0, 5))
def test_a_curve_loses_no_extreme(values: list[float], gap: int) -> None:
    array = np.array(values)
    steps = np.arange(1, len(array) + 1) * (gap + 1)
    found = curve(steps, array)
    assert len(found) <= POINTS
    assert found.lowest.min() == array.min()
    assert found.highest.max() == array.max()
    assert found.steps[-1] == steps[-1]
    sizes = np.diff([0, *np.searchsorted(steps, found.steps, side="right")])
    assert np.average(found.means, weights=sizes) == pytest.approx(array.mean(), rel=1e-9, abs=1e-6)


def test_names_of_metrics_may_hold_any_sign() -> None:
    one = curve(np.arange(1, 4), np.array([1.0, 2.0, 3.0]))
    chart = lines("x", {"a.b['c']": one, 'd"\\e': one}, dots={"hard/f1": {2: 0.5, 3: None}})
    assert "<svg" in vl_convert.vegalite_to_svg({**chart.spec, "width": 300}, vl_version="6.4")  # type: ignore[dict-item]
    assert re.search("hard/f1 from 0.5 to 0.5", chart.spec["description"])  # type: ignore[index]
