"""Every recipe: the same numbers on one and two processes and two micro-batch sizes, and an exact resume."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import small_tag
import torch
from launching import ROOT, launch, python
from recipe_layouts import DROPOUT, RECIPES, WEIGHTED, config_class, load_recipe, small_arguments
from resuming import rows_of
from safetensors.torch import load_file
from trial import run_here

from toolkit.tasks.token_classification.entities import OUTCOMES

SCRIPT = ROOT / "tests" / "helpers" / "recipe_layouts.py"
MICRO = 3
# Measured on one, two and four processes: 1.5e-14 at most (benchmarks/numerics/recipe_topology.py).
BOUND = 1e-12
RUNS = [*RECIPES, *WEIGHTED]

PADDED = ("classify_images", "summarize", "translate")
"""Images are of one size, and models with an encoder and a decoder were not tried without padding."""

Layouts = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def layouts(tmp_path_factory: pytest.TempPathFactory) -> Layouts:
    """The numbers of every recipe on three layouts, by "recipe layout"."""
    folder = tmp_path_factory.mktemp("layouts")
    one, two = folder / "one.pt", folder / "two.pt"
    done = python(SCRIPT, str(one), str(folder / "data"), f"none,{MICRO}", *RUNS, timeout=400)
    assert done.returncode == 0, done.stderr
    done = launch(SCRIPT, str(two), str(folder / "data2"), str(MICRO), *RUNS, timeout=400)
    assert done.returncode == 0, done.stderr
    found = {f"{name} on one": numbers for name, numbers in torch.load(one, weights_only=False).items()}
    return found | {f"{name} on two": numbers for name, numbers in torch.load(two, weights_only=False).items()}


@pytest.mark.parametrize("layout", [f"{MICRO} on one", f"{MICRO} on two"])
@pytest.mark.parametrize("name", RUNS)
def test_numbers_do_not_depend_on_processes_and_micro_batches(layouts: Layouts, name: str, layout: str) -> None:
    expected, found = layouts[f"{name} None on one"], layouts[f"{name} {layout}"]
    apart = (found["weights"] - expected["weights"]).norm() / expected["weights"].norm()
    assert apart < BOUND
    assert len(found["rows"]) == len(expected["rows"]) == 6
    for one, other in zip(found["rows"], expected["rows"], strict=True):
        assert one["fingerprint"] == other["fingerprint"]
        assert one["units"] == pytest.approx(other["units"], rel=1e-14 if name in WEIGHTED else 0)
        assert one["loss"] == pytest.approx(other["loss"], rel=BOUND)
        assert one["gradient_norm"] == pytest.approx(other["gradient_norm"], rel=10 * BOUND)
    assert found["metrics"] == pytest.approx(expected["metrics"], rel=BOUND)
    assert len(expected["metrics"]) > 1
    # The training did something, with dropout, and where it can without padding.
    assert (found["dropout"], found["drawn_by_topology"]) == (pytest.approx(0.1), [])
    assert found["packs"] == (name not in PADDED)
    assert expected["rows"][-1]["loss"] != expected["rows"][0]["loss"]


@pytest.mark.parametrize("name", RECIPES)
def test_a_reader_is_shown_the_same_samples(layouts: Layouts, name: str) -> None:
    expected, found = layouts[f"{name} None on one"]["examples"], layouts[f"{name} {MICRO} on two"]["examples"]
    assert expected
    assert [example["sample"] for example in found] == [example["sample"] for example in expected]
    assert [sorted(example) for example in found] == [sorted(example) for example in expected]


@pytest.mark.parametrize("name", ["classify", "classify-several", "classify_images", "tag"])
def test_what_the_report_counts_does_not_depend_on_processes(layouts: Layouts, name: str) -> None:
    expected = layouts[f"{name} None on one"]["details"]
    assert expected
    assert layouts[f"{name} {MICRO} on one"]["details"] == layouts[f"{name} {MICRO} on two"]["details"] == expected


def test_each_entity_is_counted_once(layouts: Layouts) -> None:
    counted = layouts[f"tag {MICRO} on two"]["details"]["entities"]
    wanted = [tag for _, tags in small_tag.sentences(11, 1) for tag in tags]
    for row in counted:
        assert sum(row[how] for how in OUTCOMES if how != "spurious") == wanted.count(f"B-{row['type']}") > 0
    assert sum(row[how] for row in counted for how in OUTCOMES if how != "exact") > 0


@pytest.fixture(scope="module", params=[*RECIPES, *WEIGHTED[:1]])
def stopped_and_not(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Path]]:
    """The folders of two runs of a recipe: one that nothing happened to, one that was stopped after three steps and
    went on."""
    folder = tmp_path_factory.mktemp(request.param)
    recipe = load_recipe(request.param)
    words = [*small_arguments(request.param, folder / "data"), *DROPOUT, "--threads", "1", "--batch.micro", str(MICRO)]
    whole, halted = folder / "whole", folder / "halted"
    run_here(config_class(recipe), recipe.task, words, whole).done()

    def stopping(config: Any) -> Any:
        made, rounds = recipe.task(config), 0

        def units(batch: Any) -> float:
            nonlocal rounds
            rounds += 1
            # The sample that is tried first, then some micro-batches of three steps.
            if rounds == 8:
                (halted / "STOP").touch()
            return made.units(batch)

        return replace(made, units=units)

    assert run_here(config_class(recipe), stopping, words, halted).code == 75
    run_here(config_class(recipe), recipe.task, words, halted).done()
    return [whole, halted]


def test_a_run_that_was_stopped_goes_on_exactly(stopped_and_not: list[Path]) -> None:
    whole, halted = stopped_and_not
    assert rows_of(halted / "ledger.jsonl") == rows_of(whole / "ledger.jsonl")
    found, expected = (
        {path.name: load_file(path) for path in sorted((folder / "model").rglob("*.safetensors"))}
        for folder in (halted, whole)
    )
    assert found.keys() == expected.keys() != set()
    for file, tensors in expected.items():
        assert all(torch.equal(found[file][name], tensor) for name, tensor in tensors.items())
    assert (halted / "predictions.jsonl").read_text() == (whole / "predictions.jsonl").read_text()
