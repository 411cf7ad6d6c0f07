"""Plots: what a notebook shows of a result when it is the last line of a cell."""

from io import BytesIO
from typing import Any

from toolkit.errors import require

BLUE, ORANGE, GREY = "#1f6fb2", "#d9722b", "#8a8a8a"


class Drawn:
    """A result that is shown as a picture; `draw()` returns it as a matplotlib figure."""

    def draw(self) -> Any:
        """Return the figure."""
        raise NotImplementedError

    def _repr_png_(self) -> bytes:
        """Return the picture that a notebook shows. (IPython looks for this name.)"""
        return as_png(self.draw())


def figure(width: float = 7.5, height: float = 3.0) -> Any:
    """Return an empty figure, in inches; it belongs to nobody, so nothing has to be closed."""
    # Not pyplot, which keeps every figure and picks a backend.
    return require("matplotlib.figure", "notebook", "a plot").Figure((width, height), layout="constrained")


def axes_of(place: Any, title: str, across: str, up: str) -> Any:
    """Dress the axes of a figure: titles, a faint grid, no box."""
    place.set_title(title, loc="left", fontsize=10)
    place.set_xlabel(across)
    place.set_ylabel(up)
    place.grid(alpha=0.25)
    place.spines[["top", "right"]].set_visible(False)
    return place


def as_png(drawn: Any) -> bytes:
    """Return a figure as the content of a PNG file."""
    content = BytesIO()
    drawn.savefig(content, format="png", dpi=100)
    return content.getvalue()
