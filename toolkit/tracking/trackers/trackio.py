"""Trackio: a database in TRACKIO_DIR, a Space (TRACKIO_SPACE_ID) or a server (TRACKIO_SERVER_URL)."""

import os
from typing import Any

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
        if is_remote():
            self.position.name += f"-{self.position.token[:6]}"
            return
        from trackio.sqlite_storage import SQLiteStorage

        taken, wanted, number = set(SQLiteStorage.get_runs(self.position.project)), self.position.name, 1
        while self.position.name in taken:
            number += 1
            self.position.name = f"{wanted}-{number}"

    def make(self) -> Any:
        from accelerate.tracking import TrackioTracker

        # Accelerate's `store_init_configuration` would add a setting of its own.
        return TrackioTracker(
            self.position.project,
            name=self.position.name,
            config=dict(self.settings),
            resume="allow",
            embed=False,
            auto_log_cpu=False,
            auto_log_gpu=False,
        )

    def begin(self) -> None:
        self.position.run = self.tracker.tracker.id

    def send_settings(self) -> None:
        """They go with the first row."""

    def sent(self) -> Sent:
        if is_remote():
            # Rows go there in their order.
            return Sent(up_to=self.tracker.tracker._next_step - 1)
        from trackio.sqlite_storage import SQLiteStorage

        found = Sent()
        for row in SQLiteStorage.get_logs(self.position.project, self.position.name, run_id=self.position.run):
            found.add(row["step"], (name for name in row if name not in OWN))
        return found


def is_remote() -> bool:
    """Return whether Trackio sends to a Space or a server."""
    return bool(os.environ.get("TRACKIO_SPACE_ID") or os.environ.get("TRACKIO_SERVER_URL"))
