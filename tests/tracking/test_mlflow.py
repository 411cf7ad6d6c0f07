"""MLflow told by its own variables: which run is taken, its tags, and where it lies."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
from resuming import copy_of
from tracked_values import READERS, problems_of, runs_there
from trial import command_here

from toolkit.tracking.position import Position, read_position, write_position
from toolkit.tracking.trackers.mlflow import TAG, MLflowRun, absolute

pytestmark = pytest.mark.usefixtures("tracker_places")


def test_a_run_that_is_named_for_all_is_the_first_ones(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlflow

    client = mlflow.MlflowClient()
    given = client.create_run(client.create_experiment("team"), run_name="of the scheduler").info.run_id
    monkeypatch.setenv("MLFLOW_RUN_ID", given)
    monkeypatch.setenv("MLFLOW_TAGS", '{"team": "reviews"}')
    runs = [copy_of(finished, tmp_path / name) for name in ("first", "second")]
    for run in runs:
        command_here("track", run, "--to", "mlflow", "--project", "team").done()
    first, second = (read_position(run, "mlflow") for run in runs)
    assert first is not None
    assert second is not None
    assert first.run == given != second.run
    for run, position in zip(runs, (first, second), strict=True):
        assert problems_of(run, READERS["mlflow"](run)) == []
        assert runs_there("mlflow", run) == 2
        assert position.run is not None
        tags = client.get_run(position.run).data.tags
        assert (tags["team"], tags[TAG]) == ("reviews", position.token)
    # Killed after the run was begun there, before its id was noted.
    write_position(runs[1], "mlflow", replace(second, run=None, sent=0, settings=False, finished=None))
    command_here("track", runs[1], "--to", "mlflow").done()
    assert runs_there("mlflow", runs[1]) == 2
    assert os.environ["MLFLOW_RUN_ID"] == given


@pytest.mark.parametrize(
    ("words", "tags", "text"),
    [
        (["--project", "Bob's project"], "{}", 'the project is "Bob\'s project", and Accelerate finds no experiment'),
        ([], "team=reviews", "MLFLOW_TAGS can't be read; give tags in JSON"),
        ([], '{"team": 1}', "MLFLOW_TAGS can't be read; give tags in JSON"),
    ],
)
def test_what_mlflow_can_not_take_is_told(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], tags: str, text: str
) -> None:
    monkeypatch.setenv("MLFLOW_TAGS", tags)
    outcome = command_here("track", copy_of(finished, tmp_path / "run"), "--to", "mlflow", *words)
    assert outcome.code != 0
    outcome.says(text)


def test_an_address_means_the_same_place_in_every_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow.tracking._tracking_service import utils

    # Restored at the end.
    monkeypatch.setattr(utils, "_tracking_uri", None)
    monkeypatch.chdir(tmp_path)
    assert absolute("sqlite:///own.db") == f"sqlite:///{tmp_path}/own.db"
    assert absolute("sqlite:///a/own.db?timeout=3") == f"sqlite:///{tmp_path}/a/own.db?timeout=3"
    assert absolute("./mlruns") == (tmp_path / "mlruns").as_uri()
    for same in ("sqlite:////x/own.db", "sqlite:///:memory:", "https://host:5000", "databricks", "file:///x/mlruns"):
        assert absolute(same) == same
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "own")
    there = MLflowRun(tmp_path, Position(project="p"), {})
    (tmp_path / "tracking").mkdir()
    there.begin()
    there.close("finished")
    assert there.position.place == (tmp_path / "own").as_uri()
    # From elsewhere, without the variable.
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    monkeypatch.chdir("/")
    again = MLflowRun(tmp_path, there.position, {})
    run = there.position.run
    again.begin()
    again.close("finished")
    assert again.position.run == run
