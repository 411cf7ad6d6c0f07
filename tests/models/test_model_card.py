"""Model cards: metadata that the hub reads, and nothing of the folders of whoever trained the model."""

import json
import re
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import Classify
from huggingface_hub import ModelCard
from hypothesis import example, given
from hypothesis import strategies as st

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
