"""A run that was stopped goes on with the same command to the numbers of one that was left alone, bit for bit."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from resuming import (
    Build,
    acting,
    copy_of,
    left_half_done,
    numbers,
    rows_of,
    run,
    steps_sealed,
    stopped,
    stopping,
    undisturbed,
)
from safetensors.torch import load_file, save_file
from tiny_recipe import Network, Tiny, task
from trial import state_of

from toolkit.checkpoint.compatibility import changed_settings
from toolkit.checkpoint.format import inspect
from toolkit.checkpoint.resume import begun_from_scratch
from toolkit.config.yaml import as_mapping
from toolkit.distributed.launch import agent
from toolkit.output.run_folder import folder_name
from toolkit.task import Batch, Task

# Two epochs of six steps; checkpoints and evaluations at other steps than the ends of epochs.
OFTEN = ("--checkpoint.every", "5", "--evaluate.every", "4", "--checkpoint.keep", "9")

Stop = tuple[str, int]


def arguments_of(**settings: Any) -> list[str]:
    """Return settings as they are typed; an underscore stands for the dot."""
    return [word for key, value in settings.items() for word in (f"--{key.replace('_', '.')}", str(value))]


stops = st.lists(
    st.one_of(
        st.tuples(st.just("training"), st.integers(1, 9)),
        st.tuples(st.just("evaluating"), st.sampled_from([1, 4, 5, 6, 10])),
        st.just(("before", 0)),
    ),
    min_size=1,
    max_size=3,
)
numeric = st.fixed_dictionaries(
    {
        "optim_name": st.sampled_from(["adamw", "sgd"]),
        "model_flaw": st.sampled_from(["none", "dropout"]),
        "batch_micro": st.sampled_from(["null", 3]),
        "evaluate_every": st.sampled_from(["null", 5, 1]),
    }
)
cadence = st.fixed_dictionaries(
    {"checkpoint_every": st.sampled_from(["null", 1, 4, 100]), "checkpoint_keep": st.integers(1, 2)}
)
PLAIN = {"optim_name": "adamw", "model_flaw": "dropout", "batch_micro": "null", "evaluate_every": "null"}
RARELY = {"checkpoint_every": 100, "checkpoint_keep": 1}


@settings(max_examples=14, deadline=None, derandomize=True)
@given(numeric, cadence, stops)
# Before the first step, twice; at the edge of the epoch; at the last step; in an evaluation, and at its last batch.
@example(PLAIN, RARELY, [("before", 0), ("before", 0), ("training", 1)])
@example(PLAIN, {"checkpoint_every": "null", "checkpoint_keep": 1}, [("training", 7), ("training", 7)])
@example({**PLAIN, "evaluate_every": 5}, RARELY, [("training", 13), ("evaluating", 1), ("evaluating", 3)])
@example(PLAIN, {"checkpoint_every": "null", "checkpoint_keep": 1}, [("evaluating", 5), ("evaluating", 2)])
def test_a_run_that_is_stopped_anywhere_comes_to_the_same_numbers(
    tmp_path_factory: pytest.TempPathFactory, numeric: dict[str, Any], cadence: dict[str, Any], stops: list[Stop]
) -> None:
    folder, chosen = tmp_path_factory.mktemp("stopped") / "run", arguments_of(**numeric, **cadence)
    starts, steps = 0, [0]
    for kind, number in stops:
        build: Build = task
        if kind == "before":
            folder.mkdir(exist_ok=True)
            (folder / "STOP").touch()
        else:
            build = stopping(folder, **{kind: number})
        outcome = run(folder, *chosen, build=build)
        starts += 1
        if outcome.code == 0:
            break
        assert (outcome.code, outcome.record["status"], outcome.record["reason"]) == (75, "preempted", "the file STOP")
        assert outcome.record["step"] == steps_sealed(folder)[0] >= steps[-1]
        assert not (folder / "STOP").exists()
        steps.append(outcome.record["step"])
        # What was written of the ledger is the beginning of what an undisturbed run writes.
        rows = rows_of(folder / "ledger.jsonl")
        assert rows == undisturbed(*arguments_of(**numeric)).rows[: len(rows)]
        assert len(rows) in (steps[-1], steps[-1] - 1)
    else:
        outcome = run(folder, *chosen).done()
        starts += 1
    assert numbers(folder) == undisturbed(*arguments_of(**numeric))
    record = outcome.record
    assert (record["status"], record["step"], record["repeated"]) == ("finished", 12, 0)
    assert [start["first_step"] for start in record["topology"]] == [step + 1 for step in steps[:starts]]
    assert left_half_done(folder) == []


@pytest.fixture(scope="module")
def paused(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run with checkpoints of steps 4, 5 and 7, at which it was stopped; take a copy to change it."""
    return stopped(tmp_path_factory.mktemp("paused") / "run", 7, *OFTEN)


def test_who_stops_a_run_is_told_where_it_stands_and_how_it_goes_on(paused: Path, tmp_path: Path) -> None:
    assert steps_sealed(paused) == [7, 5, 4]
    folder = tmp_path / "run"
    stop = run(folder, *OFTEN, build=stopping(folder, training=8))
    stop.says(
        "stopped on request (the file STOP) after step 7, which has a sealed checkpoint; the same command goes on"
    )
    assert "Traceback" not in stop.errors
    again = run(folder, *OFTEN).done()
    again.says(f"going on after step 7, from {folder / 'checkpoints' / 'step-000007'}", "7 are done, 5 are left")
    again.says("trained 5 steps in")
    assert numbers(folder) == undisturbed("--evaluate.every", "4")
    # It is finished now, and the same command says so.
    run(folder, *OFTEN).done().says("this run is finished; nothing was trained again")


def die() -> None:
    raise ZeroDivisionError("a defect of the recipe")


def test_a_run_that_died_repeats_what_was_not_sealed_and_counts_it(tmp_path: Path) -> None:
    folder, chosen = tmp_path / "run", ("--checkpoint.every", "5", "--evaluate.every", "12")
    died = run(folder, *chosen, build=acting(die, training=10))
    assert (died.code, died.record["status"], died.record["step"]) == (1, "failed", 5)
    died.says("ZeroDivisionError: a defect of the recipe")
    written = len(rows_of(folder / "ledger.jsonl"))
    assert written > 5
    again = run(folder, *chosen).done().says("going on after step 5")
    assert [start["first_step"] for start in again.record["topology"]] == [1, 6]
    assert again.record["repeated"] == written - 5
    assert numbers(folder) == undisturbed("--evaluate.every", "12")


def test_a_run_that_died_before_its_first_checkpoint_begins_again(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert run(folder, "--checkpoint.every", "100", build=acting(die, training=5)).code == 1
    written = len(rows_of(folder / "ledger.jsonl"))
    again = run(folder, "--checkpoint.every", "100").done()
    assert again.record["repeated"] == written > 0
    assert numbers(folder) == undisturbed()


def test_run_json_says_where_a_run_stands(tmp_path: Path) -> None:
    folder, seen = tmp_path / "run", []

    def look() -> None:
        seen.append(json.loads((folder / "run.json").read_text(encoding="utf-8")))

    run(folder, *OFTEN, build=acting(look, training=2)).done()
    (first,) = seen
    assert (first["status"], first["step"], first["total_steps"], first["metrics"]) == ("running", 0, 12, {})
    record = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    (start,) = record["topology"]
    assert (start["processes"], start["device"], start["precision"], start["threads"]) == (1, "cpu", "no", 1)
    assert (record["status"], record["step"], record["epoch"], record["resumed_from"]) == ("finished", 12, 2.0, None)
    assert record["metrics"] == rows_of(folder / "ledger.jsonl")[-1]["evaluation"]
    assert record["samples"] == {"train": 45, "evaluate": 23}
    assert record["ledger"]["bytes"] == (folder / "ledger.jsonl").stat().st_size


def test_never_sets_aside_what_was_done_and_begins_again(paused: Path, tmp_path: Path) -> None:
    folder = copy_of(paused, tmp_path / "run")
    before = state_of(folder)
    outcome = run(folder, *OFTEN, "--resume", "never").done().says("trained 12 steps in")
    (previous,) = (folder / "former").iterdir()
    outcome.says(f"what this folder held of the run so far was moved to {previous}")
    aside = state_of(previous)
    # The start itself stands in run.json: it moves the rest.
    assert {name: aside[name] for name in aside if name != "run.json"} == {
        name: before[name] for name in aside if name != "run.json"
    }
    assert {name.partition("/")[0] for name in aside} == {"run.json", "config.yaml", "ledger.jsonl", "checkpoints"}
    assert steps_sealed(previous) == [7, 5, 4]
    assert numbers(folder) == undisturbed("--evaluate.every", "4")
    assert (outcome.record["resumed_from"], outcome.record["repeated"]) == (None, 0)
    assert [start["first_step"] for start in outcome.record["topology"]] == [1]
    # In a new folder there is nothing to move, and no message about it.
    fresh = run(tmp_path / "new", *OFTEN, "--resume", "never").done()
    assert "moved" not in fresh.output
    assert "former" not in fresh.files


def test_who_stops_a_run_that_never_goes_on_is_told_which_command_does(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    stop = run(folder, *OFTEN, "--resume", "never", build=stopping(folder, training=6))
    assert stop.code == 75
    assert "the same command goes on" not in stop.output
    stop.says("--resume auto")
    run(folder, *OFTEN, "--resume", "auto").done().says("going on after step 5")
    assert numbers(folder) == undisturbed("--evaluate.every", "4")


@pytest.mark.parametrize("written_as", ["absolute", "relative", "with a slash"])
def test_a_run_goes_back_to_an_older_checkpoint_of_its_own_and_then_on(
    written_as: str, paused: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same command again, with the same path, does not go back a second time."""
    folder = copy_of(paused, tmp_path / "run")
    checkpoint = folder / "checkpoints" / "step-000005"
    monkeypatch.chdir(folder)
    named = {"absolute": str(checkpoint), "relative": "checkpoints/step-000005", "with a slash": f"{checkpoint}/"}
    command = [*OFTEN, "--resume", named[written_as]]
    first = run(folder, *command, build=stopping(folder, training=5))
    first.says("going on after step 5", f"what this folder held of the run so far was moved to {folder / 'former'}")
    assert (first.code, first.record["step"], first.record["resumed_from"]) == (75, 9, str(checkpoint))
    (previous,) = (folder / "former").iterdir()
    # Step 4 is of this course too.
    assert (steps_sealed(previous), len(rows_of(previous / "ledger.jsonl"))) == ([7], 7)
    second = run(folder, *command).done().says("going on after step 9")
    assert "moved" not in second.output
    assert numbers(folder) == undisturbed("--evaluate.every", "4")
    assert [start["first_step"] for start in second.record["topology"]][-2:] == [6, 10]
    assert len(list((folder / "former").iterdir())) == 1


@pytest.mark.parametrize(("named", "step"), [("checkpoints/step-000005", 5), (".", 7)])
def test_a_new_run_goes_on_from_a_checkpoint_or_from_the_newest_of_another_run(
    named: str, step: int, paused: Path, tmp_path: Path
) -> None:
    """Its ledger begins as a copy of the other one, in which nothing is changed."""
    before = state_of(paused)
    command = [*OFTEN, "--resume", str(paused / named)]
    outcome = run(tmp_path / "run", *command).done()
    outcome.says(f"going on after step {step}, from {paused / 'checkpoints' / folder_name(step)}")
    assert numbers(tmp_path / "run") == undisturbed("--evaluate.every", "4")
    assert state_of(paused) == before
    assert outcome.record["resumed_from"] == str((paused / named).resolve())
    assert min(steps_sealed(tmp_path / "run")) > step


def test_a_checkpoint_goes_on_without_the_ledger_that_it_was_written_with(paused: Path, tmp_path: Path) -> None:
    checkpoint = copy_of(paused / "checkpoints" / "step-000005", tmp_path / "backup" / "of mine" / "step-000005")
    folder = tmp_path / "run"
    command = [*OFTEN, "--resume", str(checkpoint)]
    first = run(folder, *command, build=stopping(folder, training=3))
    first.says("the ledger of this run begins at step 6", "going on after step 5")
    assert first.code == 75
    run(folder, *command).done().says("going on after step 7")
    whole = undisturbed("--evaluate.every", "4")
    assert (
        load_file(folder / "model" / "model.safetensors")["outer.weight"].numpy().tobytes()
        == whole.weights["outer.weight"]
    )
    # The chain goes on where that of the lost ledger ended.
    assert rows_of(folder / "ledger.jsonl", before=inspect(checkpoint).ledger.chain) == whole.rows[5:]


@pytest.mark.parametrize("again", ["the same path", "auto"])
def test_a_run_that_died_before_a_checkpoint_of_its_own_goes_on_from_the_other_run_again(
    again: str, paused: Path, tmp_path: Path
) -> None:
    folder, command = tmp_path / "run", ["--checkpoint.every", "100", "--evaluate.every", "12"]
    named = ["--resume", str(paused / "checkpoints" / "step-000005")]
    assert run(folder, *command, *named, build=acting(die, training=4)).code == 1
    assert not (folder / "checkpoints").exists()
    outcome = run(folder, *command, *(named if again == "the same path" else [])).done()
    outcome.says("going on after step 5")
    assert numbers(folder).weights == undisturbed().weights
    assert [row["step"] for row in rows_of(folder / "ledger.jsonl")] == list(range(1, 13))


@pytest.mark.parametrize(("rule", "sign"), [("lowest loss", -1), ("highest accuracy", 1), ("highest loss", 1)])
def test_the_best_is_kept_also_where_it_was_before_a_stop(rule: str, sign: int, tmp_path: Path) -> None:
    """Of equal ones the first."""
    folder, metric = tmp_path / "run", rule.split()[1]
    command = ["--checkpoint.every", "5", "--evaluate.every", "2", "--checkpoint.keep", "1", "--checkpoint.best", rule]
    command += ["--export", "last"]
    assert run(folder, *command, build=stopping(folder, training=8)).code == 75
    values = {row["step"]: row["evaluation"][metric] for row in undisturbed("--evaluate.every", "2").rows[1::2]}
    assert steps_sealed(folder) == sorted({7, best_of(values, sign, 7)}, reverse=True)
    run(folder, *command).done()
    assert steps_sealed(folder) == sorted({12, best_of(values, sign, 12)}, reverse=True)
    assert numbers(folder) == undisturbed("--evaluate.every", "2")


def best_of(values: dict[int, float], sign: int, done: int) -> int:
    return max((step for step in values if step <= done), key=lambda step: (sign * values[step], -step))


def test_another_rule_for_the_best_begins_to_judge_anew(tmp_path: Path) -> None:
    """A loss of 0.9 is no accuracy that has to be beaten."""
    folder, command = tmp_path / "run", ["--checkpoint.every", "5", "--evaluate.every", "2", "--checkpoint.keep", "1"]
    assert run(folder, *command, build=stopping(folder, training=6)).code == 75
    run(folder, *command, "--checkpoint.best", "highest accuracy").done()
    rows = undisturbed("--evaluate.every", "2").rows
    values = {row["step"]: row["evaluation"]["accuracy"] for row in rows[1::2] if row["step"] > 5}
    assert steps_sealed(folder) == sorted({12, best_of(values, 1, 12)}, reverse=True)


def test_a_metric_that_there_is_not_stops_the_run_which_goes_on_after_a_correction(tmp_path: Path) -> None:
    folder, command = tmp_path / "run", ["--checkpoint.every", "2", "--evaluate.every", "4", "--export", "last"]
    outcome = run(folder, *command, "--checkpoint.best", "highest acuracy").told(
        "checkpoint.best is 'highest acuracy', but the evaluation gives loss, accuracy; name one of these"
    )
    assert outcome.record["status"] == "failed"
    assert steps_sealed(folder)[0] == 4
    corrected = run(folder, *command, "--checkpoint.best", "highest accuracy").done().says("going on after step 4")
    assert corrected.record["repeated"] == 0
    assert numbers(folder) == undisturbed("--evaluate.every", "4")


def test_what_changes_no_number_may_change_at_every_start(tmp_path: Path) -> None:
    """Other cadences, micro-batches and limits; with other micro-batches the weights are the same to rounding."""
    folder = stopped(tmp_path / "run", 5, *OFTEN)
    other = {
        "checkpoint_every": 3, "checkpoint_keep": 1, "checkpoint_best": "highest accuracy", "checkpoint_grace": 30,
        "evaluate_every": 3, "evaluate_show": 3, "timeout_rendezvous": 5, "timeout_silence": 5, "timeout_progress": 5,
        "optim_nonfinite": "skip", "batch_eval": 23,
    }  # fmt: skip
    assert run(folder, *arguments_of(**other), build=stopping(folder, training=4)).code == 75
    more = ("--batch.balance", "true", "--batch.reduce_each", "true")
    assert run(folder, *arguments_of(batch_micro=2), *more).done().record["status"] == "finished"
    settings = (folder / "config.yaml").read_text(encoding="utf-8")
    assert "micro: 2" in settings
    assert "every: 3" not in settings
    expected, rows = undisturbed(), rows_of(folder / "ledger.jsonl")
    assert [row["fingerprint"] for row in rows] == [row["fingerprint"] for row in expected.rows]
    assert [row["loss"] for row in rows] == pytest.approx([row["loss"] for row in expected.rows], rel=1e-12)
    for name, tensor in load_file(folder / "model" / "model.safetensors").items():
        wanted = np.frombuffer(expected.weights[name]).reshape(tensor.shape)
        assert np.linalg.norm(tensor.numpy() - wanted) <= 1e-12 * np.linalg.norm(wanted)


def test_a_run_goes_on_that_was_begun_when_a_setting_had_another_name(tmp_path: Path) -> None:
    folder = stopped(tmp_path / "run", 5, *OFTEN)
    settings = folder / "config.yaml"
    text = settings.read_text(encoding="utf-8")
    assert "  rendezvous: 60.0\n" in text
    settings.write_text(text.replace("rendezvous:", "meeting:"), encoding="utf-8")
    run(folder, *OFTEN).done().says("going on after step 5")
    assert numbers(folder) == undisturbed("--evaluate.every", "4")
    # A checkpoint holds the settings too.
    before = as_mapping(Tiny())
    before["timeout"]["meeting"] = before["timeout"].pop("rendezvous")
    assert changed_settings(Tiny(), before, None).refused == []


def transposed(config: Tiny) -> Task:
    """Return the task with a weight that lies in memory column by column."""

    def model(runtime: Any) -> torch.nn.Module:
        network = Network("none")
        network.inner.weight = torch.nn.Parameter(network.inner.weight.detach().t().contiguous().t())
        assert not network.inner.weight.is_contiguous()
        return network

    def export(module: torch.nn.Module, folder: Path, card: Any) -> None:
        folder.mkdir()
        save_file(
            {name: tensor.contiguous() for name, tensor in module.state_dict().items()}, folder / "model.safetensors"
        )

    return replace(task(config), model=model, export=export)


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_averages_come_back_as_their_parameter_lies_in_memory(optimizer: str, tmp_path: Path) -> None:
    """Fused optimizers take no notice of strides."""
    command = [*OFTEN, "--optim.name", optimizer]
    whole = run(tmp_path / "whole", *command, build=transposed).done()
    folder = tmp_path / "run"
    assert run(folder, *command, build=stopping(folder, training=8, build=transposed)).code == 75
    run(folder, *command, build=transposed).done().says("going on after step 7")
    assert numbers(folder) == numbers(whole.folder)


def test_a_step_that_was_left_out_is_still_listed_after_a_death(tmp_path: Path) -> None:
    folder, command = tmp_path / "run", [*OFTEN, "--optim.nonfinite", "skip"]

    def broken(dies: bool) -> Build:
        calls = [0]

        def built(config: Tiny) -> Task:
            made = task(config)

            def loss(model: Any, batch: Batch) -> torch.Tensor:
                calls[0] += torch.is_grad_enabled()
                if dies and calls[0] == 8:
                    raise ZeroDivisionError
                # The first call is the trial before the first step.
                return made.loss(model, batch) * (float("nan") if dies and calls[0] == 3 else 1.0)

            return replace(made, loss=loss)

        return built

    assert run(folder, *command, build=broken(dies=True)).code == 1
    outcome = run(folder, *command, build=broken(dies=False)).done().says("going on after step 5")
    assert outcome.record["skipped"] == 1
    (entry,) = outcome.record["nonfinite"]
    assert (entry["step"], len(entry["samples"])) == (2, 8)


def test_a_checkpoint_of_its_own_that_waits_for_its_evaluation_by_another_spelling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["--checkpoint.every", "5", "--evaluate.every", "5", "--checkpoint.keep", "9"]
    folder = stopped(tmp_path / "run", 7, *command)
    monkeypatch.chdir(tmp_path)
    run(folder, *command, "--resume", "run/checkpoints/step-000005").done().says("going on after step 5")
    assert numbers(folder) == undisturbed("--evaluate.every", "5")


def test_a_finished_run_whose_metric_is_no_number_is_reported(tmp_path: Path) -> None:
    def no_number(predictions: Any, references: Any) -> dict[str, float]:
        return {"score": float("nan")}

    def build(config: Tiny) -> Task:
        return replace(task(config), metrics=[no_number], baseline=None)

    assert run(tmp_path / "run", build=build).done().record["metrics"]["score"] is None
    run(tmp_path / "run", build=build).done().says("this run is finished", "undefined")


def test_an_agent_that_starts_never_again_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that began from scratch once does not do so at each restart."""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "one")
    # A clock that is set meanwhile makes no other agent of it.
    created = iter(range(100))
    monkeypatch.setattr(psutil.Process, "create_time", lambda process: next(created))
    assert agent() == agent()
    mine = agent()
    assert mine is not None
    for count, starter, goes_on in (("1", mine, True), ("0", mine, False), ("1", "another", False), ("1", None, False)):
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", count)
        assert begun_from_scratch({"started_by": starter}) is goes_on
