"""What a notebook shows of a result: plots and tables, and the curves of a run while it goes on."""

import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from html import escape
from io import BytesIO
from pathlib import Path
from typing import Any

from toolkit.errors import require
from toolkit.notebook.session import Recipe, run
from toolkit.output.ledger import read_ledger
from toolkit.output.result import Result

BLUE, ORANGE, GREY = "#1f6fb2", "#d9722b", "#8a8a8a"
SECONDS_BETWEEN_PLOTS = 1.0


class Plotted:
    """A result that a notebook shows as a plot; `draw()` returns it as a matplotlib figure."""

    def draw(self) -> Any:
        """Return the figure."""
        raise NotImplementedError

    def _repr_png_(self) -> bytes:
        """Return the plot as the content of a PNG file. (IPython looks for this name.)"""
        content = BytesIO()
        self.draw().savefig(content, format="png", dpi=100)
        return content.getvalue()


def figure(width: float = 7.5, height: float = 3.0) -> Any:
    """Return an empty figure, in inches, that need not be closed."""
    # Not by pyplot, which keeps every figure and picks a backend.
    return require("matplotlib.figure", "notebook", "a plot").Figure((width, height), layout="constrained")


def axes_of(axes: Any, title: str, x_label: str, y_label: str) -> Any:
    """Give axes their titles and a faint grid, and return them."""
    axes.set_title(title, loc="left", fontsize=10)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    return axes


def html_table(rows: Iterable[Sequence[str]], numbers: bool = False) -> str:
    """Return rows as an HTML table, the first one as its head; `numbers` are on the right, but for the first column."""
    lines = []
    for number, row in enumerate(rows):
        mark = "th" if number == 0 else "td"
        cells = "".join(
            f"<{mark} style='text-align:{'right' if numbers and column else 'left'}'>{escape(text)}</{mark}>"
            for column, text in enumerate(row)
        )
        lines.append(f"<tr>{cells}</tr>")
    return f"<table style='display:inline-table;vertical-align:top;margin-right:2em'>{''.join(lines)}</table>"


@dataclass(frozen=True, repr=False)
class Curves(Plotted):
    """The ledger of a run as curves."""

    rows: list[dict[str, Any]]

    def __repr__(self) -> str:
        return f"{len(self.rows)} steps"

    def draw(self) -> Any:
        drawn = figure(10.0, 2.8)
        loss, norm, rate = drawn.subplots(1, 3, width_ratios=[2, 1, 1])
        steps = [row["step"] for row in self.rows]
        axes_of(loss, f"after {len(steps)} steps", "step", "loss per unit")
        loss.plot(steps, [row["loss"] for row in self.rows], color=BLUE, label="training, each step")
        losses = [(row["step"], row["evaluation"]["loss"]) for row in self.rows if "loss" in (row["evaluation"] or {})]
        if losses:
            loss.plot(*zip(*losses, strict=True), "o-", color=ORANGE, label="evaluation")
        if steps:
            loss.legend(frameon=False)
        axes_of(norm, "gradient norm, before clipping", "step", "")
        norm.plot(steps, [row["gradient_norm"] for row in self.rows], color=GREY)
        axes_of(rate, "learning rate", "step", "")
        rate.plot(steps, [row["learning_rate"] for row in self.rows], color=GREY)
        return drawn


def curves(folder: str | Path) -> Curves:
    """Return the curves of a run, which may still be running elsewhere."""
    with suppress(FileNotFoundError):
        return Curves(list(read_ledger(Path(folder) / "ledger.jsonl")))
    return Curves([])


def run_with_plot(recipe: Recipe) -> Result:
    """Run a recipe as `run` does, and draw its curves in the output of the cell while it goes on.

    A thread reads the ledger and draws it again, at most once a second. Each time that takes about a tenth of a second
    of one core. The run itself does not take part.

    Raises:
        UserError, Preempted: as `run` does.
    """
    display = require("IPython.display", "notebook", "a live plot").display
    folder, ended = Path(str(recipe.config.output)), threading.Event()
    handle = display(curves(folder), display_id=True)

    def follow() -> None:
        size = -1
        while not ended.wait(SECONDS_BETWEEN_PLOTS):
            with suppress(OSError, ValueError):
                size, previous = (folder / "ledger.jsonl").stat().st_size, size
                if size != previous:
                    handle.update(curves(folder))

    follower = threading.Thread(target=follow, name="live plot", daemon=True)
    if handle is not None:  # None outside of a notebook
        follower.start()
    try:
        return run(recipe)
    finally:
        ended.set()
        if handle is not None:
            follower.join()
            handle.update(curves(folder))
