"""`toolkit predict` gives for every row what an evaluation of the recipe gives for it, in the order of the file."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from recipe_layouts import config_class, load_recipe, small_arguments
from trial import command_here, run_here

from toolkit.tasks.token_classification.tags import entities

SHOWN = {"classify": "prediction", "answer": "answer", "chat": "reply", "summarize": "prediction"}
SHOWN |= {"translate": "prediction", "classify_images": "prediction"}
"""What predictions.jsonl calls a prediction."""


def trained(name: str, folder: Path, *more: str) -> Path:
    """Return the folder of a small run of a recipe whose predictions.jsonl has every evaluation sample."""
    recipe = load_recipe(name)
    arguments = [*small_arguments(name, folder / "data"), "--evaluate.show", "99", "--threads", "1", *more]
    return run_here(config_class(recipe), recipe.task, arguments, folder / "run").done().folder


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def predicted(run: Path, file: Path, *more: str) -> list[dict[str, Any]]:
    output = run.parent / "out.jsonl"
    asked = ["--output", output, "--threads", "1", "--dtype", "float64", "--overwrite", *more]
    command_here("predict", run, file, *asked).done()
    return lines(output)


@pytest.mark.parametrize("name", ["classify", "answer", "summarize", "translate"])
def test_predictions_are_those_of_the_evaluation(name: str, tmp_path: Path) -> None:
    run = trained(name, tmp_path)
    file = tmp_path / "data" / "eval.jsonl"
    given, found = lines(file), predicted(run, file)
    shown = lines(run / "predictions.jsonl")
    assert [row[SHOWN[name]] for row in shown] == [row["prediction"] for row in found]
    assert len(shown) == len(given) == 11
    for before, after in zip(given, found, strict=True):
        assert list(after)[: len(before)] == list(before)
        assert {key: after[key] for key in before} == before


def test_replies_are_those_of_the_evaluation(tmp_path: Path) -> None:
    run = trained("chat", tmp_path)
    found = predicted(run, tmp_path / "data" / "eval.jsonl")
    shown = {row["row"]: row["reply"] for row in lines(run / "predictions.jsonl")}
    assert len(shown) == 7
    assert {number: found[number - 1]["prediction"] for number in shown} == shown


def test_tags_are_those_of_the_evaluation(tmp_path: Path) -> None:
    run = trained("tag", tmp_path, "--optim.lr", "1e-2")
    found = predicted(run, tmp_path / "data" / "eval.conll")
    shown = lines(run / "predictions.jsonl")
    assert [row["predicted"] for row in shown] == [entities(row["tokens"], row["prediction"]) for row in found]
    assert any(row["predicted"] for row in shown)
    assert all(len(row["prediction"]) == len(row["tokens"]) for row in found)


def test_images_in_a_folder(tmp_path: Path) -> None:
    run = trained("classify_images", tmp_path)
    found = {row["image"]: row for row in predicted(run, tmp_path / "data" / "val", "--scores")}
    shown = lines(run / "predictions.jsonl")
    assert len(shown) == len(found) == 11
    for row in shown:
        after = found["/".join(Path(row["image"]).parts[-2:])]
        assert after["prediction"] == row["prediction"]
        assert after["scores"] == pytest.approx(row["scores"], abs=1e-6)


def test_vectors_are_those_that_the_search_compared(tmp_path: Path) -> None:
    run = trained("embed", tmp_path)
    file = tmp_path / "data" / "eval.csv"
    anchors = torch.tensor([row["vector"] for row in predicted(run, file)])
    positives = torch.tensor([row["vector"] for row in predicted(run, file, "--column", "text=positive")])
    assert anchors.norm(dim=1) == pytest.approx(1, abs=1e-5)
    with file.open(encoding="utf-8", newline="") as opened:
        texts = [row["anchor"] for row in csv.DictReader(opened)]
    # Each text is looked for once; all positives of it are right.
    first = [texts.index(text) for text in dict.fromkeys(texts)]
    best = (anchors[first] @ positives.T).argmax(1).tolist()
    hits = sum(texts[place] == texts[query] for query, place in zip(first, best, strict=True)) / len(first)
    metrics = json.loads((run / "run.json").read_text(encoding="utf-8"))["metrics"]
    assert hits == pytest.approx(metrics["recall@1"], abs=1e-6)


def test_what_a_language_model_continues(tmp_path: Path) -> None:
    run = trained("language", tmp_path)
    file = tmp_path / "prompts.txt"
    file.write_text("the red dog\n\na small bird\n", encoding="utf-8")
    found = predicted(run, file, "--tokens", "5")
    assert [row["text"] for row in found] == ["the red dog", None, "a small bird"]
    assert [isinstance(row["prediction"], str) for row in found] == [True, False, True]
