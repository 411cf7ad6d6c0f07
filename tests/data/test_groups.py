"""Evaluation sets by name, and groups of rows by a column: each has the metrics of its own rows, and no others."""

import json
from pathlib import Path
from typing import Any

import pytest
from launching import launch
from recipe_layouts import ROOT, config_class, load_recipe, small_arguments
from trial import Outcome, run_here


def run(name: str, folder: Path, *more: str, without: tuple[str, ...] = ()) -> Outcome:
    """Run a small recipe; flags in `without` are left out with their values."""
    recipe = load_recipe(name)
    words = small_arguments(name, folder / "data")
    for flag in without:
        place = words.index(flag)
        del words[place : place + 2]
    return run_here(config_class(recipe), recipe.task, [*words, "--threads", "1", *more], folder / "run")


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def accuracy(rows: list[dict[str, Any]]) -> float:
    return sum(row["prediction"] == row["reference"] for row in rows) / len(rows)


def test_groups_of_a_column(tmp_path: Path) -> None:
    outcome = run("classify", tmp_path, "--evaluate.show", "99", "--data.group", "weight").done()
    given, shown = lines(tmp_path / "data" / "eval.jsonl"), lines(outcome.folder / "predictions.jsonl")
    metrics = outcome.record["metrics"]
    assert {"loss", "accuracy", "f1"} <= {name for name in metrics if "/" not in name}
    groups = {f"{row['weight']}" for row in given}
    assert {name.partition("/")[0] for name in metrics if "/" in name} == groups == {"0.0", "0.1", "0.2", "0.3"}
    for group in groups:
        rows = [row for row, source in zip(shown, given, strict=True) if str(source["weight"]) == group]
        assert metrics[f"{group}/accuracy"] == accuracy(rows)
    losses = {name for name in metrics if name.rpartition("/")[2] == "loss"}
    assert set(outcome.record["baseline"]) == set(metrics) - losses
    # A mean of those of the groups, by their sizes.
    sizes = {group: sum(str(row["weight"]) == group for row in given) for group in groups}
    mean = sum(metrics[f"{group}/loss"] * size for group, size in sizes.items()) / len(given)
    assert mean == pytest.approx(metrics["loss"], rel=1e-12)


def test_groups_of_held_out_rows(tmp_path: Path) -> None:
    more = ["--evaluate.show", "99", "--data.group", "label", "--data.held_out", "0.3"]
    outcome = run("classify", tmp_path, *more, without=("--data.eval",)).done()
    shown, metrics = lines(outcome.folder / "predictions.jsonl"), outcome.record["metrics"]
    for label in "ab":
        assert metrics[f"{label}/accuracy"] == accuracy([row for row in shown if row["reference"] == label])


@pytest.mark.parametrize("name", ["classify", "tag", "answer", "translate", "classify_images"])
def test_several_sets(name: str, tmp_path: Path) -> None:
    """The second is the training data again; each has the metrics that it has alone."""
    data = tmp_path / "both" / "data"
    ending = {"tag": "conll"}.get(name, "jsonl")
    files = [f"eval.{ending}", f"train.{ending}"]
    places = ["val", "train"] if name == "classify_images" else [str(data / file) for file in files]
    sets = f"{{dev: {places[0]}, hard: {places[1]}}}"
    without = () if name == "classify_images" else ("--data.eval",)
    both = run(name, tmp_path / "both", "--data.eval_sets", sets, "--export", "last", without=without).done()
    metrics = both.record["metrics"]
    for part, file in zip(("dev", "hard"), files, strict=True):
        folder = tmp_path / part
        place = places[part == "hard"] if name == "classify_images" else str(folder / "data" / file)
        more = ["--data.eval", place, "--export", "last"]
        alone = run(name, folder, *more, without=without).done().record["metrics"]
        assert {key for key in metrics if key.startswith(f"{part}/")} == {f"{part}/{key}" for key in alone}
        for key, value in alone.items():
            assert metrics[f"{part}/{key}"] == pytest.approx(value, rel=1e-12)


def test_one_set_decides_which_is_the_best_on_two_processes_too(tmp_path: Path) -> None:
    data = tmp_path / "one" / "data"
    sets = f"{{dev: {data / 'eval.jsonl'}, seen: {data / 'train.jsonl'}}}"
    named = "accuracy, auroc, log_loss, calibration_error, recall_b"
    more = ["--data.eval_sets", sets, "--checkpoint.best", "highest seen/auroc", "--evaluate.metrics", named]
    one = run("classify", tmp_path / "one", *more, without=("--data.eval",)).done()
    words = [*small_arguments("classify", data), *more, "--threads", "1", "--output", str(tmp_path / "two")]
    place = words.index("--data.eval")
    done = launch(ROOT / "recipes" / "classify.py", *words[:place], *words[place + 2 :])
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "two" / "run.json").read_text(encoding="utf-8"))
    assert record["exported"] == one.record["exported"]
    assert record["metrics"] == pytest.approx(one.record["metrics"], rel=1e-12)
    assert record["metrics"].keys() >= {f"seen/{name}" for name in ("loss", *named.split(", "))}


def test_mistakes(tmp_path: Path) -> None:
    run("chat", tmp_path / "chat", "--data.group", "topic").refused("data.group can't be had here")
    run("classify", tmp_path / "a", "--data.group", "topic").refused("data.group is 'topic'", "'weight'")
    run("classify", tmp_path / "b", "--data.group", "x", "--data.eval_sets", "{a/b: x}").refused(
        "are both given", "put it among these", "has a slash"
    )
    run("classify", tmp_path / "c", "--data.group", "weight", "--checkpoint.best", "highest 0.9/accuracy").told(
        "checkpoint.best is 'highest 0.9/accuracy'"
    )
