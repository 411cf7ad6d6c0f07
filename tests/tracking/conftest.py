"""Places of the trackers that are a test's own."""

from pathlib import Path

import pytest
from resuming import run


@pytest.fixture(autouse=True)
def own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have Trackio and MLflow keep their runs in the test's folder."""
    import trackio.sqlite_storage
    import trackio.utils

    # Trackio reads its variable when it is imported.
    for module in (trackio.utils, trackio.sqlite_storage):
        monkeypatch.setattr(module, "TRACKIO_DIR", tmp_path / "trackio")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    for name in ("MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_NAME", "TRACKIO_PROJECT", "WANDB_API_KEY", "WANDB_MODE"):
        # What sends sets some of these for itself, and does so here in the tests' own process.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of 12 steps with 4 evaluations, which was sent nowhere; copies of it are used."""
    return run(tmp_path_factory.mktemp("finished") / "run", "--evaluate.every", "3").done().folder
