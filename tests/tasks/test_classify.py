"""The main recipe, from files to a model that others load: one text, pairs, several labels, regression."""

import csv
import importlib.util
import json
import random
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from launching import CLASSIFY, launch, python

from toolkit.output.ledger import read_ledger
from toolkit.output.run_folder import read_record

COLOURS = {"warm": ["red", "orange", "amber"], "cold": ["blue", "teal", "azure"], "grey": ["ash", "slate", "stone"]}
SMALL = ["--data.held_out", "0.2", "--batch.size", "16", "--optim.lr", "3e-3"]


@pytest.fixture(scope="module")
def classify() -> ModuleType:
    specification = importlib.util.spec_from_file_location("classify", CLASSIFY)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules["classify"] = module
    specification.loader.exec_module(module)
    return module


def run(classify: ModuleType, *arguments: str) -> int:
    """Run the recipe in this process and return its exit code."""
    from toolkit import fine_tune

    with pytest.raises(SystemExit) as ending:
        fine_tune(classify.Classify, classify.task, list(arguments))
    return int(ending.value.code or 0)


def rows(count: int) -> list[dict[str, Any]]:
    """Return sentences of colour words, and everything that a recipe might learn from them."""
    generator = random.Random(0)
    made = []
    for _ in range(count):
        label = generator.choice(list(COLOURS))
        words = [generator.choice(COLOURS[label]) for _ in range(generator.randint(2, 6))]
        other = generator.choice(list(COLOURS))
        second = [generator.choice(COLOURS[other]) for _ in range(generator.randint(2, 4))]
        made.append(
            {
                "text": " ".join(words),
                "second": " ".join(second),
                "label": label,
                "same": int(label == other),
                "both": sorted({label, other}),
                "share": len(words) / 6 + (0.5 if label == "warm" else 0.0),
            }
        )
    return made


def write_csv(path: Path, columns: list[str], count: int = 240) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows(count))
    return path


def test_one_text_from_a_csv_and_the_pipeline_answers_alike(classify: ModuleType, tmp_path: Path) -> None:
    from transformers import pipeline

    data = write_csv(tmp_path / "colours.csv", ["text", "label"])
    output = tmp_path / "run"
    assert run(classify, "--data.train", str(data), "--output", str(output), "--epochs", "6", *SMALL) == 0
    record = read_record(output)
    assert record["metrics"]["accuracy"] > 0.9 > 0.6 > record["baseline"]["accuracy"]

    config = json.loads((output / "model" / "config.json").read_text())
    assert sorted(config["id2label"].values()) == sorted(COLOURS)
    assert "accuracy" in (output / "model" / "README.md").read_text()
    # The same texts through the pipeline: as many right as the run counted, over all rows that it held out.
    task = classify.task(classify.Classify(data=classify.LabelledTexts(train=str(data), held_out=0.2)))
    answers = pipeline("text-classification", str(output / "model"), truncation=True)
    texts = classify.LabelledTexts(train=str(data), held_out=0.2).read()
    asked = texts.evaluate.table["text"]
    wanted = [texts.labels[texts.evaluate.labels.target(row)] for row in range(len(asked))]
    right = sum(answer["label"] == want for answer, want in zip(answers(list(asked)), wanted, strict=True))
    assert right / len(asked) == record["metrics"]["accuracy"]
    assert len(task.data.evaluate) == len(asked)


def test_a_saved_model_is_evaluated_and_nothing_else(
    classify: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_csv(tmp_path / "colours.csv", ["text", "label"])
    arguments = ["--data.train", str(data), "--output", str(tmp_path / "run"), "--epochs", "2", *SMALL]
    assert run(classify, *arguments) == 0
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    capsys.readouterr()
    assert run(classify, *arguments, "--evaluate.only") == 0
    said = capsys.readouterr().out
    metrics = json.loads(before[tmp_path / "run" / "run.json"])["metrics"]
    assert f"{metrics['accuracy']:.4f}" in said
    assert f"{metrics['loss']:.4f}" in said
    after = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    written = {tmp_path / "run" / name for name in ("evaluation.json", "evaluation_predictions.jsonl")}
    assert set(after) - set(before) <= written
    assert all(after[path] == content for path, content in before.items() if path not in written)


def test_the_same_command_again_reports_and_trains_nothing(
    classify: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_csv(tmp_path / "colours.csv", ["text", "label"])
    arguments = ["--data.train", str(data), "--output", str(tmp_path / "run"), "--steps", "3", *SMALL]
    assert run(classify, *arguments) == 0
    ledger = (tmp_path / "run" / "ledger.jsonl").stat().st_mtime_ns
    # What changes no number may differ.
    assert run(classify, *arguments, "--batch.micro", "4") == 0
    assert "nothing was trained again" in capsys.readouterr().out
    assert (tmp_path / "run" / "ledger.jsonl").stat().st_mtime_ns == ledger


def test_pairs(classify: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_csv(tmp_path / "pairs.csv", ["text", "second", "same"])
    columns = ["--data.text", "text", "--data.text_pair", "second", "--data.label", "same"]
    assert (
        run(classify, "--data.train", str(data), *columns, "--output", str(tmp_path / "run"), "--steps", "4", *SMALL)
        == 0
    )
    assert "text 'text' and 'second'" in capsys.readouterr().out
    assert json.loads((tmp_path / "run" / "model" / "config.json").read_text())["id2label"] == {"0": "0", "1": "1"}


def test_several_labels_and_their_head(classify: ModuleType, tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification

    data = tmp_path / "both.jsonl"
    data.write_text(
        "\n".join(json.dumps({"text": f"{r['text']} {r['second']}", "labels": r["both"]}) for r in rows(240))
    )
    assert run(classify, "--data.train", str(data), "--output", str(tmp_path / "run"), "--epochs", "12", *SMALL) == 0
    record = read_record(tmp_path / "run")
    plain = {"micro_f1", "macro_f1", "exact_match"}
    assert set(record["metrics"]) == {"loss", *plain, *(f"tuned_{name}" for name in plain)}
    assert set(record["baseline"]) == plain
    assert record["metrics"]["micro_f1"] > max(0.85, record["baseline"]["micro_f1"])
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "run" / "model")
    assert model.config.problem_type == "multi_label_classification"


def test_regression(classify: ModuleType, tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification

    data = write_csv(tmp_path / "share.csv", ["text", "share"])
    columns = ["--data.label", "share", "--epochs", "15"]
    assert run(classify, "--data.train", str(data), *columns, "--output", str(tmp_path / "run"), *SMALL) == 0
    metrics, baseline = (read_record(tmp_path / "run")[name] for name in ("metrics", "baseline"))
    assert metrics["r2"] > 0.5 > 0.05 > baseline["r2"]
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "run" / "model")
    assert (model.config.num_labels, model.config.problem_type) == (1, "regression")


def test_a_trained_model_is_trained_further_with_its_own_head(
    classify: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_csv(tmp_path / "colours.csv", ["text", "label"])
    common = ["--data.train", str(data), "--steps", "6", *SMALL]
    assert run(classify, *common, "--output", str(tmp_path / "one")) == 0
    assert (
        run(classify, *common, "--output", str(tmp_path / "two"), "--model.name", str(tmp_path / "one" / "model")) == 0
    )
    assert "the model's own, 3 labels" in capsys.readouterr().out
    first = [next(iter(read_ledger(tmp_path / name / "ledger.jsonl")))["loss"] for name in ("one", "two")]
    assert first[1] < first[0]


def test_float64_and_dropout_reach_the_model(classify: ModuleType, tmp_path: Path) -> None:
    config = classify.Classify(model=classify.ModelConfig(dtype="float64", dropout=0.25))
    module = classify.sequence_classifier(config.model, ["a", "b"], "single", 500)
    assert {parameter.dtype for parameter in module.parameters()} == {torch.float64}
    probabilities = {layer.p for layer in module.modules() if isinstance(layer, torch.nn.Dropout)}
    assert probabilities == {0.25}


def test_two_processes_train_as_one(classify: ModuleType, tmp_path: Path) -> None:
    """The recipe itself, through real launchers: the float64 weights of one process and of two."""
    from safetensors.torch import load_file

    data = write_csv(tmp_path / "colours.csv", ["text", "label"], count=101)
    common = ["--data.train", str(data), "--epochs", "2", "--model.dtype", "float64", *SMALL]
    assert run(classify, *common, "--output", str(tmp_path / "one")) == 0
    result = launch(CLASSIFY, *common, "--output", str(tmp_path / "two"), "--batch.micro", "3")
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("the plan") == 1
    one, two = (load_file(tmp_path / name / "model" / "model.safetensors") for name in ("one", "two"))
    difference = sum(float((one[key] - two[key]).square().sum()) for key in one) ** 0.5
    assert difference / sum(float(one[key].square().sum()) for key in one) ** 0.5 < 1e-12
    ledgers = [list(read_ledger(tmp_path / name / "ledger.jsonl")) for name in ("one", "two")]
    assert [row["fingerprint"] for row in ledgers[0]] == [row["fingerprint"] for row in ledgers[1]]
    assert [row["loss"] for row in ledgers[0]] == pytest.approx([row["loss"] for row in ledgers[1]], rel=1e-12)
    assert ledgers[0][-1]["evaluation"] == pytest.approx(ledgers[1][-1]["evaluation"], rel=1e-12)


def test_mixed_precision_comes_from_the_launch_configuration(classify: ModuleType, tmp_path: Path) -> None:
    """bf16 on CPU: the weights stay float32, the numbers differ a little, and run.json says which it was."""
    data = write_csv(tmp_path / "colours.csv", ["text", "label"])
    common = ["--data.train", str(data), "--steps", "4", *SMALL]
    assert run(classify, *common, "--output", str(tmp_path / "float32")) == 0
    result = python(CLASSIFY, *common, "--output", str(tmp_path / "bf16"), ACCELERATE_MIXED_PRECISION="bf16")
    assert result.returncode == 0, result.stderr
    assert "mixed precision bf16" in result.stdout
    assert [read_record(tmp_path / name)["topology"][0]["precision"] for name in ("float32", "bf16")] == ["no", "bf16"]
    one, other = (
        [row["loss"] for row in read_ledger(tmp_path / name / "ledger.jsonl")] for name in ("float32", "bf16")
    )
    assert one != other
    assert other[0] == pytest.approx(one[0], rel=0.02)
