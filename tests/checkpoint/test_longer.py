"""A finished run that is made longer, replaced, or named by another path."""

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import Classify
from resuming import contents, numbers, run, stopped, undisturbed
from trial import state_of

from toolkit.verify.check import verify

# The rates of the steps done are the same for any length.
STEADY = ("--optim.schedule", "constant", "--evaluate.every", "6")


def record_of(folder: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    return record


@pytest.mark.parametrize("length", [("--epochs", "4"), ("--steps", "24", "--epochs", "null"), ("--epochs", "2.5")])
def test_a_finished_run_goes_on_to_the_numbers_of_one_that_was_longer_from_the_start(
    length: tuple[str, ...], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    run(folder, *STEADY, "--epochs", "2").done()
    longer = run(folder, *STEADY, *length).done().says("going on after step 12", "trained ")
    assert "nothing was trained again" not in longer.output
    assert numbers(folder) == undisturbed(*STEADY, *length)
    assert [start["first_step"] for start in record_of(folder)["topology"]] == [1, 13]
    report = verify(folder)
    assert report.sound, str(report)
    # It is finished in its new length, and only in that.
    run(folder, *STEADY, *length).done().says("this run is finished; nothing was trained again")


def test_an_unfinished_run_may_become_shorter(tmp_path: Path) -> None:
    folder = stopped(tmp_path / "run", 7, *STEADY, "--epochs", "4")
    run(folder, *STEADY, "--epochs", "2").done()
    assert numbers(folder) == undisturbed(*STEADY, "--epochs", "2")
    assert verify(folder).sound


@pytest.mark.parametrize("done", ["finished", "stopped"])
@pytest.mark.parametrize("schedule", [("--optim.schedule", "linear"), ("--optim.schedule", "cosine"),
                                      ("--optim.schedule", "constant", "--optim.warmup", "0.25")])  # fmt: skip
def test_a_length_that_would_have_changed_the_rates_is_refused(
    schedule: tuple[str, ...], done: str, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    if done == "finished":
        run(folder, *schedule).done()
    else:
        stopped(folder, 5, *schedule)
    before = contents(folder)
    status = record_of(folder)["status"]
    run(folder, *schedule, "--epochs", "3").told(
        "the run was to take 12 steps and is now to take 18 (epochs, steps), and its learning rate depends on that",
        "--resume never",
        "--model.name <the run folder>/model",
    )
    assert contents(folder) == before
    assert record_of(folder)["status"] == ("finished" if done == "finished" else "refused")
    if done == "stopped":
        assert status == "preempted"
        run(folder, *schedule).done()
        assert numbers(folder) == undisturbed(*schedule)


def test_a_run_can_not_end_before_what_it_has_done(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run(folder, *STEADY).done()
    before = state_of(folder)
    run(folder, *STEADY, "--epochs", "1").told("the run has done 12 steps, and is now to take 6 in all")
    assert {**state_of(folder), "run.lock": None} == {**before, "run.lock": None}


def test_without_a_checkpoint_there_is_nothing_to_go_on_from(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run(folder, *STEADY, "--checkpoint.keep", "0").done()
    assert not [*(folder / "checkpoints").iterdir()]
    assert verify(folder).sound
    run(folder, *STEADY).done().says("this run is finished")
    run(folder, *STEADY, "--epochs", "3").told(
        "had a checkpoint of step 12, and there is none", "checkpoint.keep 0", "--resume never"
    )
    assert record_of(folder)["status"] == "finished"


def test_never_replaces_a_finished_run_whatever_differs(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run(folder, "--optim.lr", "0.01").done()
    before = state_of(folder)
    outcome = run(folder, "--seed", "3", "--batch.size", "5", "--resume", "never").done().says("trained 18 steps in")
    (previous,) = (folder / "former").iterdir()
    outcome.says(f"what this folder held of the run so far was moved to {previous}")
    assert numbers(folder) == undisturbed("--seed", "3", "--batch.size", "5")
    # The whole run is there, and can be looked at.
    kept = {name: file for name, file in state_of(previous).items() if name != "run.json"}
    assert kept == {name: file for name, file in before.items() if name not in ("run.json", "run.lock")}
    assert record_of(previous)["status"] == "finished"
    assert verify(previous).sound


def test_the_same_file_and_column_in_other_words_are_the_same_run(
    classify: Classify, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = classify("--steps", "3").done()
    trained = state_of(first.folder / "model")
    monkeypatch.chdir(table.parent)
    relative = classify("--steps", "3", train=table.name).done()
    relative.says("this run is finished; nothing was trained again")
    named = classify("--steps", "3", "--data.text", "text", "--data.label", "label", train=table.name).done()
    named.says("this run is finished, on the same data; nothing was trained again")
    assert state_of(first.folder / "model") == trained


def test_other_data_in_other_words_is_another_run(classify: Classify, table: Path, tmp_path: Path) -> None:
    first = classify("--steps", "3").done()
    before = contents(first.folder)
    copy, other = tmp_path / "copy.jsonl", tmp_path / "other.jsonl"
    copy.write_bytes(table.read_bytes())
    other.write_bytes(table.read_bytes().replace(b"red", b"blue", 1))
    classify("--steps", "3", train=copy).done().says("this run is finished, on the same data")
    classify("--steps", "3", train=other).told("the training data is not what it was when the run in")
    assert contents(first.folder) == before
    assert record_of(first.folder)["status"] == "finished"
