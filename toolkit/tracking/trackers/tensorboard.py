"""TensorBoard: event files in the run folder."""

import re
import shutil
from pathlib import Path
from typing import Any
from uuid import uuid4

from toolkit.tracking.sent import Sent
from toolkit.tracking.trackers.base import TrackedRun

FOLDER = "tensorboard"
"""In the run folder."""


class TensorBoardRun(TrackedRun):
    """A run in event files: each start writes one of its own, and what a kill tore off at the end of one is passed
    over by every reader and sent again."""

    can_be_asked = True
    rows_at_once = 100

    def make(self) -> Any:
        from accelerate.tracking import TensorBoardTracker

        # Two starts in one second would have files of one name on two machines with the same process id.
        return TensorBoardTracker(FOLDER, str(self.folder), filename_suffix=f".{uuid4().hex[:8]}")

    def sent(self) -> Sent:
        from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

        found = Sent()
        for file in sorted((self.folder / FOLDER).glob("events.out.tfevents.*")):
            for event in LegacyEventFileLoader(str(file)).Load():
                self.progress()
                if event.HasField("summary"):
                    found.add(event.step, (value.tag for value in event.summary.value))
        return found

    def send_settings(self) -> None:
        # Accelerate writes them into a folder with the time as its name: one is there if this was begun before.
        for place in self.setting_folders():
            shutil.rmtree(place)
        super().send_settings()

    def setting_folders(self) -> list[Path]:
        """Return the folders with settings."""
        places = (self.folder / FOLDER).glob("*")
        return [place for place in places if place.is_dir() and re.fullmatch(r"\d+\.\d+", place.name)]

    @property
    def place(self) -> str:
        return f"tensorboard --logdir {self.folder / FOLDER}"
