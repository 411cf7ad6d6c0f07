"""Likely mistakes give a warning before the first step or at the end; a loss that breaks its rule is refused."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from launching import TINY, launch
from line import Line, Points
from line import task as line
from resuming import Build, run
from tiny_recipe import task
from trial import run_here

from toolkit.metrics import regression_errors
from toolkit.printed_plan import worse_than
from toolkit.task import Task

REHEARSED = ("--rehearse", "true")


def with_loss(loss: Callable[..., torch.Tensor], **changes: Any) -> Build:
    return lambda config: replace(task(config), loss=loss, **changes)


def logits(model: Any, batch: Any) -> Any:
    return model(batch["values"], batch["mask"])


def mean(model: Any, batch: Any) -> torch.Tensor:
    return F.cross_entropy(logits(model, batch), batch["labels"])


def mean_of_steps(model: Any, batch: Any) -> torch.Tensor:
    """Over the time steps of all samples, as a language model's own loss is over tokens."""
    total = F.cross_entropy(logits(model, batch), batch["labels"], reduction="none") * batch["mask"].sum(1)
    return total.sum() / batch["mask"].sum()


def of_the_padding(model: Any, batch: Any) -> torch.Tensor:
    """A sum, in which the padding of a batch acts on its samples."""
    return F.cross_entropy(logits(model, batch) * batch["mask"].shape[1], batch["labels"], reduction="sum")


@pytest.mark.parametrize("loss", [mean, mean_of_steps], ids=["of samples", "of time steps"])
def test_a_mean_is_refused_with_the_remedy(loss: Any, tmp_path: Path) -> None:
    run(tmp_path / "run", *REHEARSED, build=with_loss(loss)).refused(
        "the task's loss is a mean (a micro-batch of 8 samples has the loss", "reduction='sum'", "units"
    )


def test_a_mean_is_refused_on_two_processes(tmp_path: Path) -> None:
    """One of them has a single sample in its micro-batch, which can't be halved."""
    flags = ["--model.flaw", "average", "--batch.size", "3", "--threads", "1"]
    done = launch(TINY, "--output", str(tmp_path / "run"), *flags)
    assert done.returncode == 1
    at_once, _, below = done.stderr.partition("Traceback (most recent call last):")
    for text in (at_once, below):  # and again below the launcher's own trace
        assert text.count("the task's loss is a mean (a micro-batch of 2 samples has the loss") == 1


def test_units_that_do_not_add_up_are_refused(tmp_path: Path) -> None:
    run(tmp_path / "run", *REHEARSED, build=lambda config: replace(task(config), units=lambda batch: 1)).refused(
        "the task counts 1 unit(s) in a micro-batch of 8 samples and 2 in its halves together"
    )


def test_padding_that_acts_on_samples_gives_a_warning(tmp_path: Path) -> None:
    outcome = run(tmp_path / "run", *REHEARSED, build=with_loss(of_the_padding)).done()
    outcome.says("warning: the loss depends on how samples are put into batches")
    assert any("depends on how samples" in warning for warning in outcome.record["warnings"])


@pytest.mark.parametrize("flaw", ["none", "dropout", "batch_norm"])
def test_a_sum_is_no_mistake(flaw: str, tmp_path: Path) -> None:
    outcome = run(tmp_path / "run", *REHEARSED, "--model.flaw", flaw).done()
    assert "warning: the loss" not in outcome.output
    assert not any("the loss depends" in warning for warning in outcome.record["warnings"])


@pytest.mark.parametrize(
    ("words", "warning"),
    [
        (
            ["--batch.size", "5000"],
            "the global batch (5,000 samples, batch.size) is larger than the training data (16)",
        ),
        (["--optim.warmup", "500"], "the warm-up takes 500 steps (optim.warmup) and the run 12"),
        (["--threads", "64"], "1 process(es) with 64 thread(s) each share"),
    ],
)
def test_settings_that_look_like_a_mistake(words: list[str], warning: str, tmp_path: Path) -> None:
    given = ["--epochs", "3", *([] if "--threads" in words else ["--threads", "1"]), *words]
    outcome = run_here(Line, lambda config: line(), given, tmp_path / "run").done()
    outcome.says(f"  warning: {warning}")
    assert len(outcome.record["warnings"]) == 1


def test_more_processes_than_cores(tmp_path: Path) -> None:
    """Two processes that may use one core."""
    usable = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(usable)})
    try:
        done = launch(TINY, "--output", str(tmp_path / "run"), "--epochs", "0.2")
    finally:
        os.sched_setaffinity(0, usable)
    assert "warning: 2 process(es) with 1 thread(s) each share 1 usable core(s)" in done.stdout


def test_a_model_that_is_worse_than_the_baseline_gives_a_warning(tmp_path: Path) -> None:
    def wrong(config: Any) -> Any:
        return replace(task(config), predict=lambda model, batch: 1 - batch["labels"])

    warning = "the model is worse than the trivial baseline in accuracy (0.0000 against "
    short = ("--steps", "1", "--epochs", "null")
    outcome = run(tmp_path / "wrong", *short, build=wrong).done()
    outcome.says(f"warning: {warning}")
    assert outcome.record["warnings"][-1].startswith(warning)
    assert (
        warning
        not in run(tmp_path / "right", *short, build=lambda config: replace(wrong(config), baseline=None)).output
    )
    assert worse_than({"loss": 1.0, "accuracy": 0.5}, {"loss": 2.0, "accuracy": 0.4, "f1": 0.1}) is not None
    assert worse_than({"loss": 2.0, "accuracy": 0.5}, {"loss": 1.0, "accuracy": 0.5}) is None
    assert "in loss (2.0000 against 1.0000); look" in str(worse_than({"loss": 1.0}, {"loss": 2.0}))
    # That a reward falls is what is wanted, or it is not; and an error rate is the better the lower.
    rewards = {"preference_accuracy": 0.9, "reward_chosen": -0.5, "reward_rejected": -1.9, "margin": 1.4}
    assert worse_than({**dict.fromkeys(rewards, 0.0), "preference_accuracy": 0.5}, rewards) is None
    assert worse_than({"wer": 1.0, "mse": 2.0}, {"wer": 0.1, "mse": 0.5}) is None
    for name in ("macro_f1", "recall@5", "rougeL", "f1_person", "exact_match"):
        assert worse_than({name: 0.5}, {name: 0.4}) is not None


def test_a_loss_that_compares_each_prediction_with_all_targets_is_told(tmp_path: Path) -> None:
    """The forgotten squeeze: torch broadcasts (samples, 1) against (samples), and a model learns nothing."""

    def loss(model: torch.nn.Module, batch: Any) -> torch.Tensor:
        return torch.nn.functional.mse_loss(model(batch["x"]), batch["y"].squeeze(-1), reduction="sum")

    outcome = run_here(Line, lambda config: line(loss=loss), REHEARSED, tmp_path / "run").done()
    outcome.says("compares tensors of different shapes", "give both the same shape")


def test_a_batch_without_labels_leads_to_the_references(tmp_path: Path) -> None:
    def build(config: Line) -> Task:
        return line(evaluate=Points(), predict=lambda model, batch: model(batch["x"]), metrics=[regression_errors])

    outcome = run_here(Line, build, REHEARSED, tmp_path / "run")
    outcome.told("has no 'labels' to hold the predictions against, it has x, y", "Task.references")


def test_metrics_without_predictions_are_refused(tmp_path: Path) -> None:
    def build(config: Line) -> Task:
        return line(evaluate=Points(), metrics=[regression_errors])

    run_here(Line, build, REHEARSED, tmp_path / "run").told("metrics and no `predict`")


def test_a_metric_that_hides_another_is_refused_at_once(tmp_path: Path) -> None:
    """Not after an evaluation of all samples, as where a few say nothing."""
    seen: list[int] = []

    def loss(predictions: Any, references: Any) -> dict[str, float]:
        seen.append(len(references))
        return {"loss": 0.0}

    def build(config: Line) -> Task:
        return line(
            evaluate=Points(),
            predict=lambda model, batch: model(batch["x"]),
            references=lambda batch: batch["y"],
            metrics=[loss],
        )

    run_here(Line, build, REHEARSED, tmp_path / "run").told("the metric loss returns 'loss'")
    assert seen == [4]


def test_a_mean_that_torch_broadcasts_is_refused_all_the_same(tmp_path: Path) -> None:
    def loss(model: torch.nn.Module, batch: Any) -> torch.Tensor:
        return F.mse_loss(model(batch["x"]), batch["y"].squeeze(-1))

    run_here(Line, lambda config: line(loss=loss), REHEARSED, tmp_path / "run").told("the task's loss is a mean")
