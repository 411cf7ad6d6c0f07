"""A run whose curves are drawn while it goes on."""

import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolkit.extras import require
from toolkit.notebook.opening import Recipe
from toolkit.notebook.plots import BLUE, GREY, ORANGE, Drawn, axes_of, figure
from toolkit.notebook.running import run
from toolkit.output.ledger import read_ledger
from toolkit.output.result import Result

SECONDS_BETWEEN_PICTURES = 1.0


@dataclass(frozen=True, repr=False)
class Curves(Drawn):
    """What the ledger of a run says by now."""

    rows: list[dict[str, Any]]

    def __repr__(self) -> str:
        return f"{len(self.rows)} steps"

    def draw(self) -> Any:
        """Return the figure."""
        drawn = figure(10.0, 2.8)
        loss, norm, rate = drawn.subplots(1, 3, width_ratios=[2, 1, 1])
        steps = [row["step"] for row in self.rows]
        axes_of(loss, f"after {len(steps)} steps", "step", "loss per unit")
        loss.plot(steps, [row["loss"] for row in self.rows], color=BLUE, label="training, each step")
        seen = [(row["step"], row["evaluation"]["loss"]) for row in self.rows if "loss" in (row["evaluation"] or {})]
        if seen:
            loss.plot(*zip(*seen, strict=True), "o-", color=ORANGE, label="evaluation")
        if steps:
            loss.legend(frameon=False)
        axes_of(norm, "gradient norm, before clipping", "step", "")
        norm.plot(steps, [row["gradient_norm"] for row in self.rows], color=GREY)
        axes_of(rate, "learning rate", "step", "")
        rate.plot(steps, [row["learning_rate"] for row in self.rows], color=GREY)
        return drawn


def curves(folder: str | Path) -> Curves:
    """Return the curves of a run, also of one that goes on elsewhere at this moment."""
    with suppress(FileNotFoundError):
        return Curves(list(read_ledger(Path(folder) / "ledger.jsonl")))
    return Curves([])


def run_with_plot(recipe: Recipe) -> Result:
    """Run a recipe as `run` does, and draw its curves in the output of the cell while it goes on.

    A thread reads the run folder's ledger and draws it anew, at most once a second, which takes about a tenth of a second of one
    core. The run itself knows nothing of it.

    Raises:
        UserError, Preempted: as `run` does.
    """
    shown = require("IPython.display", "notebook", "a live plot")
    folder, ended = Path(str(recipe.config.output)), threading.Event()
    handle = shown.display(curves(folder), display_id=True)

    def follow() -> None:
        size = -1
        while not ended.wait(SECONDS_BETWEEN_PICTURES):
            with suppress(OSError, ValueError):
                size, previous = (folder / "ledger.jsonl").stat().st_size, size
                if size != previous:
                    handle.update(curves(folder))

    follower = threading.Thread(target=follow, name="live plot", daemon=True)
    if handle is not None:  # None where no notebook is there to show it
        follower.start()
    try:
        return run(recipe)
    finally:
        ended.set()
        if handle is not None:
            follower.join()
            handle.update(curves(folder))
