"""MLflow: a database, a folder of files, or a server, as MLFLOW_TRACKING_URI says."""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from toolkit.tracking.position import FOLDER as POSITIONS
from toolkit.tracking.scalars import Values
from toolkit.tracking.sent import Sent
from toolkit.tracking.trackers.base import TrackedRun
from toolkit.tracking.trackers.mlflow_files import folder_of, mend, remember

TAG = "finetune_toolkit.run"
"""By this tag a run is found again that was begun there just before a kill."""
MOST_AT_ONCE = 1000
"""Values of one request, by MLflow's rules."""
MOST_CHARACTERS = 500
"""Of a setting: what every store of MLflow takes."""
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
        uri = mlflow.get_tracking_uri()
        # Never the address of a server: it may hold a password.
        position.place = uri if urlsplit(uri).scheme in ("", "file", "sqlite") else None
        self.files = folder_of(uri)
        if self.files is not None:
            mend(self.files, position.run, self.copy, position.settings)
        self.client = mlflow.MlflowClient()
        # Accelerate lets these win over what it is told.
        os.environ["MLFLOW_EXPERIMENT_NAME"] = position.project
        given = os.environ.pop("MLFLOW_RUN_ID", None)
        experiment = self.client.get_experiment_by_name(position.project)
        number = experiment.experiment_id if experiment else self.client.create_experiment(position.project)
        run = self.run_there(number, position.run or given)
        return MLflowTracker(position.project, run_id=run, run_name=position.name, tags={TAG: position.token})

    def run_there(self, experiment: str, known: str | None) -> str | None:
        """Return the id of this run if it was begun there and not deleted."""
        from mlflow.exceptions import MlflowException

        if known is not None:
            try:
                if self.client.get_run(known).info.lifecycle_stage == "active":
                    return known
            except MlflowException as error:
                if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                    raise
        found = self.client.search_runs([experiment], f"tags.`{TAG}` = '{self.position.token}'", max_results=1)
        return str(found[0].info.run_id) if found else None

    def begin(self) -> None:
        run = self.position.run = self.tracker.tracker.info.run_id
        if self.files is not None:
            remember(self.files, run, self.copy)

    def sent(self) -> Sent:
        found, run = Sent(), self.position.run
        for name in self.client.get_run(run).data.metrics:
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
        super().close(status)
        state = STATES.get(status, "KILLED")
        if began and state != "FINISHED":
            self.client.update_run(self.position.run, status=state)

    @property
    def place(self) -> str:
        return f"run {self.position.run} of the experiment {self.position.project}"
