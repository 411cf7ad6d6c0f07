"""MLflow: a database, a folder of files, or a server, as MLFLOW_TRACKING_URI says."""

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from toolkit.errors import UserError
from toolkit.tracking.position import FOLDER as POSITIONS
from toolkit.tracking.scalars import Values
from toolkit.tracking.sent import Sent
from toolkit.tracking.trackers.base import TrackedRun
from toolkit.tracking.trackers.mlflow_files import NO_FOLDERS, folder_of, mend, remember

TAG = "finetune_toolkit.run"
"""By this tag a run is found again that was begun there just before a kill."""
MOST_AT_ONCE = 1000
"""Values of one request, by MLflow's rules."""
MOST_CHARACTERS = 500
"""Of a setting: what every store of MLflow takes."""
OVERRULING = ("MLFLOW_RUN_ID", "MLFLOW_TAGS", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_EXPERIMENT_ID")
"""Variables that win over what Accelerate and MLflow are told."""
STATES = {"failed": "FAILED", "finished": "FINISHED", "running": "RUNNING"}


class MLflowRun(TrackedRun):
    """A run in MLflow. A row that was sent in parts is completed: each value of each step is asked for."""

    can_be_asked = True
    rows_at_once = 100
    project_variable = "MLFLOW_EXPERIMENT_NAME"

    @property
    def copy(self) -> Path:
        """A copy of the description of the run, where that is a file."""
        return self.folder / POSITIONS / "mlflow-meta.yaml"

    def make(self) -> Any:
        import mlflow
        from accelerate.tracking import MLflowTracker

        position = self.position
        if position.place is not None and not os.environ.get("MLFLOW_TRACKING_URI"):
            # By default the place depends on the folder in which a command is started.
            mlflow.set_tracking_uri(position.place)
        uri = absolute(mlflow.get_tracking_uri())
        # Never the address of a server: it may hold a password.
        position.place = uri if urlsplit(uri).scheme in ("", "file", "sqlite") else None
        self.files = folder_of(uri)
        if self.files is not None:
            mend(self.files, position.run, self.copy, position.settings)
        self.client = mlflow.MlflowClient()
        experiment = self.client.get_experiment_by_name(position.project)
        number = experiment.experiment_id if experiment else self.client.create_experiment(position.project)
        run = self.run_there(number, position.run)
        tags = {**tags_in(self.given.get("MLFLOW_TAGS", "")), TAG: position.token}
        return MLflowTracker(position.project, run_id=run, run_name=position.name, tags=tags)

    def run_there(self, experiment: str, known: str | None) -> str | None:
        """Return the id of this run if it was begun there and not deleted, or of one that is meant to become it."""
        from mlflow.exceptions import MlflowException

        for run in (known, self.given.get("MLFLOW_RUN_ID") if known is None else None):
            if not run:
                continue
            try:
                there = self.client.get_run(run)
            except MlflowException as error:
                if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                    raise
                continue
            # One variable may be set for several runs: it is the first one's.
            is_own = run == known or there.data.tags.get(TAG) in (None, self.position.token)
            if there.info.lifecycle_stage == "active" and is_own:
                return run
        found = self.client.search_runs([experiment], f"tags.`{TAG}` = '{self.position.token}'", max_results=1)
        return str(found[0].info.run_id) if found else None

    def identify(self, project: str | None, name: str | None, recipe: str) -> None:
        super().identify(project, name, recipe)
        if "'" in self.position.project:
            raise UserError(
                f"the project is {self.position.project!r}, and Accelerate finds no experiment of MLflow with a ' in "
                f"its name; give another one by --project (of a run: --track.project, or {self.project_variable})"
            )

    def begin(self) -> None:
        with self.unheard():
            run = self.position.run = self.tracker.tracker.info.run_id
        if self.files is not None:
            remember(self.files, run, self.copy)

    @contextmanager
    def unheard(self) -> Iterator[None]:
        """Have Accelerate and MLflow not hear in this block what would win over what they are told."""
        self.given = {name: os.environ.pop(name) for name in OVERRULING if name in os.environ}
        try:
            yield
        finally:
            # The next attempt is to find the same.
            os.environ.update(self.given)

    def sent(self) -> Sent:
        found, run = Sent(), self.position.run
        for name in self.client.get_run(run).data.metrics:
            self.progress()
            for metric in self.client.get_metric_history(run, name):
                found.add(metric.step, (name,))
        return found

    def send_settings(self) -> None:
        # A setting that is there already can't be changed.
        there = self.client.get_run(self.position.run).data.params
        values = {name: str(value)[:MOST_CHARACTERS] for name, value in self.settings.items() if name not in there}
        self.tracker.store_init_configuration(values)

    def send(self, rows: Sequence[tuple[int, Values]]) -> None:
        from mlflow.entities import Metric

        # Accelerate's class sends one row at a time, which is a request each.
        now = int(time.time() * 1000)
        metrics = [Metric(name, value, now, step) for step, values in rows for name, value in values.items()]
        for first in range(0, len(metrics), MOST_AT_ONCE):
            part = metrics[first : first + MOST_AT_ONCE]
            self.client.log_batch(self.position.run, metrics=part, synchronous=True)

    def send_final(self, step: int, values: Values) -> None:
        self.send([(step, values)])

    def close(self, status: str) -> None:
        began = "tracker" in vars(self)
        with self.unheard():
            super().close(status)
        state = STATES.get(status, "KILLED")
        if began and state != "FINISHED":
            self.client.update_run(self.position.run, status=state)

    @property
    def place(self) -> str:
        return f"run {self.position.run} of the experiment {self.position.project}"


def absolute(uri: str) -> str:
    """Return the address of a store; where it depends on the folder of the command, as one that does not."""
    scheme, _, rest = uri.partition(":")
    if "://" not in uri and scheme != "file" and uri not in NO_FOLDERS:
        return Path(uri).resolve().as_uri()
    if not scheme.startswith("sqlite") or not rest.startswith("///") or rest.startswith("///:memory:"):
        return uri
    file, mark, options = rest.removeprefix("///").partition("?")
    return f"{scheme}:///{Path(file).absolute()}{mark}{options}"


def tags_in(given: str) -> dict[str, str]:
    """Return the tags of MLFLOW_TAGS.

    Raises:
        UserError: it holds none that can be read.
    """
    try:
        found = json.loads(given or "{}")
    except ValueError:
        found = None
    if isinstance(found, dict) and all(isinstance(value, str) for value in found.values()):
        return found
    raise UserError('MLFLOW_TAGS can\'t be read; give tags in JSON, such as {"team": "reviews"}, or unset it')
