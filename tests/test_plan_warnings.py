"""Mistakes that are likely give a warning before the first step or at the end; a loss that breaks its rule is refused."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import Classify
from hypothesis import given
from hypothesis import strategies as st
from launching import TINY, launch
from line import Line, Points
from line import task as line
from resuming import Build, run
from tiny_recipe import task
from trial import run_here

from toolkit.data import overlap
from toolkit.data.overlap import Overlap, fingerprint_of, overlap_of
from toolkit.plan_warnings import worse_than
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


def points(count: int, first: int = 0) -> Points:
    class Some(Points):
        def __len__(self) -> int:
            return count

        def fetch(self, ids: Any) -> list[float]:
            return super().fetch([number + first for number in ids])

    return Some()


def overlapping(shared: int) -> Callable[[Line], Task]:
    """A task of ten evaluation samples, of which so many are training samples."""
    return lambda config: line(evaluate=points(10, first=16 - shared), units=lambda batch: len(batch["y"]))


@pytest.mark.parametrize("shared", [0, 3, 10])
def test_evaluation_samples_that_were_trained_on_are_counted(shared: int, tmp_path: Path) -> None:
    outcome = run_here(Line, overlapping(shared), ["--threads", "1", "--epochs", "1"], tmp_path / "run").done()
    warning = f"warning: {shared} of 10 evaluation samples ({shared / 10:.1%}) are in the training data too"
    assert (warning in outcome.output) == (shared > 0)


def test_the_same_file_for_training_and_evaluation_gives_a_warning(classify: Classify, table: Path) -> None:
    outcome = classify("--steps", "2", "--data.eval", table).done()
    outcome.says("warning: 40 of 40 evaluation samples (100.0%) are in the training data too")


values = st.recursive(
    st.one_of(st.integers(-9, 9), st.text(max_size=3), st.booleans(), st.floats(allow_nan=False)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from("abc"), inner, min_size=1)),
    max_leaves=8,
)


@given(values, values)
def test_fingerprints_are_equal_where_samples_are(one: Any, other: Any) -> None:
    def written(value: Any) -> str:
        return json.dumps(value, sort_keys=True)  # for Python 0 is equal to False, which no reader takes it for

    same = fingerprint_of({"x": one}) == fingerprint_of({"x": other})
    assert same or written(one) != written(other)
    assert not same or one == other


def test_fingerprints_leave_out_labels_and_know_arrays() -> None:
    assert fingerprint_of({"x": [1, 2], "label": 1}) == fingerprint_of({"x": [1, 2], "label": 2})
    long = np.arange(5000)
    changed = long.copy()
    changed[2500] = 0
    assert fingerprint_of({"x": long}) != fingerprint_of({"x": changed})
    assert fingerprint_of({"x": object()}) is None
    assert fingerprint_of({"label": 1}) is None
    assert overlap_of(points(16), points(10, 11)) == Overlap(5, 10, 16, True)


def test_sources_that_are_slow_to_read_are_compared_as_far_as_the_time_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock of the test's own; evaluation samples take at most half of the time, and what was read is spread."""
    clock = [0.0]
    monkeypatch.setattr(overlap, "monotonic", lambda: clock[0])

    def slow(source: Any, each: float) -> tuple[Any, list[int]]:
        read: list[int] = []
        fetch = source.fetch

        def fetched(ids: Any) -> list[float]:
            clock[0] += each * len(ids)
            read.extend(ids)
            return fetch(ids)

        source.fetch = fetched
        return source, read

    for each in (0.0001, 0.001, 0.01, 0.3):
        clock[0] = 0.0
        (train, trained), (evaluate, evaluated) = slow(points(50_000), each), slow(points(30_000), each)
        found = overlap_of(train, evaluate)
        assert clock[0] <= overlap.SECONDS + each
        assert (found.training, found.compared) == (len(trained), len(evaluated))
        assert len(evaluated) * each <= overlap.SECONDS / 2 + each
        assert len(set(trained)) == len(trained)
        assert not found.is_all
        for ids, count in ((trained, 50_000), (evaluated, 30_000)):
            parts, _ = np.histogram(ids, max(1, min(100, len(ids) // 4)), (0, count))
            assert max(parts) <= 2 * min(parts) + 1
    assert overlap_of(slow(points(100), 0.001)[0], slow(points(50), 0.001)[0]) == Overlap(50, 50, 100, True)


@given(st.integers(0, 3000), st.integers(1, 2000))
def test_the_spread_order_is_one_of_all_that_are_wanted(count: int, most: int) -> None:
    order = overlap.in_bisecting_order(count, most).tolist()
    assert len(order) == len(set(order)) == min(count, most)
    assert set(order) <= set(range(count))


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
