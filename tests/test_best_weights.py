"""The weights that a run leaves behind are those of its best evaluation, on any number of processes and through stops;
and a run ends early where no evaluation was better for too long."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from launching import launch
from resuming import ONE_THREAD, numbers, run, stopping
from safetensors.torch import load_file
from tiny_recipe import Sequences, Tiny, collate, task
from trial import command_here, state_of

from toolkit.checkpoint.reader import WEIGHTS, CheckpointReader
from toolkit.metrics import Undefined
from toolkit.output.ledger import read_ledger
from toolkit.output.run_folder import folder_name, read_record
from toolkit.task import Task

TINY = Path(__file__).parent / "helpers" / "tiny_recipe.py"
# A rate at which the loss soon rises again, 24 steps.
ALONG = ("--optim.lr", "0.12", "--optim.warmup", "8", "--optim.schedule", "constant", "--epochs", "4")
RISING = (*ALONG, "--evaluate.every", "1")
PATIENT = (*RISING, "--evaluate.patience", "3")
WITHOUT_VALUE = ("--checkpoint.best", "highest nothing", "--evaluate.every", "2", "--evaluate.patience", "2")


def losses(folder: Path) -> dict[int, float]:
    """Return the evaluation loss after each step that had one."""
    rows = read_ledger(folder / "ledger.jsonl")
    return {row["step"]: row["evaluation"]["loss"] for row in rows if row["evaluation"]}


def best_of(found: dict[int, float]) -> int:
    """Return the first step of the lowest loss."""
    return min(found, key=lambda step: (found[step], step))


def end_of_patience(found: dict[int, float], patience: int) -> int:
    """Return the step after which a run ends, worked out by hand."""
    lowest, waited = float("inf"), 0
    for step, loss in sorted(found.items()):
        lowest, waited = (loss, 0) if loss < lowest else (lowest, waited + 1)
        if waited == patience:
            return step
    return max(found)


def in_checkpoint(folder: Path, step: int) -> dict[str, bytes]:
    """Return the weights in a checkpoint as bytes."""
    with CheckpointReader(folder / "checkpoints" / folder_name(step)) as reader:
        return {name: reader.whole(WEIGHTS, name).numpy().tobytes() for name in reader.index(WEIGHTS)}


def loss_of_saved(folder: Path) -> float:
    """Return the loss of the saved model on the evaluation samples, by hand."""
    saved = load_file(folder / "model" / "model.safetensors")
    batch = collate(Sequences(23, 10_000).fetch(range(23)))
    hidden = torch.tanh(batch["values"] @ saved["inner.weight"].T + saved["inner.bias"])
    hidden = (hidden * batch["mask"].unsqueeze(-1)).sum(1) / batch["mask"].sum(1, keepdim=True)
    logits = hidden @ saved["outer.weight"].T + saved["outer.bias"]
    return float(torch.nn.functional.cross_entropy(logits, batch["labels"]))


def test_the_best_weights_are_saved_with_their_metrics(tmp_path: Path) -> None:
    folder = run(tmp_path / "run", *RISING).done().folder
    found, record = losses(folder), read_record(folder)
    best = best_of(found)
    assert len(found) == 24
    assert best < 20, "the loss is to rise again"
    assert numbers(folder).weights == in_checkpoint(folder, best)
    assert record["exported"] == {"step": best, "rule": "lowest loss"}
    command_here("status", folder).done().says(f"the weights after step {best}, the evaluation with the lowest loss")
    assert record["step"] == 24
    assert record["metrics"]["loss"] == found[best]
    assert loss_of_saved(folder) == pytest.approx(found[best], rel=1e-12)
    assert record["baseline"]
    evaluation = json.loads((folder / "evaluation.json").read_text(encoding="utf-8"))
    assert (evaluation["weights"]["step"], evaluation["metrics"]["loss"]) == (best, found[best])


def test_other_weights_can_be_asked_for(tmp_path: Path) -> None:
    last = run(tmp_path / "last", *RISING, "--export", "last").done().folder
    best = run(tmp_path / "best", *RISING, "--export", "best").done().folder
    assert losses(last) == losses(best)
    assert read_record(last)["exported"] == {"step": 24, "rule": None}
    assert numbers(last).weights == in_checkpoint(last, 24) != numbers(best).weights
    assert read_record(last)["metrics"]["loss"] == losses(last)[24]
    kept = run(tmp_path / "average", *RISING, "--optim.average", "0.9").done().folder
    step = best_of(losses(kept))
    assert loss_of_saved(kept) == pytest.approx(losses(kept)[step], rel=1e-12)
    assert numbers(kept).weights != in_checkpoint(kept, step)


def test_a_run_ends_after_too_many_evaluations_without_a_better_one(tmp_path: Path) -> None:
    whole = losses(run(tmp_path / "whole", *RISING).done().folder)
    ended = run(tmp_path / "run", *PATIENT).done()
    folder = ended.folder
    end, record = end_of_patience(whole, 3), read_record(folder)
    assert 4 < end < 24
    assert losses(folder) == {step: loss for step, loss in whole.items() if step <= end}
    assert (record["status"], record["step"], record["exported"]["step"]) == ("finished", end, best_of(whole))
    assert numbers(folder).weights == in_checkpoint(folder, best_of(whole))
    why = f"after step {end} of 24: 3 evaluations in a row were not better than the one after step {best_of(whole)}"
    ended.says(f"ended {why}", f"of the weights after step {best_of(whole)}, which model/ holds")
    command_here("status", folder).done().says(why)
    # It is finished, and goes on where more patience is given.
    run(folder, *PATIENT).done().says("this run is finished")
    run(folder, *RISING).done().says(f"going on after step {end}")
    assert losses(folder) == whole


@pytest.mark.parametrize("arguments", [RISING, PATIENT], ids=["best", "patience"])
def test_stops_change_nothing(arguments: tuple[str, ...], tmp_path: Path) -> None:
    """In training and in the evaluations, the last one included, that of the best weights."""
    undisturbed = run(tmp_path / "undisturbed", *arguments).done().folder
    folder, starts = tmp_path / "run", 0
    while run(folder, *arguments, build=stopping(folder, training=4, evaluating=11)).code == 75:
        starts += 1
        assert starts < 40
    assert starts > 1
    assert numbers(folder) == numbers(undisturbed)
    records = [read_record(place) for place in (folder, undisturbed)]
    for key in ("metrics", "baseline", "exported", "step", "since_best"):
        assert records[0][key] == records[1][key]


@pytest.mark.parametrize("processes", [2, 4])
def test_several_processes_find_the_same_step(processes: int, tmp_path: Path) -> None:
    alone = run(tmp_path / "alone", *PATIENT).done().folder
    folder = tmp_path / "run"
    launch(TINY, *PATIENT, *ONE_THREAD, "--output", str(folder), processes=processes)
    here, there = read_record(folder), read_record(alone)
    assert (here["step"], here["exported"]) == (there["step"], there["exported"])
    assert here["metrics"]["loss"] == pytest.approx(there["metrics"]["loss"], rel=1e-12)
    assert numbers(folder).weights == in_checkpoint(folder, here["exported"]["step"])


def test_a_best_checkpoint_that_is_damaged_or_gone(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert run(folder, *RISING, build=stopping(folder, training=20)).code == 75
    best = best_of(losses(folder))
    assert best < 15
    file = next((folder / "checkpoints" / folder_name(best)).glob("*.safetensors"))
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    run(folder, *RISING).told("the checkpoint of the best evaluation can't be read", "--export last")
    run(folder, *RISING, "--export", "last").done()
    assert numbers(folder).weights == in_checkpoint(folder, 24)


def without_value(config: Tiny) -> Task:
    """Return the tiny task with a metric that never has a value."""

    def nothing(predictions: Any, references: Any) -> dict[str, float]:
        return {"nothing": Undefined("there is a single class")}

    return replace(task(config), metrics=[nothing])


def test_evaluations_without_a_value_count_through_a_stop(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert run(folder, *WITHOUT_VALUE, build=stopping(folder, training=4, build=without_value)).code == 75
    outcome = run(folder, *WITHOUT_VALUE, build=without_value).done()
    assert (outcome.record["step"], outcome.record["exported"]) == (4, {"step": 4, "rule": None})
    warning = (
        "nothing was undefined in every evaluation (there is a single class), so checkpoint.best (highest nothing)"
    )
    outcome.says(f"warning: {warning}", "ended after step 4 of 12: 2 evaluations in a row brought no better")
    assert outcome.record["warnings"][-1].startswith(warning)
    command_here("status", folder).done().says("after step 4 of 12: 2 evaluations in a row", "brought no better one")


def test_the_count_is_of_evaluations_in_a_row(tmp_path: Path) -> None:
    found = losses(run(tmp_path / "run", *RISING).done().folder)
    rises = sum(after > before for before, after in pairwise(found.values()))
    assert rises > 3, "or patience would not be tried"


def test_any_checkpoint_is_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = run(tmp_path / "run", *RISING, "--checkpoint.every", "5", "--checkpoint.keep", "9").done().folder
    found, best, saved = losses(folder), best_of(losses(folder)), numbers(folder)
    command_here("export", folder, "--step", "15").done().says("saved the model of step 15")
    assert numbers(folder).weights == in_checkpoint(folder, 15) != saved.weights
    record = read_record(folder)
    assert (record["exported"]["step"], record["step"], record["metrics"]["loss"]) == (15, 24, found[15])
    assert loss_of_saved(folder) == pytest.approx(found[15], rel=1e-12)
    assert command_here("verify", folder).code == 0
    # Without a step it is the one that the run has saved.
    command_here("export", folder).done().says(f"saved the model of step {best}")
    assert (numbers(folder), read_record(folder)["metrics"]["loss"]) == (saved, found[best])
    before = state_of(folder)
    command_here("export", folder, "--step", "14").told("no checkpoint of step 14", "5, ", "15, 20")
    command_here("export", tmp_path).told("is no run folder")
    command_here("export", folder, "--recipe", folder / "config.yaml").told("is no Python file")
    assert state_of(folder) == before
    # Folders are told as they were typed.
    monkeypatch.chdir(tmp_path)
    told = command_here("export", "run", "--step", "10").done()
    told.says("saved the model of step 10, from run/checkpoints/step-000010\n", "  model  run/model\n")
    refused = command_here("export", "run", "--step", "14").told("run has no checkpoint of step 14")
    assert str(tmp_path) not in told.output + refused.errors


def test_a_run_that_is_not_finished_is_exported(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    arguments = (*ALONG, "--optim.average", "0.9", "--evaluate.every", "4")
    assert run(folder, *arguments, build=stopping(folder, training=15)).code == 75
    assert not (folder / "model").exists()
    command_here("export", folder).done()
    assert loss_of_saved(folder) == pytest.approx(min(losses(folder).values()), rel=1e-12)
    assert read_record(folder)["status"] == "preempted"
    # A step without an evaluation is evaluated now.
    command_here("export", folder, "--step", "14").done().says("loss")
    assert read_record(folder)["exported"]["step"] == 14
    assert numbers(run(folder, *arguments).done().folder) == numbers(run(tmp_path / "whole", *arguments).done().folder)
