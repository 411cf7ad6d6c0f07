"""`toolkit predict` gives for every row what an evaluation of the recipe gives for it, in the order of the file."""

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from recipe_layouts import config_class, load_recipe, small_arguments
from small_language import arguments as language
from trial import command_here, run_here

from toolkit.tasks.token_classification.entities import in_words

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
    assert [row["predicted"] for row in shown] == [in_words(row["tokens"], row["prediction"]) for row in found]
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


def test_several_labels_by_the_thresholds_that_were_chosen(tmp_path: Path) -> None:
    """They give the metrics that the run calls "tuned_", and one half those without that; other data chooses none."""
    from sklearn.metrics import f1_score

    run = trained("classify", tmp_path, "--data.label", "several", "--optim.lr", "1e-2")
    file = tmp_path / "data" / "eval.jsonl"
    content = json.loads((run / "evaluation.json").read_text(encoding="utf-8"))
    limits, metrics = content["details"]["thresholds"], content["metrics"]
    assert list(limits) == ["x", "y", "z"]
    assert set(limits.values()) != {0.5}
    assert metrics["tuned_macro_f1"] > metrics["macro_f1"]

    def macro_f1(found: list[dict[str, Any]]) -> float:
        sides = [[[label in row[side] for label in limits] for row in found] for side in ("several", "prediction")]
        return float(f1_score(*sides, average="macro", zero_division=0))

    tuned, half = predicted(run, file), predicted(run, file, "--threshold", "0.5")
    assert macro_f1(tuned) == pytest.approx(metrics["tuned_macro_f1"], abs=1e-9)
    assert macro_f1(half) == pytest.approx(metrics["macro_f1"], abs=1e-9)
    for row in tuned:
        assert row["prediction"] == [label for label, limit in limits.items() if row["scores"][label] > limit]
    recipe = load_recipe("classify")
    words = ["--evaluate.only", "--data.eval", str(tmp_path / "data" / "train.jsonl"), "--output", str(run)]
    run_here(config_class(recipe), recipe.task, words, run).done().says("thresholds", "of the saved model")
    again = json.loads((run / "evaluation.json").read_text(encoding="utf-8"))
    assert again["details"]["thresholds"] == limits
    others = predicted(run, tmp_path / "data" / "train.jsonl")
    assert macro_f1(others) == pytest.approx(again["metrics"]["tuned_macro_f1"], abs=1e-9)


def test_a_threshold_where_there_is_nothing_to_decide(tmp_path: Path) -> None:
    run, file = trained("classify", tmp_path), tmp_path / "data" / "eval.jsonl"
    words = ("predict", run, file, "--output", tmp_path / "out.csv", "--threshold")
    command_here(*words, "0.4").told("--threshold is 0.4, and this model gives a text one label")
    command_here(*words, "1.5").told("--threshold is 1.5; it must be at least 0 and below 1")


def test_what_stands_behind_each_mask(tmp_path: Path) -> None:
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    recipe = load_recipe("language")
    run_here(config_class(recipe), recipe.task, language(tmp_path, "masked"), tmp_path / "run").done()
    run, file = tmp_path / "run", tmp_path / "masked.jsonl"
    texts = ["the red [MASK] sees", "[MASK] small [MASK]", "a bird", ""]
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    found = predicted(run, file, "--scores")
    tokens = AutoTokenizer.from_pretrained(run / "model")
    model = AutoModelForMaskedLM.from_pretrained(run / "model", dtype=torch.float64)
    for row, text in zip(found[:2], texts, strict=False):
        given = tokens(text, return_tensors="pt")
        with torch.no_grad():
            logits = model(**given).logits[given["input_ids"] == tokens.mask_token_id]
        likely, ids = logits.softmax(-1).topk(5)
        assert row["prediction"] == [tokens.decode([one[0]]).strip() for one in ids.tolist()]
        assert row["score"] == pytest.approx(likely[:, 0].tolist(), abs=1e-6)
        assert [[one["score"] for one in mask] for mask in row["scores"]] == [
            pytest.approx(one, abs=1e-6) for one in likely.tolist()
        ]
    assert [len(row["prediction"]) for row in found[:2]] == [1, 2]
    assert [row["prediction"] for row in found[2:]] == [None, None]
    words = ("predict", run, file, "--output", tmp_path / "masked.parquet", "--scores")
    command_here(*words).done().says("1 row (3) without the mask [MASK]", "1 row (4) without a text")
    import pyarrow.parquet as parquet

    assert parquet.read_table(tmp_path / "masked.parquet").to_pylist()[1]["scores"][1][0].keys() == {"token", "score"}


def test_which_answer_is_preferred(tmp_path: Path) -> None:
    """The margin is that of the rewards in the evaluation; without the reference the one of the log-probabilities."""
    run, file = trained("prefer", tmp_path), tmp_path / "data" / "eval.jsonl"
    found, shown = predicted(run, file), lines(run / "predictions.jsonl")
    assert len(found) == len(shown) > 5
    for row, known in zip(found, shown, strict=True):
        margin = known["reward_chosen"] - known["reward_rejected"]
        assert row["margin"] == pytest.approx(margin, abs=1e-5)
        assert row["prediction"] == ("chosen" if margin > 0 else "rejected")
    swapped = predicted(run, file, "--column", "chosen=rejected", "--column", "rejected=chosen")
    assert [row["margin"] for row in swapped] == [-row["margin"] for row in found]
    assert all(isinstance(row["prediction"], str) for row in predicted(run, file, "--tokens", "2"))
    (run / "model" / "reference.json").unlink()
    alone = predicted(run, file)
    for row, before in zip(alone, found, strict=True):
        assert row["log_probability_chosen"] == before["log_probability_chosen"] < 0
        apart = row["log_probability_chosen"] - row["log_probability_rejected"]
        assert row["margin"] == pytest.approx(apart, abs=1e-3)
    rows = [
        *lines(file)[:1],
        {"prompt": "say", "chosen": "", "rejected": "x"},
        {"prompt": "", "chosen": "a", "rejected": "b"},
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    told = command_here("predict", run, file, "--output", tmp_path / "three.csv").done()
    told.says("1 row (2) without a chosen side", "1 row (3) without a prompt", "the model names no reference")


def test_a_sentence_encoder_by_its_hub_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it lies in the hub's cache, where nothing but its modules.json says what it is for."""
    run, file = trained("embed", tmp_path), tmp_path / "data" / "eval.csv"
    expected = predicted(run, file)
    cached = tmp_path / "cache" / "models--acme--vectors"
    copy = cached / "snapshots" / f"{7:040x}"
    shutil.copytree(run / "model", copy)
    (copy / "finetune_toolkit.json").unlink()
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text(copy.name)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    output = tmp_path / "hub.jsonl"
    words = ("predict", "acme/vectors", file, "--output", output, "--dtype", "float64", "--threads", "1")
    command_here(*words).done().says("acme/vectors (feature-extraction)")
    assert [row["vector"] for row in lines(output)] == [row["vector"] for row in expected]


def test_what_a_language_model_continues(tmp_path: Path) -> None:
    run = trained("language", tmp_path)
    file = tmp_path / "prompts.txt"
    file.write_text("the red dog\n\na small bird\n", encoding="utf-8")
    found = predicted(run, file, "--tokens", "5")
    assert [row["text"] for row in found] == ["the red dog", None, "a small bird"]
    assert [isinstance(row["prediction"], str) for row in found] == [True, False, True]
