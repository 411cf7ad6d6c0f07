"""What would fail at the end of a run is told before its first step; what fails there all the same is done again
alone."""

import errno
import json
import os
import shutil
from collections import namedtuple
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from launching import TINY, launch
from resuming import Build, contents, numbers, run, undisturbed
from tiny_recipe import Tiny, task

from toolkit.rehearsal import end_of_run as rehearsal
from toolkit.task import Postprocessed, Task

REHEARSED = ("--rehearse", "true")


def failing(error: Exception) -> Callable[..., Any]:
    def fail(*arguments: Any, **more: Any) -> Any:
        raise error

    return fail


def with_task(**changes: Any) -> Build:
    return lambda config: replace(task(config), **changes)


def half_written(module: torch.nn.Module, folder: Path, results: Mapping[str, Any]) -> None:
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    raise ValueError("GenerationConfig is invalid:\n`temperature` is set")


EVALUATE = "to evaluate the model failed"
ENDS = {
    "the export": (with_task(export=half_written), "save the model failed: ValueError: GenerationConfig is invalid:"),
    "the disk": (with_task(export=failing(OSError(errno.EROFS, "read-only"))), "can't be written"),
    "a metric": (with_task(metrics=[failing(KeyError("f1"))]), f"{EVALUATE}: KeyError: 'f1' (test_rehearsal"),
    "a prediction": (with_task(predict=failing(IndexError("index 3"))), f"{EVALUATE}: IndexError: index 3"),
    "references": (with_task(references=lambda batch: batch["no such"]), f"{EVALUATE}: KeyError: 'no such'"),
    "predictions put together": (with_task(postprocess=failing(ValueError("windows"))), "failed: ValueError: windows"),
    "what is shown": (with_task(show=lambda *sample: {"text": {1, 2}}), f"{EVALUATE}: AttributeError"),
    "what follows from the loss": (with_task(from_loss=failing(OverflowError("math"))), "failed: OverflowError: math"),
    "the baseline": (
        with_task(baseline_scores=failing(ZeroDivisionError())),
        "failed: ZeroDivisionError (test_rehearsal",
    ),
    "scores": (with_task(show=lambda *sample: {}, scores=failing(TypeError("logits"))), "failed: TypeError: logits"),
    "details": (
        with_task(details=lambda predictions, references: {"matrix": torch.ones(2)}),
        "failed: TypeError: Object of type Tensor",
    ),
}  # fmt: skip


@pytest.mark.parametrize("end", ENDS)
def test_what_would_fail_at_the_end_is_told_before_the_first_step(end: str, tmp_path: Path) -> None:
    build, message = ENDS[end]
    run(tmp_path / "run", *REHEARSED, build=build).refused(message)


def test_a_task_that_needs_all_predictions_is_tried_with_all(tmp_path: Path) -> None:
    """Who puts windows together may count on each of them."""
    seen: list[int] = []

    def postprocess(predictions: Mapping[int, Any]) -> Postprocessed:
        seen.append(len(predictions))
        values = [predictions[number] for number in range(23)]
        return Postprocessed(values, [0] * 23)

    run(tmp_path / "run", *REHEARSED, build=with_task(postprocess=postprocess, baseline=None)).done()
    # A few, all, and then the evaluations of the run.
    assert seen == [4, 23, 23, 23]


def test_a_metric_that_there_is_not_can_not_be_the_best(tmp_path: Path) -> None:
    run(tmp_path / "run", *REHEARSED, "--checkpoint.best", "highest f1").refused(
        "checkpoint.best is 'highest f1', but the evaluation gives loss, accuracy; name one of these"
    )


Space = namedtuple("Space", "total used free")


@pytest.mark.parametrize(("free", "ends"), [(1500, "refused"), (6000, "warned"), (10**9, "silent")])
def test_a_disk_without_room_is_told(free: int, ends: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The weights take 1 kB, and a checkpoint of them with AdamW's averages 3 kB.
    monkeypatch.setattr(rehearsal.shutil, "disk_usage", lambda folder: Space(10**9, 0, free))
    outcome = run(tmp_path / "run", *REHEARSED, "--checkpoint.every", "2")
    if ends == "refused":
        outcome.refused("has 1.5 kB left, and the saved model (", "make room, or give another folder")
    else:
        outcome.done()
        assert ("the disk of the run folder has 6.0 kB left, and the run takes up to" in outcome.output) == (
            ends == "warned"
        )


def test_a_trial_changes_no_number(tmp_path: Path) -> None:
    """Not even where the export changes the model, as the one that merges adapters does."""

    def spoil(module: Any, folder: Path, results: Mapping[str, Any]) -> None:
        task(Tiny()).export(module, folder, results)  # type: ignore[misc]
        with torch.no_grad():
            module.inner.weight.zero_()

    def changing(change: Callable[[Any], object]) -> Build:
        def export(module: Any, folder: Path, results: Mapping[str, Any]) -> None:
            change(module)
            task(Tiny()).export(module, folder, results)  # type: ignore[misc]

        return with_task(export=export)

    changes: list[Callable[[Any], object]] = [lambda module: module.half(), lambda module: module.eval()]
    run(tmp_path / "one", *REHEARSED).done()
    run(tmp_path / "two", *REHEARSED, build=with_task(export=spoil)).done()
    assert numbers(tmp_path / "one") == numbers(tmp_path / "two") == undisturbed()
    for number, change in enumerate(changes):
        run(tmp_path / f"changed-{number}", *REHEARSED, build=changing(change)).done()
        assert numbers(tmp_path / f"changed-{number}").rows == undisturbed().rows


def needs_many(predictions: Any, references: Any) -> dict[str, float]:
    """Score like metrics that need samples of all classes."""
    return {"share": 1 / (len(references) > 4)}


def test_metrics_that_a_few_samples_say_nothing_of_are_tried_with_all(tmp_path: Path) -> None:
    outcome = run(tmp_path / "run", *REHEARSED, build=with_task(metrics=[needs_many])).done()
    assert outcome.record["metrics"]["share"] == 1


def test_an_export_may_ask_for_any_metric(tmp_path: Path) -> None:
    def export(module: Any, folder: Path, results: Mapping[str, Any]) -> None:
        folder.mkdir()
        (folder / "card.txt").write_text(f"{results['metrics']['accuracy']:.3f} {results['baseline']['accuracy']:.3f}")

    outcome = run(tmp_path / "run", *REHEARSED, build=with_task(export=export)).done()
    assert (
        (outcome.folder / "model" / "card.txt").read_text().startswith(f"{outcome.record['metrics']['accuracy']:.3f}")
    )


def test_what_fails_in_one_of_two_processes_is_told_once(tmp_path: Path) -> None:
    flags = ["--model.flaw", "metric", "--threads", "1", "--rehearse", "true"]
    done = launch(TINY, "--output", str(tmp_path / "run"), *flags)
    at_once = done.stderr.partition("Traceback (most recent call last):")[0]
    assert at_once.count(f"{EVALUATE}: KeyError") == 1
    assert "process 1:" not in at_once


def test_it_can_be_left_out(tmp_path: Path) -> None:
    """Then the same end is told when it comes, and nothing is lost."""
    outcome = run(tmp_path / "run", "--rehearse", "false", build=with_task(export=half_written))
    outcome.told("training and evaluation are done, and to save the model failed: ValueError", "the same command saves")
    assert (outcome.record["status"], outcome.record["code"]) == ("failed", 2)
    assert not [path for path in outcome.files if path.startswith("model")]
    before = contents(tmp_path / "run")
    again = run(tmp_path / "run", build=only_saving()).done().says("trained 0 steps", "accuracy")
    assert again.record["metrics"] == json.loads((tmp_path / "run" / "evaluation.json").read_text())["metrics"]
    assert numbers(tmp_path / "run") == undisturbed()
    after = contents(tmp_path / "run")
    changed = {name for name in before if name != "config.yaml" and after[name][0] != before[name][0]}
    assert not changed


def only_saving() -> Build:
    """Return a task that may neither train nor evaluate."""

    def build(config: Tiny) -> Task:
        made = task(config)

        def loss(model: Any, batch: Any) -> torch.Tensor:
            assert torch.is_grad_enabled(), "it evaluates again"
            raise AssertionError("it trains again")

        return replace(made, loss=loss)

    return build


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), MemoryError(), KeyboardInterrupt()]
)
def test_an_end_that_fails_late_is_done_again_alone(error: BaseException, tmp_path: Path) -> None:
    """What works with the first weights fails with the last ones."""
    calls = 0

    def build(config: Tiny) -> Task:
        made = task(config)

        def export(module: Any, folder: Path, results: Mapping[str, Any]) -> None:
            nonlocal calls
            calls += 1
            if calls == 2:
                raise error
            assert made.export is not None
            made.export(module, folder, results)

        return replace(made, export=export)

    first = run(tmp_path / "run", *REHEARSED, build=build)
    assert first.code != 0
    assert "model" not in first.files
    run(tmp_path / "run", build=lambda config: replace(only_saving()(config), export=task(config).export)).done()
    assert numbers(tmp_path / "run") == undisturbed()


def test_an_evaluation_that_could_not_be_written_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("toolkit.finish.write_evaluation", failing(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
        run(tmp_path / "run", *REHEARSED).told("make room or repair it, then start the same command again")
    run(tmp_path / "run").done()
    assert numbers(tmp_path / "run") == undisturbed()


def test_nothing_is_tried_twice(tmp_path: Path) -> None:
    """A run that goes on was tried when it began; and what a killed trial left behind is in nobody's way."""
    (tmp_path / "run" / "model.partial").mkdir(parents=True)
    (tmp_path / "run" / "model.partial" / "weights").write_text("half")
    run(tmp_path / "run", *REHEARSED, "--optim.schedule", "constant").done()
    shutil.rmtree(tmp_path / "run" / "model")
    run(tmp_path / "run", *REHEARSED, "--optim.schedule", "constant", "--epochs", "3").done()
    assert "model" in {path.name for path in (tmp_path / "run").iterdir()}
