"""Checkpoints, ledgers and disks that are damaged are named, and the run goes on from what is still good."""

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from resuming import (
    Build,
    acting,
    contents,
    copy_of,
    is_valid,
    left_half_done,
    numbers,
    refusing,
    rows_of,
    run,
    steps_sealed,
    stopped,
    stopping,
    undisturbed,
)
from safetensors.torch import load_file
from tiny_recipe import Network, Tiny, task

from toolkit.checkpoint.format import FORMAT, inspect, seal_of
from toolkit.config.yaml import as_mapping, flatten
from toolkit.output.ledger import Ledger, LedgerRow
from toolkit.task import Task

OFTEN = ("--checkpoint.every", "5", "--evaluate.every", "4", "--checkpoint.keep", "9")
WHOLE = ("--evaluate.every", "4")
FILES = ("weights.safetensors", "optimizer.safetensors", "state.json", "manifest.json")

Damage = Callable[[Path], object]


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


DAMAGES: dict[str, Damage] = {
    "truncated": lambda file: os.truncate(file, file.stat().st_size // 2),
    "flipped": flip,
    "removed": Path.unlink,
    "emptied": lambda file: os.truncate(file, 0),
}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that was stopped after step 7, with checkpoints of steps 4, 5 and 7; nobody changes it."""
    folder = stopped(tmp_path_factory.mktemp("original") / "run", 7, *OFTEN)
    assert steps_sealed(folder) == [7, 5, 4]
    return folder


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    """A copy of that folder, to be damaged."""
    return copy_of(original, tmp_path / "run")


def checkpoint(folder: Path, step: int) -> Path:
    return folder / "checkpoints" / f"step-{step:06d}"


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(name: str, damage: str, folder: Path) -> None:
    DAMAGES[damage](checkpoint(folder, 7) / name)
    before = contents(checkpoint(folder, 7))
    outcome = run(folder, *OFTEN).done()
    outcome.says(f"the checkpoint {checkpoint(folder, 7)} is passed over: ", name, "going on after step 5")
    assert numbers(folder) == undisturbed(*WHOLE)
    assert outcome.record["repeated"] == 2
    # It is left for who wants to look, under a name that is not taken for a checkpoint.
    assert contents(checkpoint(folder, 7).with_name("step-000007.damaged")) == before
    assert steps_sealed(folder)[0] == 12


@pytest.mark.parametrize(("left", "why"), [(False, "the folder is empty"), (True, "it has no manifest.json")])
def test_a_folder_that_was_never_sealed_is_passed_over(left: bool, why: str, folder: Path) -> None:
    for name in FILES[3:] if left else FILES:
        (checkpoint(folder, 7) / name).unlink()
    run(folder, *OFTEN).done().says(f"the checkpoint {checkpoint(folder, 7)} is passed over: {why}")
    assert numbers(folder) == undisturbed(*WHOLE)


def test_the_newest_that_is_valid_is_used_and_older_ones_are_not_looked_at(folder: Path) -> None:
    flip(checkpoint(folder, 7) / "state.json")
    (checkpoint(folder, 5) / "weights.safetensors").unlink()
    outcome = run(folder, *OFTEN, build=stopping(folder, training=3))
    outcome.says("step-000007 is passed over: its file state.json", "step-000005 is passed over: its file weights")
    outcome.says("going on after step 4")
    assert outcome.code == 75
    # Steps 5 to 7, or to 6 where row 7 had not been written.
    assert outcome.record["repeated"] == 3
    flip(checkpoint(folder, 4) / "weights.safetensors")
    again = run(folder, *OFTEN).done()
    assert "passed over" not in again.output
    assert numbers(folder) == undisturbed(*WHOLE)


def test_where_all_are_damaged_nothing_is_done_and_all_are_named(folder: Path, original: Path) -> None:
    for step, name in ((7, "manifest.json"), (5, "state.json"), (4, "weights.safetensors")):
        flip(checkpoint(folder, step) / name)
    before = contents(folder)
    run(folder, *OFTEN).told(
        *(f"the checkpoint {checkpoint(folder, step)} is passed over: its" for step in (7, 5, 4)),
        f"none of the checkpoints in {folder / 'checkpoints'} is valid; repair one, or start from scratch with "
        "--resume never",
    )
    assert contents(folder) == before
    # Both remedies.
    from_scratch = copy_of(folder, folder.with_name("from scratch"))
    run(from_scratch, *OFTEN, "--resume", "never").done().says("what this folder held of the run so far was moved to")
    shutil.copy(checkpoint(original, 5) / "state.json", checkpoint(folder, 5) / "state.json")
    run(folder, *OFTEN).done().says("going on after step 5")
    assert numbers(from_scratch) == numbers(folder) == undisturbed(*WHOLE)


def test_a_checkpoint_of_a_newer_version_is_refused_by_name(folder: Path) -> None:
    """It is not passed over: the newer version may read it, and older steps would be done again."""
    file = checkpoint(folder, 7) / "manifest.json"
    content = {**json.loads(file.read_text(encoding="utf-8")), "format": FORMAT + 1, "shards": 2}
    del content["seal"]
    file.write_text(json.dumps({**content, "seal": seal_of(content)}), encoding="utf-8")
    before = contents(folder)
    run(folder, *OFTEN).told(
        f"the checkpoint {checkpoint(folder, 7)} has format version {FORMAT + 1}, and this version of the toolkit "
        f"reads up to {FORMAT}; use the newer version that wrote it, or name an older checkpoint with --resume"
    )
    assert contents(folder) == before
    run(folder, *OFTEN, "--resume", str(checkpoint(folder, 5))).done().says("going on after step 5")
    assert numbers(folder) == undisturbed(*WHOLE)


OTHER_NUMBERS = {
    "batch.size": ("8", "9"),
    "batch.compress": ("'none'", "bf16"),
    "batch.compress_rank": ("4", "2"),
    "optim.name": ("'adamw'", "sgd"),
    "optim.lr": ("0.05", "0.5"),
    "optim.weight_decay": ("0.01", "0.5"),
    "optim.betas": ("[0.9, 0.999]", "[0.5,0.9]"),
    "optim.eps": ("1e-08", "0.5"),
    "optim.clip": ("1.0", "0.5"),
    "optim.schedule": ("'linear'", "cosine"),
    "optim.warmup": ("3", "0.5"),
    "optim.floor": ("null", "0.5"),
    "optim.restarts": ("null", "5"),
    "optim.layer_decay": ("null", "0.5"),
    "optim.average": ("null", "0.5"),
    "epochs": ("2", "5"),
    "seed": ("0", "5"),
    "data.samples": ("45", "50"),
    "data.held_out": ("23", "50"),
    "data.unlabelled_below": ("0", "5"),
    "model.flaw": ("'none'", "dropout"),
}


@pytest.mark.parametrize("where", ["in the same folder", "from another one"])
def test_settings_that_change_numbers_are_refused_each_with_both_values(where: str, folder: Path) -> None:
    changes = [word for key, (_, now) in OTHER_NUMBERS.items() for word in (f"--{key}", now)]
    before = contents(folder)
    if where == "in the same folder":
        outcome = run(folder, *OFTEN, *changes).told(f"the folder {folder} belongs to another run: ")
    else:
        other = folder.with_name("other")
        outcome = run(other, *OFTEN, *changes, "--resume", str(folder)).told(
            f"the checkpoint {checkpoint(folder, 7)} is of a run with other numbers: "
        )
        assert outcome.files <= {"run.json", "run.lock"}
    for key, (previous, _) in OTHER_NUMBERS.items():
        assert f"{key} was {previous.strip(chr(39))} and is now " in outcome.errors.replace("'", "")
    assert outcome.errors.count(" and is now ") == len(OTHER_NUMBERS)
    assert contents(folder) == before


def test_another_fall_of_the_same_schedule_is_refused(tmp_path: Path) -> None:
    """Only one schedule takes the setting, and not the one that is tried above."""
    wsd = ["--optim.schedule", "wsd"]
    run(tmp_path / "run", *wsd).done()
    run(tmp_path / "run", *wsd, "--optim.decay", "0.5").told("optim.decay was null and is now 0.5")


def test_every_setting_is_one_that_changes_numbers_or_one_that_a_run_may_change() -> None:
    """A new one has to be put into one of the two lists; the second is tried in test_resume.py."""
    speed_and_cadence = {
        "batch.micro", "batch.micro_tokens", "batch.balance", "batch.pack",
        "batch.eval", "batch.reduce_each", "batch.stages", "evaluate.every", "evaluate.only",
        "evaluate.show", "evaluate.patience", "evaluate.metrics", "export", "optim.nonfinite", "log.every",
        "log.peak_flops",
        "output", "resume", "rehearse", "threads",
        "checkpoint.every", "checkpoint.keep", "checkpoint.best", "checkpoint.grace",
        "timeout.rendezvous", "timeout.silence", "timeout.progress",
        "track.to", "track.project", "track.run_name",
    }  # fmt: skip
    # Of the tiny recipe's own, and of what is given instead of epochs.
    others = {"steps", "data.workers", "model.name"}
    # Tried by itself above.
    others |= {"optim.decay"}
    assert set(flatten(as_mapping(Tiny()))) == speed_and_cadence | set(OTHER_NUMBERS) | others


@pytest.mark.parametrize("where", ["in the same folder", "from another one"])
def test_another_precision_of_the_launch_file_is_refused(
    where: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = contents(folder)
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    same = where == "in the same folder"
    outcome = run(folder if same else folder.with_name("other"), *OFTEN, *([] if same else ["--resume", str(folder)]))
    outcome.told("mixed precision (of the launch file) was no and is now bf16")
    assert contents(folder) == before


def with_data(part: str, digest: str) -> Build:
    """Return the task with data of the same size and another digest."""

    def build(config: Tiny) -> Task:
        made = task(config)
        source: Any = getattr(made.data, part)
        source.digest = lambda: digest
        return made

    return build


@pytest.mark.parametrize(("part", "called"), [("train", "training"), ("evaluate", "evaluation")])
@pytest.mark.parametrize("where", ["in the same folder", "from another one", "back in the same folder"])
def test_other_data_is_refused(part: str, called: str, where: str, folder: Path) -> None:
    before = contents(folder)
    digest = json.loads((checkpoint(folder, 7) / "state.json").read_text(encoding="utf-8"))["data"][part]
    outcome = run(
        folder.with_name("other") if where == "from another one" else folder,
        *OFTEN,
        *([] if where == "in the same folder" else ["--resume", str(checkpoint(folder, 5))]),
        build=with_data(part, "0123"),
    )
    outcome.told(f"the {called} data is not what it was when {folder}", f"its digest was {digest} and is now 0123")
    assert contents(folder) == before
    assert contents(outcome.folder) == (before if where != "from another one" else {})
    run(folder, *OFTEN).done().says("going on after step 7")
    assert numbers(folder) == undisturbed(*WHOLE)


def another_model(config: Tiny) -> Task:
    """Return the task with a wider layer, which no setting shows."""

    def widened(runtime: Any) -> torch.nn.Module:
        network = Network()
        network.inner = torch.nn.Linear(4, 20).double()
        network.outer = torch.nn.Linear(20, 3).double()
        return network

    return replace(task(config), model=widened)


def frozen_biases(config: Tiny) -> Task:
    """Return the task with fewer parameters that are trained, which no setting shows."""

    def frozen(runtime: Any) -> torch.nn.Module:
        network = Network()
        network.inner.bias.requires_grad_(False)
        network.outer.bias.requires_grad_(False)
        return network

    return replace(task(config), model=frozen)


@pytest.mark.parametrize("where", ["in the same folder", "from another one", "into the folder of another run"])
def test_a_checkpoint_of_another_model_is_refused(where: str, folder: Path) -> None:
    """Nothing is set aside for it either."""
    other = folder if where == "in the same folder" else folder.with_name("other")
    if where == "into the folder of another run":
        stopped(other, 3, *OFTEN)
    before, before_other = contents(folder), contents(other) if other.exists() else {}
    named = [] if where == "in the same folder" else ["--resume", str(checkpoint(folder, 7))]
    run(other, *OFTEN, *named, build=another_model).told(
        f"the model is not the one that {checkpoint(folder, 7)} was written for: 3 tensor(s) differ: ",
        "inner.weight was ([16, 4], 'float64') and is now ([20, 4], 'float64')",
        "Give the previous recipe and settings, or start a new run with --output",
    )
    assert contents(folder) == before
    assert contents(other) == before_other


def test_a_checkpoint_of_an_optimizer_with_other_parameters_is_refused(folder: Path) -> None:
    before = contents(folder)
    run(folder, *OFTEN, build=frozen_biases).told(
        "Give the previous recipe and settings, or start a new run with --output"
    )
    assert contents(folder) == before


def drop_a_row(ledger: Path) -> None:
    lines = ledger.read_bytes().splitlines(keepends=True)
    ledger.write_bytes(b"".join(lines[:2] + lines[3:]))


def edit_a_value(ledger: Path) -> None:
    ledger.write_text(ledger.read_text(encoding="utf-8").replace('"units": 8', '"units": 80', 1), encoding="utf-8")


def link_again(ledger: Path) -> None:
    *lines, last = ledger.read_text(encoding="utf-8").splitlines(keepends=True)
    row = json.loads(last)
    ledger.write_text("".join([*lines, json.dumps({**row, "chain": "0" * 16}) + "\n"]), encoding="utf-8")


LEDGERS: dict[str, tuple[Damage, str]] = {
    "deleted": (Path.unlink, "can't be read (No such file or directory)"),
    "emptied": (lambda ledger: os.truncate(ledger, 0), "is shorter than the checkpoint of step 7 needs"),
    "shortened": (lambda ledger: os.truncate(ledger, 1500), "is shorter than the checkpoint of step 7 needs"),
    "without its last byte": (
        lambda ledger: os.truncate(ledger, ledger.stat().st_size - 1),
        "is shorter than the checkpoint of step 7 needs",
    ),
    "without a row": (drop_a_row, "is shorter than the checkpoint of step 7 needs"),
    "edited": (edit_a_value, "was changed: it does not have row 7 where the checkpoint says"),
    "linked again": (link_again, "was changed: it does not have row 7 where the checkpoint says"),
}


@pytest.mark.parametrize("damage", LEDGERS)
def test_a_ledger_that_is_not_the_runs_is_refused_and_the_advice_helps(
    damage: str, folder: Path, original: Path
) -> None:
    ledger = folder / "ledger.jsonl"
    LEDGERS[damage][0](ledger)
    before = contents(folder)
    run(folder, *OFTEN).told(
        f"the ledger {ledger} {LEDGERS[damage][1]}; put the ledger back as it was, or go on in a new folder: "
        f"--output <new> --resume {folder / 'checkpoints'}/<checkpoint>"
    )
    assert contents(folder) == before
    new = folder.with_name("new")
    run(new, *OFTEN, "--resume", str(checkpoint(folder, 7))).done().says("the ledger of this run begins at step 8")
    whole = undisturbed(*WHOLE)
    assert {
        name: tensor.numpy().tobytes() for name, tensor in load_file(new / "model" / "model.safetensors").items()
    } == whole.weights
    assert rows_of(new / "ledger.jsonl", before=inspect(checkpoint(folder, 7)).ledger.chain) == whole.rows[7:]
    shutil.copy(original / "ledger.jsonl", ledger)
    run(folder, *OFTEN).done().says("going on after step 7")
    assert numbers(folder) == whole


def make_nothing(place: Path) -> None:
    """Leave the place as it is: there is nothing."""


def make_damaged_run(place: Path) -> None:
    (place / "checkpoints" / "step-000005").mkdir(parents=True)


RESUMED: dict[str, tuple[Damage, str]] = {
    "nothing": (make_nothing, "but there is no such folder; give auto, strict, never, or a checkpoint such as"),
    "a file": (Path.touch, "but there is no such folder; give auto, strict, never, or a checkpoint such as"),
    "an empty folder": (Path.mkdir, "which is no valid checkpoint: the folder is empty"),
    "a run without checkpoints": (
        lambda place: (place / "checkpoints").mkdir(parents=True),
        "a run folder without a valid checkpoint",
    ),
    "a run with a damaged one": (make_damaged_run, "step-000005 is passed over: the folder is empty"),
}


@pytest.mark.parametrize("kind", RESUMED)
@pytest.mark.parametrize("mine", [False, True])
def test_a_path_that_is_no_checkpoint_is_refused(kind: str, mine: bool, folder: Path, tmp_path: Path) -> None:
    place = tmp_path / "elsewhere"
    RESUMED[kind][0](place)
    output = folder if mine else tmp_path / "new"
    before = contents(folder)
    outcome = run(output, *OFTEN, "--resume", str(place)).told(f"resume is '{place}'", RESUMED[kind][1])
    assert contents(folder) == before
    if not mine:
        outcome.refused()


def test_a_checkpoint_that_is_not_there_is_missed_by_a_finished_run_too(tmp_path: Path) -> None:
    finished = run(tmp_path / "run", "--epochs", "1").done().folder
    before = contents(finished)
    problem = "resume is 'maybe', but there is no such folder; give auto, strict, never, or a checkpoint such as"
    again = ("--epochs", "1", "--resume", "maybe")
    run(finished, *again).told(problem)
    run(finished, *again, "--seed", "1").told(problem, "has other settings: seed was 0 and is now 1")
    run(finished, *again, "--batch.size", "0").told(problem, "batch.size is 0; it must be 1 or greater")
    assert contents(finished) == before
    # What a run began with need not be there any more: the same command goes on from what came of it.
    shutil.copytree(finished, tmp_path / "other")
    begun = ("--epochs", "1", "--resume", str(tmp_path / "other"))
    further = run(tmp_path / "further", *begun).done().folder
    shutil.rmtree(tmp_path / "other")
    run(further, *begun).done().says("this run is finished")


def test_a_damaged_checkpoint_that_was_named_is_refused_and_no_other_is_taken(folder: Path) -> None:
    flip(checkpoint(folder, 5) / "weights.safetensors")
    before = contents(folder)
    run(folder, *OFTEN, "--resume", str(checkpoint(folder, 5))).told(
        f"resume is '{checkpoint(folder, 5)}', which is no valid checkpoint: its file weights.safetensors has another "
        "content"
    )
    assert contents(folder) == before


def test_checkpoints_that_are_gone_are_missed(folder: Path, tmp_path: Path) -> None:
    lost = copy_of(folder, tmp_path / "lost")
    shutil.rmtree(lost / "checkpoints")
    before = contents(lost)
    run(lost, *OFTEN).told(
        f"the run in {lost} had a checkpoint of step 7, and there is none in {lost / 'checkpoints'} any more",
        "--resume never",
    )
    assert contents(lost) == before
    run(lost, *OFTEN, "--resume", "never").done().says("was moved to")
    assert len(rows_of(next((lost / "former").iterdir()) / "ledger.jsonl")) == 7


def test_a_run_that_died_before_its_first_checkpoint_says_that_it_starts_from_scratch(tmp_path: Path) -> None:
    def fail() -> None:
        raise RuntimeError("the power is gone")

    assert run(tmp_path / "run", build=acting(fail, training=6)).code == 1
    again = run(tmp_path / "run").done()
    again.says("the run before ended at step", "before it had a checkpoint: it starts from scratch")


BAD_SETTINGS = [
    (["--checkpoint.every", "0"], "checkpoint.every is 0; it must be 1 or greater"),
    (["--checkpoint.every", "-1"], "checkpoint.every is -1; it must be 1 or greater"),
    (["--checkpoint.keep", "-1"], "checkpoint.keep is -1; it must be 0 or greater"),
    (["--checkpoint.best", "loss"], "checkpoint.best is 'loss'; give lowest or highest and a metric, such as"),
    (["--checkpoint.best", "lowest"], "checkpoint.best is 'lowest'; give lowest or highest and a metric"),
    (["--checkpoint.best", "best accuracy"], "checkpoint.best is 'best accuracy'; give lowest or highest and a metric"),
    (["--checkpoint.grace", "0"], "checkpoint.grace is 0"),
    (["--checkpoint.grace", ".nan"], "checkpoint.grace is .nan; it must be a finite number"),
    (["--timeout.silence", "0.5"], "timeout.silence is 0.5; it must be 1 second or more"),
    (["--timeout.progress", ".nan"], "timeout.progress is .nan; it must be a finite number"),
    (["--optim.nonfinite", "ignore"], "optim.nonfinite is ignore; it must be one of: stop, skip"),
]


@pytest.mark.parametrize(
    ("arguments", "part"), BAD_SETTINGS, ids=lambda value: " ".join(value) if isinstance(value, list) else ""
)
def test_settings_of_checkpoints_that_can_not_be(arguments: list[str], part: str, tmp_path: Path) -> None:
    run(tmp_path / "run", *arguments).refused(part)


# Whatever is brought to the disk while the checkpoint of step 5 is written, in this order.
PLACES = [
    "ledger.jsonl",
    "step-000005.partial/weights.safetensors",
    "step-000005.partial/optimizer.safetensors",
    "step-000005.partial/state.json",
    "step-000005.partial/manifest.json",
    "step-000005.partial",
]


@pytest.mark.parametrize(
    ("place", "code"),
    [
        *((place, errno.ENOSPC) for place in PLACES),
        (PLACES[1], errno.EDQUOT),
        (PLACES[3], errno.EROFS),
        (PLACES[4], errno.EIO),
    ],
)
def test_a_disk_that_takes_no_checkpoint_stops_the_run_and_costs_nothing(place: str, code: int, tmp_path: Path) -> None:
    """Full, over the quota, read-only or broken; when it is repaired, the same command goes on."""
    folder, command = tmp_path / "run", ["--checkpoint.every", "5", "--evaluate.every", "3"]
    assert run(folder, *command, build=stopping(folder, training=4)).code == 75
    sealed = steps_sealed(folder)
    with refusing(place, code):
        outcome = run(folder, *command)
    outcome.told(
        f"the checkpoint of step 5 can't be written to {folder / 'checkpoints'} ({os.strerror(code)}); the checkpoint "
        "of step 3 is sealed",
        "Make room or repair the folder, then start the same command again",
    )
    assert (outcome.record["status"], steps_sealed(folder)) == ("failed", sealed)
    assert left_half_done(folder) == []
    run(folder, *command).done().says("going on after step 3")
    assert numbers(folder) == undisturbed("--evaluate.every", "3")


def test_a_disk_that_takes_not_even_the_first_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with refusing("weights.safetensors"):
        run(folder, *OFTEN).told("the checkpoint of step 4 can't be written", "there is no sealed checkpoint")
    assert left_half_done(folder) == []
    run(folder, *OFTEN).done()
    assert numbers(folder) == undisturbed(*WHOLE)


def test_a_run_that_was_asked_to_stop_and_can_not_seal_says_so(folder: Path) -> None:
    """Exit code 75 would promise a checkpoint of the moment."""
    with refusing("step-000009"):
        command = ("--checkpoint.every", "20", "--evaluate.every", "20")
        outcome = run(folder, *command, build=stopping(folder, training=3))
    outcome.told("the checkpoint of step 9 can't be written", "the checkpoint of step 7 is sealed")
    assert outcome.record["status"] == "failed"


@contextmanager
def ledger_that_fails_at(step: int, times: int) -> Iterator[None]:
    """Have the disk be full in the middle of the row of a step, so many times."""
    write, left = Ledger.write, [times]

    def fail(ledger: Ledger, row: LedgerRow) -> None:
        if row.step >= step and left[0]:
            left[0] -= 1
            with ledger.path.open("ab") as file:
                file.write(b'{"step": ')
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(ledger, row)

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(Ledger, "write", fail)
        yield


@pytest.mark.parametrize("times", [1, 99])
@pytest.mark.parametrize("step", [2, 4, 5, 9, 12])
def test_a_ledger_that_can_not_be_written_stops_the_run_and_costs_nothing(
    step: int, times: int, tmp_path: Path
) -> None:
    """Also where there is room again for the next row or for a checkpoint: none is sealed whose rows are missing."""
    folder, command = tmp_path / "run", ["--checkpoint.every", "5", "--evaluate.every", "4", "--checkpoint.keep", "9"]
    with ledger_that_fails_at(step, times):
        outcome = run(folder, *command).told(
            f"the ledger {folder / 'ledger.jsonl'} can't be written (No space left on device); make room or repair the "
            "folder, then start the same command again: it goes on from the newest checkpoint"
        )
    assert outcome.record["status"] == "failed"
    # A checkpoint that was taken before an evaluation goes without the row of its step.
    assert max(steps_sealed(folder), default=0) <= step
    assert left_half_done(folder) == []
    run(folder, *command).done()
    assert numbers(folder) == undisturbed(*WHOLE)


@pytest.mark.parametrize("file", ["run.json", "config.yaml"])
@pytest.mark.parametrize("new", [True, False])
def test_a_run_that_can_not_begin_to_write_says_so_and_begins_later(file: str, new: bool, folder: Path) -> None:
    place = folder.with_name("new") if new else folder
    before = contents(place) if not new else {}
    with refusing(file):
        outcome = run(place, *OFTEN).told(f"the run folder {place} can't be written (No space left on device)")
    assert {name: file for name, file in contents(place).items() if name != "config.yaml"} == {
        name: file for name, file in before.items() if name != "config.yaml"
    }
    assert left_half_done(place) == []
    assert outcome.code == 2
    run(place, *OFTEN).done()
    assert numbers(place) == undisturbed(*WHOLE)


def test_a_model_that_can_not_be_written_costs_no_training(tmp_path: Path) -> None:
    folder = tmp_path / "run"

    def build(config: Tiny) -> Task:
        def export(module: torch.nn.Module, place: Path, card: Any) -> None:
            place.mkdir()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        return replace(task(config), export=export)

    outcome = run(folder, *OFTEN, build=build).told(
        f"the run folder {folder} can't be written (No space left on device)"
    )
    assert outcome.record["status"] == "failed"
    assert steps_sealed(folder)[0] == 12
    run(folder, *OFTEN).done().says("going on after step 12")
    assert numbers(folder) == undisturbed(*WHOLE)
    assert is_valid(checkpoint(folder, 12))
    assert left_half_done(folder) == []
