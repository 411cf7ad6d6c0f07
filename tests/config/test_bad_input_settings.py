"""Settings that can't be: reported all together, with the nearest valid name, before anything is written."""

from pathlib import Path
from types import ModuleType

import pytest
from conftest import ROOT, Classify
from recipe_layouts import load_recipe

from toolkit.cli import main
from toolkit.config.fields import leaves
from toolkit.config.schema import Config
from toolkit.config.suggestions import CALLED_ELSEWHERE, suggestion


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--batch.sise", "8"], ["batch.sise", "did you mean", "batch.size"]),
        (["--modle.name", "x"], ["modle.name", "did you mean", "model.name"]),
        (["--batch.size", "many"], ["batch.size is many; it must be a whole number"]),
        (["--optim.lr", "fast"], ["optim.lr is fast; it must be a number"]),
        (
            ["--optim.name", "adam"],
            ["optim.name is adam; it must be one of: adamw, sgd, adafactor, muon", "did you mean adamw?"],
        ),
        (["--batch.size", "0"], ["batch.size is 0; it must be 1 or greater"]),
        (["--batch.size", "-4"], ["batch.size is -4; it must be 1 or greater"]),
        (["--batch.micro", "0"], ["batch.micro is 0; it must be 1 or greater"]),
        (["--batch.eval", "0"], ["batch.eval is 0; it must be 1 or greater"]),
        (["--data.max_length", "0"], ["data.max_length is 0; it must be 1 or greater"]),
        (["--data.max_length", "-1"], ["data.max_length is -1; it must be 1 or greater"]),
        (["--steps", "0"], ["steps is 0; it must be 1 or greater"]),
        (["--epochs", "-1"], ["epochs is -1", "it must be greater than 0"]),
        (
            ["--batch.size", "8", "--batch.micro", "16"],
            ["batch.micro is 16, but the global batch has only 8 samples (batch.size)", "a smaller batch.micro"],
        ),
        (["--steps", "10", "--epochs", "2"], ["epochs is 2", "steps is 10", "give one of them"]),
        (["--config", "nothing.yaml"], ["the configuration file nothing.yaml does not exist"]),
    ],
)
def test_settings_as_flags(classify: Classify, arguments: list[str], parts: list[str]) -> None:
    outcome = classify(*arguments).refused(*parts)
    assert outcome.output == ""


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        ("batch: {sise: 8}\n", ["batch.sise", "did you mean", "batch.size"]),
        ("bach: {size: 8}\n", ["bach", "did you mean", "batch"]),
        ("batch: {size: many}\n", ["batch.size is many; it must be a whole number"]),
        ("batch: {size: 0}\n", ["batch.size is 0; it must be 1 or greater"]),
        ("batch: [size\n", ["is not YAML: line"]),
        ("steps: 5\nepochs: 2\n", ["epochs is 2", "steps is 5", "give one of them"]),
    ],
)
def test_settings_in_a_file(classify: Classify, tmp_path: Path, content: str, parts: list[str]) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(content, encoding="utf-8")
    classify("--config", file).refused(*parts)


def test_all_problems_are_reported_at_once(classify: Classify) -> None:
    outcome = classify("--batch.size", "0", "--data.max_length", "0", "--optim.lr", "-1", "--thread", "2").refused(
        "batch.size is 0", "data.max_length is 0", "optim.lr is -1", "thread"
    )
    assert outcome.errors.count("\n  - ") == 4


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("train_file", "data.train"),
        ("validation_file", "data.eval"),
        ("dataset_text_field", "data.text"),
        ("model_name_or_path", "model.name"),
        ("learning_rate", "optim.lr"),
        ("num_train_epochs", "epochs"),
        ("max_seq_length", "data.max_length"),
        ("output_dir", "output"),
        ("gradient_checkpointing", "model.checkpoint_activations"),
        ("lora_r", "model.lora.rank"),
        ("logging_steps", "log.every"),
        ("resume_from_checkpoint", "resume"),
    ],
)
def test_the_names_of_others_lead_to_the_field(recipe: ModuleType, given: str, meant: str) -> None:
    known = [key for key, _, _ in leaves(recipe.Classify())]
    assert suggestion(given, known, "--") == f"did you mean --{meant}?"


@pytest.mark.parametrize(("given", "meant"), [("fp16", "fp16"), ("bf16", "bf16"), ("mixed_precision", "bf16")])
def test_the_precision_that_was_asked_for_is_named(recipe: ModuleType, given: str, meant: str) -> None:
    known = [key for key, _, _ in leaves(recipe.Classify())]
    assert f"`accelerate launch --mixed_precision {meant}` before the recipe" in suggestion(given, known, "--")


def test_every_field_that_such_a_name_leads_to_exists() -> None:
    recipes = [load_recipe(path.stem) for path in (ROOT / "recipes").glob("*.py")]
    classes = [thing for module in recipes for thing in vars(module).values() if isinstance(thing, type)]
    known = {key for each in classes if issubclass(each, Config) for key, _, _ in leaves(each())}
    assert {meaning for meaning in CALLED_ELSEWHERE if " " not in meaning} <= known


@pytest.mark.parametrize(
    ("word", "message"),
    [("stauts", "stauts is no command; did you mean status?"), ("list", "list is no command; give one of status, ")],
)
def test_a_mistyped_command(capsys: pytest.CaptureFixture[str], word: str, message: str) -> None:
    assert main([word, "runs/classify"]) == 2
    assert message in capsys.readouterr().err
