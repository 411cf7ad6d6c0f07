"""DeepSpeed's ZeRO: the numbers, the checkpoints and the refusals are those of every other way to spread a model.

Its master weights are float32, and the small network computes in float64: so each step rounds, and nothing else may
differ. Once the masters are float64 too, nothing does (`test_with_masters_in_float64_nothing_is_rounded`).
"""

import json
import re
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from launching import ROOT, TINY, launch, python
from passages import CONFIGS, Way, in_bf16, one_and_passed, rows, whole_nowhere
from recipe_layouts import config_class, load_recipe, small_arguments
from safetensors.torch import load_file
from tiny_recipe import FADES_AFTER
from torch import cat
from trial import run_here

# 45 samples in batches of 8: six steps an epoch, the last of five samples.
SETTINGS = (
    *("--epochs", "5", "--evaluate.every", "10", "--threads", "1", "--checkpoint.keep", "20"),
    *("--model.flaw", "spare", "--optim.average", "0.9", "--export", "average"),
)
# The last of them keeps no weight whole.
PASSAGE: list[Way] = [
    ("cpu_deepspeed_zero1", 2, 3, 5),
    ("cpu_fsdp2", 2, 2, 4),
    ("cpu_deepspeed_zero2", 4, None, 4),
    ("cpu_deepspeed_zero3", 2, 2, 5),
    ("cpu", 2, 3, 4),
    ("cpu_deepspeed_zero3", 4, 1, None),
]
STEPS = 30
STAGES = ("cpu_deepspeed_zero1", "cpu_deepspeed_zero2", "cpu_deepspeed_zero3")
# A step rounds each weight and its gradient, sums two or four of them, and updates two averages in float32.
BOUND = 8 * STEPS * 2.0**-24


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The folders of the run in one process, and of the run that went through ZeRO and other strategies."""
    folder = tmp_path_factory.mktemp("zero")
    ways = [(whole_nowhere(folder), *way[1:]) if way == PASSAGE[-1] else way for way in PASSAGE]
    return one_and_passed(folder, SETTINGS, ways)


def apart(found: Path, expected: Path) -> float:
    """Return how far two saved models are apart, relative to the second."""
    one, other = (load_file(folder / "model" / "model.safetensors") for folder in (found, expected))
    assert {name: (t.shape, t.dtype) for name, t in one.items()} == {n: (t.shape, t.dtype) for n, t in other.items()}
    mine, theirs = (cat([tensors[name].flatten() for name in sorted(tensors)]) for tensors in (one, other))
    return float((mine - theirs).norm() / theirs.norm())


def test_it_took_its_part_and_each_process_wrote_one(folders: tuple[Path, Path]) -> None:
    starts = json.loads((folders[1] / "run.json").read_text())["topology"]
    assert [start["processes"] for start in starts] == [processes for _, processes, _, _ in PASSAGE]
    cut = ["state", "state and gradients", "state, gradients and weights", "state, gradients and weights"]
    assert [start["strategy"] for start in starts if "ZeRO" in start["strategy"]] == [
        f"DeepSpeed ZeRO {stage}: optimizer {what} sharded over {processes} process(es)"
        for stage, what, processes in zip((1, 2, 3, 3), cut, (2, 4, 2, 4), strict=True)
    ]
    assert [start["first_step"] for start in starts] == [1, 6, 10, 14, 19, 23]
    for before, after in pairwise(starts):
        checkpoint = folders[1] / "checkpoints" / f"step-{after['first_step'] - 1:06d}"
        written = before["processes"] if before["strategy"].startswith(("DeepSpeed", "FSDP")) else 1
        assert len(list(checkpoint.glob("weights*"))) == written
        # What is frozen and what averages are kept does not depend on the strategy.
        state = json.loads((checkpoint / "state.json").read_text())
        assert state["unused"] == ["unused.bias", "unused.weight"]


def test_losses_norms_and_samples_are_those_of_one_process(folders: tuple[Path, Path]) -> None:
    expected, found = (rows(folder) for folder in folders)
    assert len(found) == len(expected) == STEPS
    for one, other in zip(found, expected, strict=True):
        assert (one["step"], one["fingerprint"], one["units"]) == (other["step"], other["fingerprint"], other["units"])
        assert one["learning_rate"] == other["learning_rate"]
        assert one["loss"] == pytest.approx(other["loss"], rel=BOUND)
        assert one["gradient_norm"] == pytest.approx(other["gradient_norm"], rel=BOUND)
        assert (one["evaluation"] or {}) == pytest.approx(other["evaluation"] or {}, rel=BOUND)


def test_the_exported_average_is_whole_and_the_same(folders: tuple[Path, Path]) -> None:
    assert 0 < apart(folders[1], folders[0]) < BOUND


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("cpu_deepspeed_zero2", ["--optim.name", "sgd", "--optim.layer_decay", "0.5"]),
        ("cpu_deepspeed_zero3_offload", ["--optim.layer_decay", "0.5", "--batch.reduce_each", "true"]),
    ],
)
def test_steps_without_units_or_numbers_change_nothing(tmp_path: Path, file: str, words: list[str]) -> None:
    """The first 30 of 45 samples have no label, so that some batches of four have no unit; a loss of one is no number;
    and the weights decay, which would tell of a step."""
    settings = [
        *("--batch.size", "4", "--data.unlabelled_below", "30", "--epochs", "2", "--threads", "1"),
        *("--optim.weight_decay", "0.3", "--model.flaw", "layers", "--evaluate.every", "12"),
        *words,
    ]
    one, other = tmp_path / "one", tmp_path / "other"
    assert python(TINY, *settings, "--output", str(one)).returncode == 0
    done = launch(TINY, *settings, "--batch.micro", "1", "--output", str(other), config=CONFIGS / f"{file}.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    steps = rows(one)
    assert 0 < sum(row["units"] == 0 for row in steps) < len(steps)
    assert [row["skipped"] for row in rows(other)] == [row["skipped"] for row in steps]
    assert 0 < apart(other, one) < 8 * len(steps) * 2.0**-24


def test_a_gradient_that_is_not_finite_is_left_out(tmp_path: Path) -> None:
    settings = ["--model.flaw", "nan", "--optim.nonfinite", "skip", "--rehearse", "false", "--threads", "1"]
    for stage in (1, 3):
        folder = tmp_path / str(stage)
        config = CONFIGS / f"cpu_deepspeed_zero{stage}.yaml"
        done = launch(TINY, *settings, "--output", str(folder), config=config)
        assert done.returncode == 0, done.stdout + done.stderr
        skipped = [row["step"] for row in rows(folder) if row["skipped"]]
        assert len(skipped) == 1
        assert all(torch.isfinite(t).all() for t in load_file(folder / "model" / "model.safetensors").values())


@pytest.mark.parametrize("file", [*STAGES, "whole nowhere"])
def test_with_masters_in_float64_nothing_is_rounded(tmp_path: Path, file: str) -> None:
    """So the sums, their scale and the cut of the weights are exact: float32 alone is what keeps the others apart.

    Clipping is off: DeepSpeed takes the norm in float32."""
    settings = ["--threads", "1", "--model.flaw", "layers", "--epochs", "1", "--optim.clip", "null"]
    one, other = tmp_path / "one", tmp_path / "other"
    assert python(TINY, *settings, "--output", str(one)).returncode == 0
    words = ["--batch.micro", "3", "--output", str(other)]
    path = whole_nowhere(tmp_path) if file == "whole nowhere" else file
    done = launch(TINY, *settings, *words, config=CONFIGS / f"{path}.yaml", TINY_FLOAT64_MASTERS="1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert apart(other, one) < 1e-14


@pytest.mark.parametrize("file", [*STAGES, "whole nowhere"])
def test_a_part_that_is_left_out_in_a_later_step_ends_the_run(tmp_path: Path, file: str) -> None:
    """One process would leave it as it was. It counts passes, so that each step has to be one."""
    settings = ["--model.flaw", "fading", "--rehearse", "false", "--threads", "1", "--batch.balance", "false"]
    path = whole_nowhere(tmp_path) if file == "whole nowhere" else file
    done = launch(TINY, *settings, "--output", str(tmp_path / "run"), config=CONFIGS / f"{path}.yaml")
    assert done.returncode == 1
    assert "2 trainable parameter(s) got no gradient in a step: fading.weight, fading.bias. One" in done.stderr
    assert len(rows(tmp_path / "run")) <= FADES_AFTER


def test_weights_that_have_taken_other_numbers_of_steps_are_not_resumed(tmp_path: Path) -> None:
    """DeepSpeed keeps one count for many weights."""
    settings = ["--model.flaw", "fading", "--rehearse", "false", "--threads", "1", "--batch.balance", "false"]
    run = tmp_path / "run"
    python(TINY, *settings, "--output", str(run), TINY_STOP_AFTER="7")
    record = json.loads((run / "run.json").read_text())
    assert record["status"] == "preempted"
    done = launch(TINY, *settings, "--output", str(run), config=CONFIGS / "cpu_deepspeed_zero2.yaml")
    assert done.returncode == 1
    told = rf"r\.\w+ has taken {record['step']} steps and fading\.\w+ [1-6], since it got no gradient"
    assert re.search(told, done.stderr), done.stderr


def test_an_average_of_steps_that_keep_nothing_is_taken(tmp_path: Path) -> None:
    settings = ["--threads", "1", "--model.flaw", "layers", "--optim.name", "sgd", "--optim.betas", "[0, 0.9]"]
    settings += ["--optim.average", "0.9", "--export", "average"]
    one, other = tmp_path / "one", tmp_path / "other"
    assert python(TINY, *settings, "--output", str(one)).returncode == 0
    config = CONFIGS / f"{whole_nowhere(tmp_path)}.yaml"
    done = launch(TINY, *settings, "--output", str(other), config=config)
    assert done.returncode == 0, done.stdout + done.stderr
    assert 0 < apart(other, one) < BOUND


@pytest.mark.parametrize("file", ["cpu_deepspeed_zero2", "cpu_deepspeed_zero3"])
def test_under_bf16_masters_begin_with_all_digits_of_the_weights(tmp_path: Path, file: str) -> None:
    """At a rate of nearly nothing the weights stay what they were."""
    settings = ["--threads", "1", "--model.flaw", "single", "--optim.lr", "1e-30", "--optim.weight_decay", "0"]
    one, other = tmp_path / "one", tmp_path / "other"
    assert python(TINY, *settings, "--output", str(one)).returncode == 0
    done = launch(TINY, *settings, "--output", str(other), config=in_bf16(tmp_path, file))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "bf16" in done.stdout
    assert apart(other, one) == 0


def test_layers_that_read_the_weights_of_their_parts_are_evaluated(tmp_path: Path) -> None:
    settings = ["--threads", "1", "--model.flaw", "encoder"]
    one, other = tmp_path / "one", tmp_path / "other"
    assert python(TINY, *settings, "--output", str(one)).returncode == 0
    config = CONFIGS / f"{whole_nowhere(tmp_path)}.yaml"
    done = launch(TINY, *settings, "--output", str(other), config=config)
    assert done.returncode == 0, done.stdout + done.stderr
    expected, found = ([row["evaluation"] for row in rows(run) if row["evaluation"]] for run in (one, other))
    assert len(found) == len(expected) == 2
    for mine, theirs in zip(found, expected, strict=True):
        assert mine == pytest.approx(theirs, rel=BOUND)


def test_an_error_of_one_process_while_the_average_is_evaluated_ends_all(tmp_path: Path) -> None:
    """To put the last weights back takes all processes, and the other one is in the evaluation."""
    settings = ["--model.flaw", "lone_prediction", "--optim.average", "0.9", "--export", "average"]
    config = CONFIGS / "cpu_deepspeed_zero2.yaml"
    done = launch(TINY, *settings, "--rehearse", "false", "--output", str(tmp_path / "run"), config=config, timeout=90)
    assert done.returncode == 1
    assert "process 1: this prediction of this process alone is broken" in done.stderr


def test_evaluation_alone_in_bf16_is_that_of_data_parallel(tmp_path: Path) -> None:
    """No engine of DeepSpeed's is there, which would hold the weights in bf16."""
    run = tmp_path / "run"
    recipe = load_recipe("classify")
    words = [*small_arguments("classify", tmp_path / "data"), "--threads", "1"]
    words[words.index("float64")] = "float32"
    run_here(config_class(recipe), recipe.task, words, run).done()
    found = {}
    for config in (CONFIGS / "cpu.yaml", in_bf16(tmp_path, "cpu"), in_bf16(tmp_path, "cpu_deepspeed_zero3")):
        only = ["--evaluate.only", "true", "--output", str(run), "--threads", "1"]
        done = launch(ROOT / "recipes" / "classify.py", *only, config=config)
        assert done.returncode == 0, done.stdout + done.stderr
        found[config.stem] = json.loads((run / "evaluation.json").read_text())["metrics"]
    assert found["cpu_deepspeed_zero3_bf16"] == found["cpu_bf16"] != found["cpu"]
