"""Trackers that were not tried: Accelerate's classes, with what their documentation says of going on with a run.

None of them is asked what it has, so that of the row that is sent during a kill it is not known whether it arrived.
"""

from typing import Any

from toolkit.tracking.trackers.base import TrackedRun


class CometRun(TrackedRun):
    """A run in Comet, under a key that is chosen here."""

    project_variable = "COMET_PROJECT_NAME"

    def make(self) -> Any:
        from accelerate.tracking import CometMLTracker

        return CometMLTracker(self.position.project, experiment_key=self.position.token)

    def begin(self) -> None:
        self.position.run = self.position.token
        self.tracker.tracker.set_name(self.position.name)


class AimRun(TrackedRun):
    """A run in Aim, whose repository is found from the folder in which the command is started."""

    def make(self) -> Any:
        from accelerate.tracking import AimTracker

        return AimTracker(self.position.name, ".", experiment=self.position.project, run_hash=self.position.run)

    def begin(self) -> None:
        self.position.run = self.tracker.tracker.hash


class ClearMLRun(TrackedRun):
    """A task of ClearML."""

    project_variable = "CLEARML_PROJECT"

    def make(self) -> Any:
        from accelerate.tracking import ClearMLTracker

        return ClearMLTracker(
            self.position.project, task_name=self.position.name, continue_last_task=self.position.run or False
        )

    def begin(self) -> None:
        self.position.run = self.tracker.tracker.id
        # A task that is gone on with would add the last step to every step.
        self.tracker.tracker.set_initial_iteration(0)


class DVCLiveRun(TrackedRun):
    """DVCLive's files in the run folder."""

    def make(self) -> Any:
        from accelerate.tracking import DVCLiveTracker

        return DVCLiveTracker(dir=str(self.folder / "dvclive"), resume=True, save_dvc_exp=False)

    @property
    def place(self) -> str:
        return str(self.folder / "dvclive")


class SwanLabRun(TrackedRun):
    """A run in SwanLab, under an id that is chosen here."""

    project_variable = "SWANLAB_PROJ_NAME"

    def make(self) -> Any:
        from accelerate.tracking import SwanLabTracker

        self.position.run = self.position.run or self.position.token[:21]
        return SwanLabTracker(
            self.position.project, id=self.position.run, experiment_name=self.position.name, resume="allow"
        )
