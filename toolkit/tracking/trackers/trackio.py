"""Trackio: a database in TRACKIO_DIR, a Space (TRACKIO_SPACE_ID) or a server (TRACKIO_SERVER_URL)."""

import os
from typing import Any

from toolkit.errors import UserError
from toolkit.tracking.position import position_file
from toolkit.tracking.sent import Sent
from toolkit.tracking.trackers.base import TrackedRun

OWN = {"step", "timestamp"}
"""What Trackio itself adds to a row."""


class TrackioRun(TrackedRun):
    """A run in Trackio, which knows runs by their names and writes a row whole, a moment after it took it."""

    can_be_asked = True
    rows_at_once = 100
    project_variable = "TRACKIO_PROJECT"

    def identify(self, project: str | None, name: str | None, recipe: str) -> None:
        super().identify(project, name, recipe)
        # Trackio knows a run by its name alone, and one that begins at the same time is in no list yet.
        self.position.name += self.position.mark

    def make(self) -> Any:
        from accelerate.tracking import TrackioTracker

        # Accelerate's `store_init_configuration` would add a setting of its own.
        return TrackioTracker(
            self.position.project,
            name=self.position.name,
            config=dict(self.settings),
            resume="allow",
            # Otherwise everybody could read a Space that is created here.
            private=True,
            embed=False,
            auto_log_cpu=False,
            auto_log_gpu=False,
        )

    def begin(self) -> None:
        run, known = self.tracker.tracker, self.position.run
        # A run that was deleted there begins anew, at its first step.
        if known not in (None, run.id) and run._next_step > 0:
            raise UserError(
                f"the run {self.position.name} in Trackio's project {self.position.project} is another one than that "
                f"which {position_file(self.folder, 'trackio')} names; rename one of them there, or delete that file "
                "to send this run again, as a new one"
            )
        self.position.run = run.id

    def send_settings(self) -> None:
        """They go with the first row."""

    def sent(self) -> Sent:
        if is_remote():
            # Rows go there in their order.
            return Sent(up_to=self.tracker.tracker._next_step - 1)
        from trackio.sqlite_storage import SQLiteStorage

        found = Sent()
        for row in SQLiteStorage.get_logs(self.position.project, self.position.name, run_id=self.position.run):
            self.progress()
            found.add(row["step"], (name for name in row if name not in OWN))
        return found


def is_remote() -> bool:
    """Return whether Trackio sends to a Space or a server."""
    return bool(os.environ.get("TRACKIO_SPACE_ID") or os.environ.get("TRACKIO_SERVER_URL"))
