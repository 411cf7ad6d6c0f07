"""`--evaluate.only` evaluates the model of the run that is named, with its settings, and reports what it evaluated."""

import json
import shutil
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from conftest import WORDS, Classify
from safetensors.torch import load_file, save_file
from trial import Outcome, run_here, state_of

TRAINED = ("--steps", "6", "--optim.lr", "0.01", "--batch.size", "10", "--data.held_out", "0.3")


def evaluation_of(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "evaluation.json").read_text(encoding="utf-8"))
    return content


def predictions_of(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "evaluation_predictions.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


@pytest.fixture
def trained(classify: Classify) -> Outcome:
    return classify(*TRAINED).done()


@pytest.fixture
def evaluate(recipe: ModuleType, tmp_path: Path) -> Any:
    """Runs the recipe with nothing but these words."""

    def run(*words: str | Path) -> Outcome:
        given = ["--threads", "1", "--evaluate.only", *map(str, words)]
        return run_here(recipe.Classify, recipe.task, given, tmp_path / "run", named=False)

    return run


@pytest.mark.parametrize("named", ["by its folder", "by its settings", "by settings that were moved"])
def test_a_run_is_evaluated_with_its_own_settings_and_weights(
    named: str, trained: Outcome, evaluate: Any, tmp_path: Path
) -> None:
    """No other setting is given: neither the original encoder nor the recipe's own corpus is used."""
    folder, record = trained.folder, trained.record
    if named == "by settings that were moved":
        folder = folder.rename(tmp_path / "moved")
    words = ["--output", folder] if named == "by its folder" else ["--config", folder / "config.yaml"]
    before, step = state_of(folder), record["exported"]["step"]
    evaluate(*words).done().says(f"weights  {folder / 'model'}, after step {step} of the run in {folder}")
    found = evaluation_of(folder)
    assert found["metrics"] == pytest.approx(record["metrics"], rel=1e-6)
    assert found["baseline"] == record["baseline"]
    weights = (folder / "model" / "model.safetensors").read_bytes()
    assert found["weights"]["sha256"] == {"model.safetensors": sha256(weights).hexdigest()}
    assert found["weights"]["step"] == step
    assert found["data"]["samples"] == record["samples"]["evaluate"] == 12
    after = state_of(folder)
    written = {"evaluation.json", "evaluation_predictions.jsonl"}
    assert set(after) - set(before) <= written
    assert all(after[name] == before[name] for name in before if name not in written)


def test_an_evaluation_that_is_interrupted_reports_that_nothing_was_written(
    trained: Outcome, evaluate: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*arguments: Any, **more: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("toolkit.evaluation.evaluate_batch", interrupt)
    before = state_of(trained.folder)
    outcome = evaluate("--output", trained.folder)
    assert (outcome.code, outcome.errors) == (1, "\nclassify: interrupted; nothing was written\n")
    assert state_of(trained.folder) == before


def test_as_many_predictions_as_asked_for_with_scores(trained: Outcome, evaluate: Any) -> None:
    evaluate("--output", trained.folder, "--evaluate.show", "1000").done()
    rows = predictions_of(trained.folder)
    assert len(rows) == 12
    for row in rows:
        assert sum(row["scores"].values()) == pytest.approx(1, abs=1e-5)
        assert max(row["scores"], key=row["scores"].get) == row["prediction"]
    right = sum(row["prediction"] == row["reference"] for row in rows)
    assert right / len(rows) == pytest.approx(evaluation_of(trained.folder)["metrics"]["accuracy"])
    evaluate("--output", trained.folder, "--evaluate.show", "0").done()
    assert not (trained.folder / "evaluation_predictions.jsonl").exists()


def test_rows_are_counted_as_messages_count_them(trained: Outcome, evaluate: Any, table: Path) -> None:
    """From 1, in the file that they were read from."""
    evaluate("--output", trained.folder, "--evaluate.show", "1000").done()
    lines = table.read_text(encoding="utf-8").splitlines()
    for row in predictions_of(trained.folder):
        assert json.loads(lines[row["row"] - 1])["text"] == row["text"]


def test_other_data_is_evaluated_without_any_training_data(
    classify: Classify, evaluate: Any, table: Path, tmp_path: Path
) -> None:
    train = tmp_path / "train.jsonl"
    shutil.copy(table, train)
    trained = classify("--steps", "3", "--data.eval", table, train=train).done()
    train.unlink()
    evaluate("--output", trained.folder).done().says(f"data     {table}")
    assert evaluation_of(trained.folder)["metrics"] == pytest.approx(trained.record["metrics"], rel=1e-6)
    # The baseline was learned from training data: it is the run's own where the data is the same, and none elsewhere.
    assert evaluation_of(trained.folder)["baseline"] == trained.record["baseline"]
    other = tmp_path / "other.jsonl"
    other.write_text('{"text": "red one", "label": "a"}\n{"text": "two", "label": "b"}\n', encoding="utf-8")
    evaluate("--output", trained.folder, "--data.eval", other).done().says("samples   2")
    assert evaluation_of(trained.folder)["baseline"] == {}
    assert evaluation_of(trained.folder)["data"]["sha256"] == {str(other): sha256(other.read_bytes()).hexdigest()}


def test_problems_of_that_data_are_reported_once(trained: Outcome, evaluate: Any, tmp_path: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"text": "red one", "label": "a"}\n{"text": "", "label": "c"}\n', encoding="utf-8")
    outcome = evaluate("--output", trained.folder, "--data.eval", bad).told("evaluation data: empty text")
    assert "training data" not in outcome.errors
    assert outcome.errors.count("empty text") == 1
    gone = evaluate("--output", trained.folder, "--data.eval", tmp_path / "gone.jsonl")
    gone.told("data.eval is", "but there is no such file")
    assert "data.train" not in gone.errors


def test_another_model_on_the_data_of_a_run(trained: Outcome, evaluate: Any, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(trained.folder / "model", other)
    weights = load_file(other / "model.safetensors")
    save_file({name: 0 * tensor for name, tensor in weights.items()}, other / "model.safetensors", {"format": "pt"})
    evaluate("--output", trained.folder, "--model.name", other).done().says(f"weights  {other}")
    assert evaluation_of(trained.folder)["metrics"]["loss"] == pytest.approx(0.6931, abs=1e-4)
    assert evaluation_of(trained.folder)["weights"]["step"] is None


def test_what_is_of_the_training_is_refused_and_the_run_s_own_is_not(trained: Outcome, evaluate: Any) -> None:
    before = state_of(trained.folder)
    evaluate("--output", trained.folder, "--optim.lr", "0.5", "--epochs", "7", "--checkpoint.keep", "1").told(
        "optim.lr is 0.5 (given by --optim.lr), which is of the training",
        "epochs is 7",
        "checkpoint.keep is 1",
    )
    assert state_of(trained.folder) == before
    several = evaluate("--output", trained.folder, "--optim.lr", "0.5", "--batch.sise", "3")
    several.told("did you mean --batch.size?", "which is of the training")
    evaluate("--output", trained.folder, *TRAINED).done()


def test_a_run_without_a_model_is_refused(trained: Outcome, evaluate: Any) -> None:
    shutil.rmtree(trained.folder / "model")
    evaluate("--output", trained.folder).told(
        f"the run in {trained.folder} has no saved model yet (its status is finished, after step 6)"
    )


def test_paths_of_a_run_are_found_from_elsewhere(
    classify: Classify, evaluate: Any, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(table.parent)
    trained = classify("--steps", "3", train=table.name).done()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    evaluate("--output", trained.folder).done()
    assert evaluation_of(trained.folder)["metrics"] == pytest.approx(trained.record["metrics"], rel=1e-6)


def test_a_model_alone_is_evaluated_with_the_settings_of_the_command(
    trained: Outcome, evaluate: Any, table: Path, tmp_path: Path
) -> None:
    evaluate("--model.name", trained.folder / "model", "--data.train", table, "--output", tmp_path / "new").done()
    assert evaluation_of(tmp_path / "new")["data"]["told"].startswith("the evaluation data of")
    assert {row["text"].split()[0] for row in predictions_of(tmp_path / "new")} <= set(WORDS)
    evaluate("--model.name", trained.folder / "model", "--data.eval", table, "--output", tmp_path / "whole").done()
    assert evaluation_of(tmp_path / "whole")["data"]["samples"] == len(table.read_text(encoding="utf-8").splitlines())


def test_a_file_that_the_model_was_trained_on_gives_a_warning(trained: Outcome, evaluate: Any, table: Path) -> None:
    warning = "is the file that this model was trained on: the metrics promise too much"
    assert warning in evaluate("--output", trained.folder, "--data.eval", table).done().output
    other = table.with_name("other.jsonl")
    other.write_text("".join(table.read_text(encoding="utf-8").splitlines(True)[:6]), encoding="utf-8")
    without = evaluate("--output", trained.folder, "--data.eval", other).done()
    assert warning not in without.output
    without.says("baseline  none: it is learned from training data")


def test_weights_that_a_run_saved_before_it_went_on_are_not_called_its_last(trained: Outcome, evaluate: Any) -> None:
    record = json.loads((trained.folder / "run.json").read_text(encoding="utf-8"))
    (trained.folder / "run.json").write_text(json.dumps({**record, "status": "preempted", "step": 95}))
    outcome = evaluate("--output", trained.folder).done().says("saved before it went on")
    assert "step 95" not in outcome.output
    assert evaluation_of(trained.folder)["weights"]["step"] is None


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_a_folder_that_can_not_be_written_is_refused_before_the_evaluation(
    place: str, trained: Outcome, evaluate: Any, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    words = ["--model.name", trained.folder / "model", "--data.eval", tmp_path / "none.jsonl"]
    (tmp_path / "none.jsonl").write_text('{"text": "red one", "label": "a"}\n')
    outcome = evaluate(*words, "--output", tmp_path / place).told("where the evaluation can't be written")
    assert "weights" not in outcome.output
