"""A run in a tracker, through Accelerate's class for it."""

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from toolkit.tracking.position import Position
from toolkit.tracking.scalars import Values
from toolkit.tracking.sent import Sent

Settings = Mapping[str, bool | float | str]


class TrackedRun:
    """A run in a tracker; what is not overridden suits a tracker that can't be asked what it has."""

    can_be_asked: ClassVar[bool] = False
    """Whether `sent` asks the tracker; otherwise what the position says counts."""
    rows_at_once: ClassVar[int] = 1
    """Rows between two positions that are written down: so many are in doubt after a kill."""
    project_variable: ClassVar[str | None] = None
    """The tracker's own environment variable for the project."""

    def __init__(self, folder: Path, position: Position, settings: Settings) -> None:
        self.folder = folder
        self.position = position
        self.settings = settings
        self.progress: Callable[[], None] = lambda: None
        """Called while much is read back, which may take minutes."""

    def identify(self, project: str | None, name: str | None, recipe: str) -> None:
        """Choose what the run is called there, before the tracker hears of it: after a kill it is found again."""
        variable = os.environ.get(self.project_variable) if self.project_variable else None
        self.position.project = project or variable or recipe
        self.position.name = name or self.folder.name

    def make(self) -> Any:
        """Return Accelerate's tracker, not started."""
        raise NotImplementedError

    @cached_property
    def tracker(self) -> Any:
        """Accelerate's tracker, started: the run is begun there, or gone on with."""
        made = self.make()
        made.start()
        return made

    def begin(self) -> None:
        """Begin the run there, or go on with it, and note its id."""

    def sent(self) -> Sent:
        """Return which values are there."""
        return Sent(up_to=self.position.sent)

    def send_settings(self) -> None:
        """Send the settings; again, if it is not known whether they were."""
        self.tracker.store_init_configuration(dict(self.settings))

    def send(self, rows: Sequence[tuple[int, Values]]) -> None:
        """Send values of steps, in the order of the steps."""
        for step, values in rows:
            self.tracker.log(values, step=step)

    def send_final(self, step: int, values: Values) -> None:
        """Send the metrics of a finished run."""
        self.tracker.log(values, step=step)

    def close(self, status: str) -> None:
        """Bring everything to the tracker and end there; `status` is that of run.json."""
        if "tracker" in vars(self):
            tracker = vars(self).pop("tracker")
            tracker.finish()

    @property
    def place(self) -> str:
        """Where the run is found, for a person."""
        return f"{self.position.name} in {self.position.project}"
