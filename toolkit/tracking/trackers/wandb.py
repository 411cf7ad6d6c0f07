"""Weights & Biases, online or offline."""

from typing import Any

from toolkit.tracking.scalars import Values
from toolkit.tracking.sent import Sent
from toolkit.tracking.trackers.base import TrackedRun


class WandbRun(TrackedRun):
    """A run in Weights & Biases, under an id that is chosen here. Online its own counter of steps says what is there;
    offline nothing can be asked, and the position counts."""

    rows_at_once = 100
    project_variable = "WANDB_PROJECT"

    def make(self) -> Any:
        from accelerate.tracking import WandBTracker

        self.position.run = self.position.run or self.position.token[:12]
        return WandBTracker(
            self.position.project,
            id=self.position.run,
            name=self.position.name,
            resume="allow",
            settings={"silent": True, "console": "off"},
        )

    def sent(self) -> Sent:
        run = self.tracker.tracker
        return super().sent() if run.offline or run.disabled else Sent(up_to=run.step - 1)

    def send_final(self, step: int, values: Values) -> None:
        # The row of the last step is there already, and is not opened again.
        self.tracker.tracker.summary.update(values)

    @property
    def place(self) -> str:
        url = self.tracker.tracker.url
        return (
            str(url) if url else f"run {self.position.run} of {self.position.project}, offline (`wandb sync` sends it)"
        )
