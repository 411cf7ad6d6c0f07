"""Checkpoints in the background: of the state at the call, one at a time, and old ones go only when it is safe."""

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from resuming import is_valid, left_half_done, refusing, run, steps_sealed
from safetensors.torch import load_file
from tiny_recipe import Tiny, task

from toolkit.checkpoint import writer as saving
from toolkit.checkpoint.format import read_manifest, read_state
from toolkit.checkpoint.writer import Content, Saver
from toolkit.errors import UserError
from toolkit.output.ledger import Ledger
from toolkit.output.run_folder import RunFolder, sealed_folders, step_of
from toolkit.task import Task

LONG = 30.0


@pytest.fixture
def saver(tmp_path: Path) -> Iterator[Saver]:
    """A saver in a new run folder."""
    ledger = Ledger(tmp_path / "ledger.jsonl")
    made = Saver(RunFolder(tmp_path), ledger, keep=2)
    yield made
    made.wait()
    ledger.close()


def content(tensor: torch.Tensor, best: int | None = None) -> Callable[[], Content]:
    state = {"best": None if best is None else {"step": best, "value": 0.0}}
    return lambda: Content(0.5, {"weights.safetensors": {"w": tensor}}, state)


def weights_in(saver: Saver, step: int) -> list[float]:
    loaded: list[float] = load_file(saver.folder.checkpoints / f"step-{step:06d}" / "weights.safetensors")["w"].tolist()
    return loaded


class Gate:
    """Holds every writing of a checkpoint until it is opened, and counts how many are being written."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open, self.begun = threading.Event(), threading.Event()
        self.writing = self.most = 0
        write = saving.write_checkpoint

        def held(*arguments: Any) -> Any:
            self.writing += 1
            self.most = max(self.most, self.writing)
            self.begun.set()
            assert self.open.wait(LONG)
            try:
                return write(*arguments)
            finally:
                self.writing -= 1

        monkeypatch.setattr(saving, "write_checkpoint", held)


def test_training_goes_on_while_the_moment_it_was_asked_for_is_written(
    saver: Saver, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, tensor = Gate(monkeypatch), torch.tensor([1.0, 2.0])
    saver.save(1, content(tensor))
    assert gate.begun.wait(LONG)
    # This thread has been let go: it changes the weights, and nothing is sealed yet.
    tensor.zero_()
    assert saver.newest is None
    assert sealed_folders(saver.folder.checkpoints) == []
    gate.open.set()
    saver.wait()
    assert weights_in(saver, 1) == [1.0, 2.0]
    assert (saver.newest, saver.folder.record()["step"]) == (1, 1)


def test_one_is_written_at_a_time_and_the_wait_is_counted(saver: Saver, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, tensor = Gate(monkeypatch), torch.ones(2)
    saver.save(1, content(tensor))
    copying = saver.take_time()
    assert gate.begun.wait(LONG)
    threading.Timer(0.2, gate.open.set).start()
    for step in (2, 3):
        tensor.fill_(step)
        saver.save(step, content(tensor))
    waited = saver.take_time()
    assert saver.take_time() == 0.0
    saver.wait()
    assert gate.most == 1
    assert [weights_in(saver, step) for step in (2, 3)] == [[2, 2], [3, 3]]
    # From the first save to the opening of the gate, less what went on between.
    assert copying < 0.2 <= waited + copying
    assert waited >= 0.1


def test_the_copy_goes_into_the_memory_of_the_last_one(saver: Saver) -> None:
    places = set()
    for step in (1, 2, 3):
        saver.save(step, content(torch.full((5,), float(step))))
        saver.wait()
        places.add(saver.staging_buffers["weights.safetensors"].content.data_ptr())
    assert len(places) == 1
    assert weights_in(saver, 3) == [3.0] * 5


def test_each_checkpoint_names_the_seal_of_the_one_before(saver: Saver) -> None:
    saver.previous = "of the run before"
    seals = [saver.previous]
    for step in (1, 2, 3):
        saver.save(step, content(torch.ones(1)))
        saver.wait()
        manifest = read_manifest(saver.folder.checkpoints / f"step-{step:06d}")
        assert manifest.previous == seals[-1]
        seals.append(manifest.seal)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO])
@pytest.mark.parametrize("part", ["step-000002.partial/weights", "step-000002.partial/state", "ledger.jsonl"])
def test_what_could_not_be_written_is_kept_for_all_processes_to_hear(saver: Saver, part: str, code: int) -> None:
    saver.save(1, content(torch.ones(1)))
    saver.wait()
    with refusing(part, code):
        saver.save(2, content(torch.ones(1)))
        saver.wait()
    assert isinstance(saver.failure, UserError)
    problem = str(saver.failure)
    assert f"the checkpoint of step 2 can't be written to {saver.folder.checkpoints} ({os.strerror(code)})" in problem
    assert "the checkpoint of step 1 is sealed" in problem
    # Who has failed does not try again: the run ends.
    saver.save(3, content(torch.ones(1)))
    saver.wait()
    assert steps_sealed(saver.folder.path) == [1]
    assert left_half_done(saver.folder.path) == []


def test_a_checkpoint_that_is_sealed_is_not_said_to_have_failed(saver: Saver) -> None:
    """Where the disk is full one file later, at run.json."""
    with refusing("run.json", errno.ENOSPC):
        saver.save(1, content(torch.ones(1)))
        saver.wait()
    assert steps_sealed(saver.folder.path) == [1]
    assert isinstance(saver.failure, UserError)
    problem = str(saver.failure)
    assert "No space left on device" in problem
    assert "step 1 is sealed" in problem
    assert "step 1 can't be written" not in problem
    assert left_half_done(saver.folder.path) == []


def test_a_defect_while_writing_is_kept_as_one(saver: Saver, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(saving, "write_checkpoint", fail)
    saver.save(1, content(torch.ones(1)))
    saver.wait()
    assert isinstance(saver.failure, ZeroDivisionError)


def scored(values: list[float]) -> Callable[[Tiny], Task]:
    """Return a task whose evaluations come to these scores."""
    coming = iter(values)

    def score(predictions: Any, references: Any) -> dict[str, float]:
        return {"score": next(coming, 0.0)}  # the best one is evaluated once more in the end

    return lambda config: replace(task(config), metrics=[score], baseline=None)


@contextmanager
def slow_disk_watched(parent: Path, keep: int, scores: dict[int, float]) -> Iterator[list[str]]:
    """Make every checkpoint take long to write, and look at each that is deleted; yields what was wrong."""
    wrong: list[str] = []
    write, rename = saving.write_checkpoint, Path.rename

    def slow(*arguments: Any) -> Any:
        # As long as an evaluation and some steps take.
        time.sleep(0.03)
        return write(*arguments)

    def best_known_to(checkpoint: Path) -> int | None:
        """Return the best for who goes on from here; an evaluation that was pending is done again."""
        state = read_state(checkpoint)
        best: int | None = state["best"] and state["best"]["step"]
        done: int = state["step"]
        return done if state["pending"] and (best is None or scores[done] > scores[best]) else best

    def watched(path: Path, target: Path) -> Path:
        if str(target).endswith(".retired"):
            left = [folder for folder in sealed_folders(parent) if folder != path and is_valid(folder)]
            newer = [folder for folder in left if step_of(folder) > step_of(path)]
            if len(newer) < keep:
                wrong.append(f"{path.name} goes while only {len(newer)} newer ones are sealed")
            if left and best_known_to(left[0]) == step_of(path):
                wrong.append(f"{path.name} goes, which is the best for who goes on from {left[0].name}")
        return rename(path, target)

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(saving, "write_checkpoint", slow)
        monkeypatch.setattr(Path, "rename", watched)
        yield wrong


@settings(max_examples=12, deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 3), min_size=12, max_size=12), st.integers(1, 5), st.integers(1, 4), st.integers(1, 3))
# The best so far is step 3; step 6 is better and not due, and its evaluation ends while the checkpoint of step 5 is
# written.
@example([1, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], 5, 3, 1)
@example([3, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0], 1, 1, 1)
@example([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11], 1, 1, 3)
def test_what_is_deleted_is_neither_the_best_nor_needed(
    tmp_path_factory: pytest.TempPathFactory, scores: list[int], every: int, evaluate: int, keep: int
) -> None:
    """At every deletion whoever is killed right then finds the newest checkpoints and the best that they know of."""
    folder = tmp_path_factory.mktemp("retention") / "run"
    cadence = ["--checkpoint.every", str(every), "--evaluate.every", str(evaluate), "--checkpoint.keep", str(keep)]
    evaluated = [step for step in range(1, 13) if step % evaluate == 0 or step == 12]
    by_step = {step: float(score) for step, score in zip(evaluated, scores, strict=False)}
    with slow_disk_watched(folder / "checkpoints", keep, by_step) as wrong:
        run(folder, *cadence, "--checkpoint.best", "highest score", build=scored(list(by_step.values()))).done()
    assert wrong == []
    improving = [step for step in evaluated if all(by_step[step] > by_step[s] for s in evaluated if s < step)]
    saved = sorted({*improving, *(step for step in range(1, 13) if step % every == 0), 12})
    assert sorted(steps_sealed(folder)) == sorted({*saved[-keep:], improving[-1]})
    assert left_half_done(folder) == []
