"""Model cards: metadata that the hub reads, and nothing of the folders of whoever trained the model."""

import json
import re
import shlex
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from conftest import Classify
from huggingface_hub import ModelCard
from hypothesis import example, given, settings
from hypothesis import strategies as st
from trial import command_here

from toolkit.config.model import LoraConfig, ModelConfig
from toolkit.config.schema import Config
from toolkit.data.config import DataConfig
from toolkit.models.card import model_card
from toolkit.models.private_paths import shown_command, without_folders


@dataclass(frozen=True)
class Settings(Config):
    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()


def card(config: Settings, metrics: dict[str, float], **more: Any) -> ModelCard:
    results = {
        "config": config,
        "metrics": metrics,
        "baseline": {},
        "steps": 3,
        "summary": {},
        "command": "python x.py",
    }
    text = model_card("Title", "text-classification", None, "transformers", torch.nn.Linear(2, 2), {**results, **more})
    return ModelCard(text)


def test_the_metadata_of_a_run_is_what_the_hub_reads(classify: Classify, encoder: Path, table: Path) -> None:
    outcome = classify("--steps", "2", "--epochs", "null").done()
    found = ModelCard.load(outcome.folder / "model" / "README.md")
    assert (found.data.library_name, found.data.pipeline_tag) == ("transformers", "text-classification")
    assert set(found.data.metrics) == {"accuracy", "f1", "matthews_correlation"}
    results = {result.metric_name: result for result in found.data.eval_results}
    assert {name: result.metric_value for name, result in results.items()} == pytest.approx(
        outcome.record["metrics"], abs=1e-6
    )
    assert {(result.dataset_type, result.dataset_name) for result in results.values()} == {("local", table.name)}
    assert results["macro_f1"].metric_type == "f1"
    assert found.data.model_name == "run"
    # Model and data lie in folders here: no hub has them.
    assert found.data.base_model is None
    assert found.data.datasets is None
    for folder in (encoder.parent, table.parent, outcome.folder.parent):
        assert str(folder) not in found.content
    assert f"name: {encoder.name}\n" in found.text
    assert f"train: {table.name}\n" in found.text


def test_what_is_on_the_hub_is_named_and_numbers_that_are_none_are_left_out(tmp_path: Path) -> None:
    config = Settings(
        model=ModelConfig(name="owner/model"),
        data=DataConfig(name="owner/set", config="de", train="train", eval="test"),
        output="runs/german",
    )
    data = card(config, {"loss": 0.25, "rougeL": 0.5, "rouge1": float("nan")}).data
    assert (data.base_model, data.datasets, data.metrics) == ("owner/model", ["owner/set"], ["rouge"])
    loss, rouge = data.eval_results
    assert (loss.metric_type, loss.metric_value, rouge.metric_type, rouge.metric_name) == (
        "loss",
        0.25,
        "rouge",
        "rougeL",
    )
    assert (rouge.dataset_type, rouge.dataset_config, rouge.dataset_split) == ("owner/set", "de", "test")
    # Adapters name their base themselves.
    settings = {"base_model_name_or_path": "owner/base", "r": 4, "revision": None}
    (tmp_path / "adapter_config.json").write_text(json.dumps(settings))
    further = replace(config, model=ModelConfig(name=str(tmp_path)))
    assert card(further, {}).data.base_model == "owner/base"
    new = card(Settings(output="runs/new"), {"loss": 1.0}).data
    assert (new.base_model, new.datasets, new.eval_results[0].dataset_name) == (None, None, "embedded corpus")


def test_adapters_alone_are_for_peft() -> None:
    adapted = torch.nn.Linear(2, 2)
    adapted.peft_config, adapted.merge_and_unload = {}, None  # type: ignore[assignment]
    adapted.get_base_model = lambda: adapted  # type: ignore[assignment]
    adapted.active_peft_config = SimpleNamespace(modules_to_save=None)  # type: ignore[assignment]
    for merge, library in ((False, "peft"), (True, "transformers")):
        config = Settings(model=ModelConfig(name="owner/model", lora=LoraConfig(rank=2, merge=merge)), output="runs/x")
        results = {"config": config, "metrics": {}, "baseline": {}, "steps": 1, "summary": {}, "command": ""}
        found = ModelCard(model_card("Title", "text-generation", None, "transformers", adapted, results))
        assert found.data.library_name == library


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("folder /home/ann/my data/set: a.csv", "folder set: a.csv"),
        (
            "python /home/ann/recipes/chat.py --output=/mnt/disk/runs/x --data.train 'rows.jsonl'",
            "python chat.py --output=x --data.train 'rows.jsonl'",
        ),
        ("train: /srv/rows.jsonl, /srv/ann/eval.jsonl", "train: rows.jsonl, eval.jsonl"),
        ("https://hub.example/owner/model and/or owner/model, 3/4, </s> <|/header|> a / b", None),
        ("relative/path/to/rows.csv and ./here/x.csv", None),
    ],
)
def test_paths_are_shown_by_their_last_part(text: str, expected: str | None) -> None:
    assert without_folders(text, {"/home/ann/my data/set", "/srv/rows.jsonl"}) == (
        text if expected is None else expected
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("docs/data and data/dataset, /data-2 or /data.old", None),
        ("in /data and /data/, /data/rows.csv and /data.", "in data and data, rows.csv and data."),
        ("read file:///home/anna/x.csv and file:/home/anna/y.csv", "read x.csv and y.csv"),
        ("in /home/anna/ and /home/anna, not ~anna/x.csv", "in ~ and ~, not x.csv"),
        ("from ~/runs/anna, ../../home/anna/e.csv or host:/srv/anna/f.csv", "from anna, e.csv or host:f.csv"),
        ("about ~3/4 of them", None),
    ],
)  # fmt: skip
def test_a_known_path_is_replaced_where_it_stands_whole(text: str, expected: str | None) -> None:
    assert without_folders(text, {"/data"}) == (text if expected is None else expected)


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("--output=~/runs/anna", "--output=anna"),
        ("../../home/anna/e.csv", "e.csv"),
        ("/mnt/acme corp/d.csv", "d.csv"),
        ("file:///home/anna/x.csv", "x.csv"),
        ("/home/anna/", "~"),
        ("--output=/Users/anna", "--output=~"),
        ("~anna", "~"),
        ("data/*.csv", "*.csv"),
        ("/data/run=3/x.csv", "x.csv"),
        ("[/home/anna/x.csv, data/sub/y.csv, owner/set]", "[x.csv, y.csv, owner/set]"),
        ("{train: /home/anna/x.csv}", "{train: x.csv}"),
        *((word, word) for word in ("owner/model", "--model.name=owner/model", "--flag")),
        *((word, word) for word in ("a / b", "s3://bucket/x", "3/4")),
        ("x" * 5000, "x" * 5000),
    ],
)  # fmt: skip
def test_each_word_of_the_command_that_is_a_path_is_shown_by_its_last_part(word: str, expected: str) -> None:
    assert shlex.split(shown_command(shlex.join(["python", word]))) == ["python", expected]


def test_a_folder_that_is_there_is_none_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert shown_command("python recipes/chat.py --model.name owner/model") == (
        "python recipes/chat.py --model.name owner/model"
    )
    for file in ("recipes/chat.py", "owner/model"):
        (tmp_path / file).parent.mkdir()
        (tmp_path / file).touch()
    assert shown_command("python recipes/chat.py --model.name owner/model") == "python chat.py --model.name model"


folders = st.lists(st.text(st.characters(exclude_characters="/\0", exclude_categories=["C"]), min_size=1), max_size=3)


@settings(deadline=None, max_examples=50)  # a card takes a tenth of a second on a busy machine
@given(folders, st.sampled_from(["/secret", "~/secret", "../secret", "file:///secret"]), st.sampled_from(["", "--x="]))
@example(["}Ē"], "file:///secret", "")
def test_a_path_leaves_nothing_but_its_last_part(inside: list[str], begin: str, flag: str) -> None:
    """In the command, in the settings, and in a fact that names it: whatever its folders are called."""
    path = "/".join([begin, *inside, "last.csv"])
    config = Settings(data=DataConfig(train=path, eval="data/validation/e.csv"), output="/secret/run")
    summary = {"read": f"'{path}' and {path}, {path}: 3 rows", "left": "docs/secret and secret/words"}
    command = shlex.join(["python", "/secret/recipe.py", "--y", path, flag + path])
    told = card(config, {"loss": 1.0}, command=command, summary=summary)
    assert told.content.count("secret") == summary["left"].count("secret")
    assert f"- left: {summary['left']}\n" in told.text
    assert "train: last.csv\n" in told.text
    written = re.search(r"Command: `(.*)` \(paths", told.text, re.DOTALL)
    assert written is not None
    assert shlex.split(written[1]) == ["python", "recipe.py", "--y", "last.csv", f"{flag}last.csv"]


def test_settings_that_are_no_paths_stay() -> None:
    config = Settings(
        model=ModelConfig(name="~/models/anna/m"),
        data=DataConfig(name="owner/set", config="a / b"),
        output="/srv/anna/run",
    )
    told = card(config, {"loss": 1.0})
    assert (told.data.base_model, told.data.datasets, told.data.model_name) == (None, ["owner/set"], "run")
    for line in ("  name: m", "  name: owner/set", "  config: a / b"):
        assert f"\n{line}\n" in told.text
    assert "anna" not in told.content


RECORD = {
    "total_steps": 12,
    "data": {"train": "aa11", "evaluate": "bb22"},
    "files": {"/home/ann/secret/reviews.csv": {"bytes": 1234, "sha256": "cc33"}},
    "topology": [
        {"first_step": 1, "processes": 1, "strategy": "whole", "device": "cpu", "precision": "no", "machine": "x86"},
        {"first_step": 5, "processes": 4, "strategy": "fsdp2", "device": "cuda", "precision": "bf16", "machine": "H"},
    ],
}


def test_figures_stand_beside_their_conditions() -> None:
    config = Settings(data=DataConfig(train="/home/ann/secret/reviews.csv"), output="runs/x", seed=7)
    told = card(
        config,
        {"loss": 0.5, "accuracy": 0.75, "hard/accuracy": 0.5},
        baseline={"accuracy": 0.25},
        record=RECORD,
        samples={"train": 100, "evaluate": 20},
        summary={"held out": "15% of the rows"},
        rule="highest accuracy",
        evaluations=4,
        steps=9,
        warnings=["1 of 20 evaluation samples is among the training samples"],
    )
    for text in (
        "These are the weights after 9 of 12 optimizer steps: those of the evaluation with the highest accuracy.",
        "On 20 samples of `reviews.csv`, held out from training, with the weights after step 9.",
        "| accuracy | 0.7500 | 0.2500 |",
        "- training samples: 100, hash `aa11`",
        "- evaluation samples: 20, hash `bb22`",
        "- file `reviews.csv`: 1,234 bytes, SHA-256 `cc33`",
        "| 5 | 4 | fsdp2 | cuda | bf16 | H |",
        "The same data chose these weights, among 4 evaluations",
        "one seed (7)",
        "- The run warned: 1 of 20 evaluation samples",
    ):
        assert text in told.text
    assert "secret" not in told.content
    results = {result.metric_name: result for result in told.data.eval_results}
    assert results["hard/accuracy"].metric_type == "accuracy"
    assert results["loss"].dataset_args == {"samples": 20, "after_step": 9, "hash": "bb22"}
    assert told.data.metrics == ["accuracy"]
    assert "not evaluated" in card(config, {}).text


def test_only_what_differs_from_the_defaults_is_listed() -> None:
    base = Settings()
    changed = replace(base, epochs=7.0, batch=replace(base.batch, size=5), threads=3, output="runs/x")
    lines = re.findall(r"```yaml\n(.*?)```", card(changed, {}).text, re.DOTALL)
    assert yaml.safe_load(lines[0]) == {"batch": {"size": 5}, "epochs": 7.0}
    assert "all defaults" in card(replace(base, output="runs/x"), {}).text


def test_no_secret_reaches_the_folder_or_the_record(
    classify: Classify, table: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    token = "hf_" + "s" * 34
    monkeypatch.setattr(sys, "argv", ["recipes/classify.py", "--hub.token", token, "--x", "https://ann:pass@host/x"])
    outcome = classify("--steps", "1", "--epochs", "null", "--rehearse", "false").done()
    for file in outcome.folder.rglob("*"):
        if file.is_file():
            assert token.encode() not in file.read_bytes(), file
    told = (outcome.folder / "model" / "README.md").read_text(encoding="utf-8")
    assert "--hub.token '<hidden>' --x https://host/x" in told or "--hub.token <hidden> --x https://host/x" in told
    assert "ann:pass" not in told


def test_the_card_of_an_exported_step_is_of_that_step(classify: Classify) -> None:
    arguments = ("--steps", "4", "--epochs", "null", "--checkpoint.every", "1", "--checkpoint.keep", "9")
    folder = classify(*arguments, "--evaluate.every", "2").done().folder
    command = json.loads((folder / "run.json").read_text())["topology"][0]["command"]
    command_here("export", folder, "--step", "3").done()
    told = ModelCard.load(folder / "model" / "README.md")
    assert "These are the weights after 3 of 4 optimizer steps." in told.text
    assert f"`{shown_command(command)}`" in told.text
    assert {result.dataset_args["after_step"] for result in told.data.eval_results} == {3}
    assert json.loads((folder / "model" / "finetune_toolkit.json").read_text())["step"] == 3
