"""`toolkit track` and what the real trackers have afterwards: each value of each step once, whatever was in between."""

import gc
import json
import os
import random
import signal
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from resuming import copy_of
from tracked_values import READERS, problems_of, runs_there
from trial import command_here

from toolkit.tracking import delivery
from toolkit.tracking.command import track
from toolkit.tracking.position import Position, read_position, write_position
from toolkit.tracking.trackers.trackio import TrackioRun

pytestmark = pytest.mark.usefixtures("tracker_places")

ALL = ",".join(READERS)


def check(run: Path, *names: str) -> None:
    """Check that trackers have every value of a run once, in one run."""
    for name in names or READERS:
        assert problems_of(run, READERS[name](run)) == []
        assert runs_there(name, run) == 1


def test_a_finished_run_is_sent_once_however_often_it_is_asked_for(finished: Path, tmp_path: Path) -> None:
    run = copy_of(finished, tmp_path / "reviews")
    command_here("track", run, "--to", ALL).done().says("mlflow: all 12 steps are there")
    check(run)
    files = sorted(run.rglob("*tfevents*"))
    command_here("track", run, "--to", ALL).done()
    check(run)
    assert sorted(run.rglob("*tfevents*")) == files
    values = {(step, name): value for step, name, value in READERS["mlflow"](run)}
    rows = [json.loads(line) for line in (run / "ledger.jsonl").read_text().splitlines()]
    assert values[7, "train/loss"] == rows[6]["loss"]
    assert values[6, "evaluation/accuracy"] == rows[5]["evaluation"]["accuracy"]
    assert values[12, "final/accuracy"] == json.loads((run / "run.json").read_text())["metrics"]["accuracy"]


def test_settings_and_names_arrive(finished: Path, tmp_path: Path) -> None:
    import mlflow
    import yaml
    from trackio.sqlite_storage import SQLiteStorage

    run = copy_of(finished, tmp_path / "reviews")
    command_here("track", run, "--to", ALL, "--project", "team").done()
    position = read_position(run, "mlflow")
    assert position is not None
    there = mlflow.MlflowClient().get_run(position.run)
    assert there.data.params["batch.size"] == "8"
    assert there.data.params["optim.betas"] == "[0.9, 0.999]"
    assert (there.info.run_name, there.info.status) == ("reviews", "FINISHED")
    assert mlflow.get_experiment(there.info.experiment_id).name == "team"
    sent_to = read_position(run, "trackio")
    assert sent_to is not None
    assert sent_to.name == f"reviews-{sent_to.token[:6]}"
    config = SQLiteStorage.get_run_config("team", sent_to.name)
    assert config is not None and config["batch.size"] == 8  # noqa: PT018
    assert "allow_val_change" not in config
    (written,) = (run / "tensorboard").rglob("hparams.yml")
    assert yaml.safe_load(written.read_text())["batch.size"] == 8
    assert not [key for key in there.data.params if key.startswith("track.")]


def test_two_runs_of_one_name_stay_two(finished: Path, tmp_path: Path) -> None:
    first, second = copy_of(finished, tmp_path / "a" / "run"), copy_of(finished, tmp_path / "b" / "run")
    for run in (first, second):
        command_here("track", run, "--to", "trackio,mlflow").done()
    for run in (first, second):
        for name in ("trackio", "mlflow"):
            assert problems_of(run, READERS[name](run)) == []
            assert runs_there(name, run) == 2


def test_two_runs_of_one_name_that_begin_together_stay_two(finished: Path, tmp_path: Path) -> None:
    runs = [copy_of(finished, tmp_path / name / "run") for name in ("a", "b")]
    for run in runs:
        # Neither is in the database yet.
        there = TrackioRun(run, Position(), {})
        there.identify("team", None, "classify")
        assert there.make().init_kwargs["private"] is True
        (run / "tracking").mkdir()
        write_position(run, "trackio", there.position)
    for run in runs:
        command_here("track", run, "--to", "trackio").done()
    for run in runs:
        assert problems_of(run, READERS["trackio"](run)) == []
        assert runs_there("trackio", run) == 2
    first, second = (read_position(run, "trackio") for run in runs)
    assert first is not None
    assert second is not None
    second.name, second.finished = first.name, None
    write_position(runs[1], "trackio", second)
    outcome = command_here("track", runs[1], "--to", "trackio")
    assert outcome.code != 0
    outcome.says("is another one than that which", "tracking/trackio.json")
    assert problems_of(runs[0], READERS["trackio"](runs[0])) == []


BREAKS: dict[str, tuple[str, str]] = {
    "tensorboard": ("torch.utils.tensorboard.SummaryWriter", "add_scalar"),
    "mlflow": ("mlflow.store.tracking.file_store.FileStore", "_log_run_metric"),
    "trackio": ("trackio.sqlite_storage.SQLiteStorage", "bulk_log"),
}


@pytest.mark.filterwarnings("ignore:trackio failed to flush")
@pytest.mark.parametrize("tracker", READERS)
@pytest.mark.parametrize("after", [0, 1, 17, 100])
def test_what_broke_in_the_middle_of_a_row_is_completed(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tracker: str, after: int
) -> None:
    run, (place, name) = copy_of(finished, tmp_path / "run"), BREAKS[tracker]
    owner = found(place)
    monkeypatch.setattr(delivery, "SECONDS_BETWEEN_LOOKS", 0.01)
    monkeypatch.setattr(delivery, "ATTEMPTS_AFTER_THE_END", 1)
    with monkeypatch.context() as broken:
        broken.setattr(owner, name, breaking(getattr(owner, name), after if tracker != "trackio" else 0))
        outcome = command_here("track", run, "--to", tracker)
    if tracker != "trackio":
        assert outcome.code == 1, outcome.output
        outcome.says("the disk is full", f"toolkit track {run} --to {tracker}` sends what is missing")
    command_here("track", run, "--to", tracker).done()
    check(run, tracker)


def found(place: str) -> Any:
    """Return a class by the name of its module and its own."""
    module, _, name = place.rpartition(".")
    return getattr(import_module(module), name)


def breaking(call: Callable[..., Any], after: int) -> Callable[..., Any]:
    """Return a function that does as another one so many times, and then fails."""
    calls = 0

    def broken(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > after:
            raise OSError("the disk is full")
        return call(*arguments, **named)

    return broken


def test_an_event_file_that_was_torn_anywhere_is_completed(finished: Path, tmp_path: Path) -> None:
    whole = copy_of(finished, tmp_path / "whole")
    command_here("track", whole, "--to", "tensorboard").done()
    (events,) = (whole / "tensorboard").glob("*tfevents*")
    size = events.stat().st_size
    chance = random.Random(0)
    for number, cut in enumerate([0, 5, *chance.sample(range(size), 10), size - 1]):
        run = copy_of(whole, tmp_path / f"run-{number}")
        os.truncate(run / "tensorboard" / events.name, cut)
        command_here("track", run, "--to", "tensorboard").done()
        check(run, "tensorboard")


def test_a_ledger_that_was_cut_back_and_written_again_is_not_sent_twice(finished: Path, tmp_path: Path) -> None:
    run = copy_of(finished, tmp_path / "run")
    ledger = run / "ledger.jsonl"
    lines = ledger.read_text().splitlines(keepends=True)
    ledger.write_text("".join(lines[:9]) + lines[9][:40])
    record = (run / "run.json").read_text()
    (run / "run.json").write_text(record.replace('"finished"', '"running"'))
    command_here("track", run, "--to", ALL).done().says("all 9 steps are there")
    # Done again from step 7 on: the same numbers in another time, and an evaluation more.
    again = [json.loads(line) for line in lines]
    for row in again[6:]:
        row["seconds"] *= 2
    again[7]["evaluation"] = {"loss": 0.5, "accuracy": 0.25}
    ledger.write_text("".join(json.dumps(row) + "\n" for row in again))
    (run / "run.json").write_text(record)
    command_here("track", run, "--to", ALL).done()
    check(run)


def test_what_a_kill_leaves_half_written_in_mlflows_files_is_mended(finished: Path, tmp_path: Path) -> None:
    run = copy_of(finished, tmp_path / "run")
    abandoned = tmp_path / "mlruns" / "1" / "meta.yaml"
    abandoned.parent.mkdir(parents=True)
    abandoned.touch()
    os.utime(abandoned, (0, 0))
    command_here("track", run, "--to", "mlflow").done()
    (folder,) = (path.parent for path in (tmp_path / "mlruns").glob("*/*/meta.yaml"))
    (folder / "meta.yaml").write_bytes(b"")
    (folder / "params" / "seed").write_bytes(b"")
    position = run / "tracking" / "mlflow.json"
    position.write_text(position.read_text().replace('"settings": true', '"settings": false'))
    loss = folder / "metrics" / "train" / "loss"
    os.truncate(loss, loss.stat().st_size - 5)
    # One that was opened and not written to, and one with a part of its first line.
    for name, size in (("epoch", 0), ("units", 5)):
        os.truncate(folder / "metrics" / "train" / name, size)
    command_here("track", run, "--to", "mlflow").done()
    check(run, "mlflow")
    assert (folder / "params" / "seed").read_text() == "0"


def written(run: Path) -> list[tuple[str, int]]:
    """Return what lies in `tracking/`, which changes as soon as a sender begins."""
    return sorted((path.name, path.stat().st_mtime_ns) for path in (run / "tracking").glob("*.json"))


def steps_there(run: Path, tracker: str) -> int:
    """Return up to which step a position says that all was sent."""
    position = read_position(run, tracker)
    return position.sent if position is not None else 0


def test_kills_at_any_moment(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten SIGKILLs of processes that send to all three at once, while the ledger grows."""
    # What the processes are to import is imported before they part from this one.
    for name in ("mlflow.store.tracking.file_store", "torch.utils.tensorboard", "trackio", "tensorboard"):
        import_module(name)
    run = copy_of(finished, tmp_path / "run")
    lines = (run / "ledger.jsonl").read_text().splitlines(keepends=True)
    record = (run / "run.json").read_text()
    (run / "run.json").write_text(record.replace('"finished"', '"running"'))
    chance, moments = random.Random(1), 10
    reached: list[int] = []
    killed = 0
    monkeypatch.setattr(delivery, "SECONDS_BETWEEN_POSITIONS", 0.0)
    for number in range(moments):
        (run / "ledger.jsonl").write_text("".join(lines[: 2 + number]))
        gc.freeze()
        child = os.fork()
        if child == 0:
            try:
                track(run, ALL, None, None, None)
            finally:
                os._exit(0)
        before, until = written(run), time.monotonic() + 20
        while written(run) == before and time.monotonic() < until:
            time.sleep(0.005)
        time.sleep(chance.uniform(0.0, 0.02 * number))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        # The later ones may have sent all before they are killed; the first are killed at their first write.
        killed += os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        reached += [steps_there(run, name) for name in READERS]
    # Kills came in the midst: rows were there after some, and never all.
    assert killed >= moments // 2
    assert 0 < max(reached) < len(lines)
    (run / "ledger.jsonl").write_text("".join(lines))
    (run / "run.json").write_text(record)
    command_here("track", run, "--to", ALL).done()
    check(run)
