"""The learning rate that a run has where none is given, in its record and its plan, and rates that are unusual."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import Classify
from line import Line, task
from recipe_layouts import RECIPES, config_class, load_recipe
from trial import run_here

from toolkit.config.learning_rates import trained, unusual_rate, with_learning_rate
from toolkit.config.model import ADAPTERS, LoraConfig
from toolkit.config.optim import OptimConfig, Rates
from toolkit.config.yaml import read_yaml


@pytest.mark.parametrize("recipe", RECIPES)
def test_each_recipe_has_a_rate_for_what_it_trains(recipe: str, tmp_path: Path) -> None:
    made: Any = config_class(load_recipe(recipe))()
    (tmp_path / "adapters").mkdir()
    (tmp_path / "adapters" / ADAPTERS).touch()
    cases = {
        "new": made.model,
        "pretrained": replace(made.model, name="owner/model"),
        "adapters": replace(made.model, name="owner/model", lora=LoraConfig(rank=4)),
    }
    rates = [with_learning_rate(replace(made, model=model)).optim.rate for model in cases.values()]
    assert rates == [made.rates.new, made.rates.pretrained, made.rates.adapters]
    # What was trained takes smaller steps, and adapters larger ones than all of its weights.
    assert rates[1] < rates[2] < rates[0]
    assert [trained(replace(made, model=model)) for model in cases.values()] == list(cases)
    further = replace(made, model=replace(made.model, name=str(tmp_path / "adapters")))
    assert with_learning_rate(further).optim.lr == made.rates.adapters
    # None of them is out of the usual range, and a number that is given stays.
    for rate, what in zip(rates, cases, strict=True):
        assert unusual_rate(rate, what, "adamw") is None  # type: ignore[arg-type]
    given = replace(made, optim=OptimConfig(lr=0.5))
    assert with_learning_rate(given) == given


def test_the_number_is_in_the_record_and_gives_the_same_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run_here(Line, lambda config: task(), ["--threads", "1"], tmp_path / "run").done()
    first.says("sgd, lr 0.001 (the default for new weights)")
    settings = first.folder / "config.yaml"
    assert read_yaml(settings)["optim"]["lr"] == Rates().new == 1e-3
    # A later version may take another rate where none is given.
    monkeypatch.setattr(Line, "rates", Rates(new=0.5))
    for again in (["--threads", "1"], ["--config", str(settings)], ["--threads", "1", "--optim.lr", "1e-3"]):
        run_here(Line, lambda config: task(), again, tmp_path / "run").done().says("this run is finished")
    run_here(Line, lambda config: task(), ["--threads", "1", "--optim.lr", "2e-3"], tmp_path / "run").told("optim.lr")


def test_a_model_that_was_trained_before_takes_smaller_steps(classify: Classify) -> None:
    outcome = classify("--steps", "2", "--epochs", "null").done()
    rates = Rates()
    outcome.says(f"adamw, lr {rates.pretrained:g} (the default for pre-trained weights)")
    assert read_yaml(outcome.folder / "config.yaml")["optim"]["lr"] == rates.pretrained
    assert "warning" not in outcome.record["plan"]


@pytest.mark.parametrize(
    ("rate", "what", "optimizer", "expected"),
    [
        (
            10.0,
            "new",
            "adamw",
            "optim.lr is 10, where new weights usually take 1e-05 to 0.1 with adamw: training will hardly",
        ),
        (1e-3, "pretrained", "adamw", "what the model knows may be lost"),
        (0.1, "adapters", "adamw", "what the model knows may be lost"),
        (1e-9, "pretrained", "adamw", "little will be learned"),
        # The rates of the recipes are AdamW's.
        (2e-4, "adapters", "sgd", "little will be learned"),
        (5e-5, "pretrained", "sgd", "little will be learned"),
        (1e-3, "new", "adamw", None),
        (2e-4, "pretrained", "adamw", None),
        (5e-7, "pretrained", "adamw", None),
        (5e-6, "adapters", "adamw", None),
        (2e-3, "adapters", "adamw", None),
        (0.1, "new", "sgd", None),
    ],
)
def test_an_unusual_rate_is_warned_of(rate: float, what: Any, optimizer: str, expected: str | None) -> None:
    warning = unusual_rate(rate, what, optimizer)
    assert (warning is None) == (expected is None)
    assert expected is None or expected in str(warning)


def test_the_plan_warns_of_an_unusual_rate(tmp_path: Path) -> None:
    run_here(Line, lambda config: task(), ["--threads", "1", "--optim.lr", "50"], tmp_path / "run").says(
        "warning", "optim.lr is 50, where new weights usually take 0.001 to 10 with sgd"
    )
