"""Trackers that are unknown, not installed or not logged in are refused before anything is done."""

import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import SimpleNamespace

import pytest
from resuming import run
from tiny_recipe import Tiny

from toolkit.config.parser import parse
from toolkit.config.trackers import TRACKERS, tracker_names
from toolkit.tracking import readiness
from toolkit.tracking.delivery import RUNS

pytestmark = pytest.mark.usefixtures("tracker_places")


def test_the_names_are_those_that_accelerate_has_classes_for() -> None:
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS

    assert set(TRACKERS) == set(RUNS) == set(LOGGER_TYPE_TO_CLASS)


@pytest.mark.parametrize(
    "given", ["tensorboard,mlflow", " TensorBoard , mlflow,", "[tensorboard, mlflow]", "tb,mlflow"]
)
def test_trackers_are_given_as_a_list(given: str) -> None:
    assert parse(Tiny, "", ["--track.to", given]).track.names == ("tensorboard", "mlflow")
    assert tracker_names(None) == ()


def without(names: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Have these modules not be installed, and all others that are asked for."""
    monkeypatch.setattr(
        readiness, "find_spec", lambda name: None if name in names else ModuleSpec(name, None, origin=name)
    )


def test_what_is_missing_is_told_with_all_other_mistakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without({"wandb", "mlflow"}, monkeypatch)
    run(tmp_path / "run", "--track.to", "wandb,tensorbord,mlflow,tensorboard", "--optim.lr", "-1").refused(
        "there is no tracker tensorbord; did you mean tensorboard? (given by --track.to)",
        "the package of wandb is not installed; install it with pip install -e '.[wandb]', or leave wandb out",
        "the package of mlflow is not installed; install it with pip install -e '.[mlflow]'",
        "optim.lr is -1.0",
    )
    run(tmp_path / "alone", "--track.to", "mlflow").refused("the package of mlflow is not installed")
    run(tmp_path / "none", "--track.to", "").refused("track.to names no tracker; give one or several of tensorboard,")
    run(tmp_path / "name", "--track.run_name", "x").refused("no tracker is named; give --track.to too")


def test_only_the_main_process_needs_a_tracker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from toolkit.recipe_command import tracker_problems

    without({"mlflow"}, monkeypatch)
    assert len(tracker_problems("mlflow")) == 1
    monkeypatch.setenv("RANK", "1")
    assert tracker_problems("mlflow") == []


def test_who_is_not_logged_in_is_told_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without(set(), monkeypatch)
    for name in ("COMET_API_KEY", "COMET_CONFIG", "COMET_START_ONLINE", "SWANLAB_API_KEY", "SWANLAB_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    logged_in = False
    module = SimpleNamespace(
        Settings=lambda silent: SimpleNamespace(mode="online"), login=lambda prompt, verify: logged_in
    )
    monkeypatch.setitem(sys.modules, "wandb", module)
    names = ["wandb", "comet_ml", "swanlab"]
    found = readiness.problems_here(names, "track.to")
    assert [problem.partition(" run `")[2].partition("`")[0] for problem in found] == [
        "wandb login",
        "comet login",
        "swanlab login",
    ]
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("COMET_API_KEY", "k")
    monkeypatch.setenv("SWANLAB_MODE", "local")
    assert readiness.problems_here(names, "track.to") == []
    monkeypatch.delenv("WANDB_MODE")
    logged_in = True
    assert readiness.problems_here(names, "track.to") == []


def test_mlflow_is_refused_where_it_would_refuse_to_write(monkeypatch: pytest.MonkeyPatch) -> None:
    assert readiness.problems_here(["mlflow"], "--to") == []
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE")
    (problem,) = readiness.problems_here(["mlflow"], "--to")
    assert "MLFLOW_ALLOW_FILE_STORE=true" in problem
    for uri in ("", "sqlite:///here.db"):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        without({"alembic"}, monkeypatch)
        (problem,) = readiness.problems_here(["mlflow"], "--to")
        assert "alembic is missing" in problem
    # Words for servers, though they look like folders.
    for uri in ("databricks", "databricks-uc", "uc", "databricks://profile"):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        assert readiness.problems_here(["mlflow"], "--to") == []
    # Whether a server is there shows later, and ends nothing.
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    assert readiness.problems_here(["mlflow"], "--to") == []


def test_mlflow_is_refused_where_it_would_go_on_in_an_old_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("MLFLOW_ALLOW_FILE_STORE", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    without(set(), monkeypatch)
    (tmp_path / "mlruns" / "models").mkdir(parents=True)
    (tmp_path / "mlruns" / "models" / "meta.yaml").touch()
    assert readiness.problems_here(["mlflow"], "--to") == []
    (tmp_path / "mlruns" / "0").mkdir()
    (tmp_path / "mlruns" / "0" / "meta.yaml").touch()
    (problem,) = readiness.problems_here(["mlflow"], "--to")
    assert f"MLflow keeps its runs in {tmp_path / 'mlruns'}, as there are some, a folder" in problem


def test_a_folder_with_the_name_of_a_package_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "swanlab").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    (problem,) = readiness.problems_here(["swanlab"], "--to")
    assert "the package of swanlab is not installed" in problem
