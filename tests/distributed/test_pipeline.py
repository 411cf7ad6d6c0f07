"""Pipelines: a model whose layers lie in two processes trains to the numbers of one process, and goes on in another
layout."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from launching import ROOT, launch
from recipe_layouts import config_class, load_recipe, small_arguments
from safetensors import safe_open
from safetensors.torch import load_file
from trial import Outcome, run_here

from toolkit.config.batch import BatchConfig
from toolkit.config.schema import Config
from toolkit.distributed.mesh import Strategy, read_strategy
from toolkit.distributed.pipeline import Stage

COMMON = ("--threads", "1", "--model.dropout", "0.1", "--checkpoint.every", "3", "--checkpoint.keep", "9")
STAGES = ("--batch.stages", "2")
NAMES = ("language", "classify")


def here(name: str, folder: Path, *arguments: str) -> Outcome:
    """Run a recipe with small data in this process."""
    recipe = load_recipe(name)
    words = [*small_arguments(name, folder.parent / name), *COMMON, *arguments]
    return run_here(config_class(recipe), recipe.task, words, folder)


def launched(name: str, folder: Path, *arguments: str) -> None:
    """Run it in two processes, to its end."""
    words = [*small_arguments(name, folder.parent / name), *COMMON, *arguments, "--output", str(folder)]
    done = launch(ROOT / "recipes" / f"{name}.py", *words)
    assert json.loads((folder / "run.json").read_text())["status"] == "finished", done.stdout + done.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of two recipes in one process (`<recipe>`) and in a pipeline (`<recipe> in stages`)."""
    folder = tmp_path_factory.mktemp("pipeline")
    for name in NAMES:
        here(name, folder / f"{name} alone").done()
        # Four micro-batches or more in a step of eight samples, of different lengths, the last of one sample.
        launched(name, folder / f"{name} in stages", *STAGES, "--batch.micro", "2")
    return folder


def rows(folder: Path) -> list[dict[str, Any]]:
    """Return the ledger of a run."""
    return [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]


def check_same(found: Path, expected: Path) -> None:
    """Check that two runs have the same samples, losses, norms, metrics and weights, but for rounding."""
    both = list(zip(rows(found), rows(expected), strict=True))
    assert len(both) == 6
    for one, other in both:
        assert (one["step"], one["fingerprint"], one["units"]) == (other["step"], other["fingerprint"], other["units"])
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-12)
        assert one["gradient_norm"] == pytest.approx(other["gradient_norm"], rel=1e-12)
        assert (one["evaluation"] or {}) == pytest.approx(other["evaluation"] or {}, rel=1e-12)
    weights, others = (load_file(run / "model" / "model.safetensors") for run in (found, expected))
    assert weights.keys() == others.keys()
    for name, tensor in weights.items():
        assert (tensor - others[name]).abs().max() < 1e-13


@pytest.mark.parametrize("name", NAMES)
def test_weights_losses_norms_and_metrics_are_those_of_one_process(folder: Path, name: str) -> None:
    check_same(folder / f"{name} in stages", folder / f"{name} alone")
    record = json.loads((folder / f"{name} in stages" / "run.json").read_text())
    assert record["topology"][0]["strategy"] == "pipeline: the layers divided among 2"
    assert any(row["evaluation"] for row in rows(folder / f"{name} in stages"))


@pytest.mark.parametrize("optimizer", ["muon", "adafactor"])
def test_an_optimizer_of_whole_matrices_steps_those_of_each_stage(tmp_path: Path, optimizer: str) -> None:
    """Later stages hold none of the first weights, at which these two look."""
    here("language", tmp_path / "alone", "--optim.name", optimizer).done()
    launched("language", tmp_path / "stages", *STAGES, "--batch.micro", "2", "--optim.name", optimizer)
    check_same(tmp_path / "stages", tmp_path / "alone")


def test_each_stage_writes_the_weights_and_averages_of_its_own_layers(folder: Path) -> None:
    checkpoint = folder / "language in stages" / "checkpoints" / "step-000003"
    for kind in ("weights", "optimizer"):
        first, second = (set(names_in(path)) for path in sorted(checkpoint.glob(f"{kind}*.safetensors")))
        assert not first & second
        assert any("layers.0." in name for name in first)
        assert any("layers.1." in name for name in second)
        assert not any("layers.1." in name for name in first)
        # The head is the embedding, which both hold; one writes it.
        assert any("embed_tokens" in name for name in first)


def names_in(file: Path) -> list[str]:
    """Return the names of the tensors in a file."""
    with safe_open(file, framework="pt") as content:
        return list(content.keys())


def after_step_3(run: Path, to: Path) -> Path:
    """Copy what a run had left when it had done three steps of six, and return the copy."""
    shutil.copytree(run, to, ignore=shutil.ignore_patterns("step-000006", "model"))
    record = json.loads((to / "run.json").read_text())
    (to / "run.json").write_text(json.dumps({**record, "status": "preempted", "step": 3}))
    return to


def test_one_process_goes_on_from_a_pipeline_and_a_pipeline_from_one_process(folder: Path) -> None:
    alone = after_step_3(folder / "language in stages", folder / "stages, then alone")
    here("language", alone).done().says("going on after step 3")
    check_same(alone, folder / "language alone")
    stages = after_step_3(folder / "language alone", folder / "alone, then stages")
    launched("language", stages, *STAGES, "--batch.micro", "3", "--model.checkpoint_activations", "true")
    check_same(stages, folder / "language alone")
    starts = json.loads((stages / "run.json").read_text())["topology"]
    assert [start["first_step"] for start in starts] == [1, 4]


def test_a_norm_is_that_of_all_stages_and_clips_in_each(monkeypatch: pytest.MonkeyPatch) -> None:
    others = torch.tensor(16.0, dtype=torch.float64)
    monkeypatch.setattr("toolkit.distributed.pipeline.all_reduce", lambda squared: squared.add_(others))
    stage = Stage(1, 3, 4, torch.float64, torch.device("cpu"))
    weight = torch.nn.Parameter(torch.zeros(3, dtype=torch.float64))
    elsewhere = torch.nn.Parameter(torch.zeros(3, device="meta"))
    weight.grad = torch.tensor([2.0, 2.0, 1.0], dtype=torch.float64)
    assert stage.clip([weight, elsewhere], 1.0).item() == 5
    assert weight.grad.tolist() == pytest.approx([0.4, 0.4, 0.2], rel=1e-5)
    weight.grad = torch.tensor([2.0, float("inf"), 1.0], dtype=torch.float64)
    assert stage.clip([weight], None).item() == float("inf")


def test_what_a_launch_asks_for_beside_a_pipeline_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_strategy(Config(batch=BatchConfig(stages=2)), 2, "bf16") == (Strategy(stages=2), [])
    _, problems = read_strategy(Config(batch=BatchConfig(stages=2)), 3, "fp16")
    assert [problem.partition(":")[0] for problem in problems] == [
        "batch.stages is 2, and 3 processes were started",
        "batch.stages is 2, and the launch configuration asks for mixed precision fp16",
    ]
    assert "--num_processes 2, or --batch.stages 3" in problems[0]
    _, (problem,) = read_strategy(Config(batch=BatchConfig(stages=2)), 1, "no")
    assert "or leave batch.stages out" in problem
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    _, (problem,) = read_strategy(Config(batch=BatchConfig(stages=2)), 2, "no")
    assert "spreads the model too" in problem
