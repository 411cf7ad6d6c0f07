"""Model cards: metadata that the hub reads, and nothing of the folders of whoever trained the model."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import Classify
from huggingface_hub import ModelCard

from toolkit.config import Config
from toolkit.data_config import DataConfig
from toolkit.model_card import model_card, without_folders
from toolkit.model_config import LoraConfig, ModelConfig


@dataclass(frozen=True)
class Settings(Config):
    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()


def card(config: Settings, metrics: dict[str, float], **more: Any) -> ModelCard:
    results = {"config": config, "metrics": metrics, "baseline": {}, "steps": 3, "facts": {}, "command": "python x.py"}
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
        results = {"config": config, "metrics": {}, "baseline": {}, "steps": 1, "facts": {}, "command": ""}
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
