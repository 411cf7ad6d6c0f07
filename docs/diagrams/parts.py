"""What the pictures of this folder are made of: one vocabulary for all of them.

A card is a process with its GPU; in it lie samples, weights, gradients and optimizer state, each in its colour, drawn
as an empty outline where this process does not hold that part; red arrows and words are what is sent.
"""

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

FOLDER = Path(__file__).parent
INK, SOFT, LINE, CARD = "#1f2933", "#5b6770", "#c3ccd4", "#f6f8fa"
SAMPLES, WEIGHTS, GRADIENTS, OPTIMIZER, SENT = "#7a5195", "#2f6db3", "#d9772b", "#3a8f5c", "#b3261e"
COLOURS = {"samples": SAMPLES, "weights": WEIGHTS, "gradients": GRADIENTS, "optimizer": OPTIMIZER}
NOTHING = "nothing is sent"
HALVES = ("part A", "part B")
ROW, STEP = 0.34, 0.46
"""Height of a bar, and from one bar to the next."""
LABELS = 1.18
"""Width of the column of words in a card."""


def canvas(width: float, height: float, title: str, subtitle: str) -> Axes:
    """Return a white card of this size (in units of about 2 cm) with a title and a line below it."""
    figure = plt.figure(figsize=(width, height))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, width), ylim=(0, height))
    axes.axis("off")
    axes.add_patch(
        FancyBboxPatch(
            (0.06, 0.06), width - 0.12, height - 0.12, boxstyle="round,pad=0,rounding_size=0.14", fc="white", ec=LINE
        )
    )
    axes.text(0.35, height - 0.45, title, fontsize=15, weight="bold", color=INK, va="center")
    axes.text(0.35, height - 0.82, subtitle, fontsize=10.5, color=SOFT, va="center")
    return axes


def save(axes: Axes, name: str) -> None:
    """Write a picture; the same drawing gives the same bytes."""
    axes.figure.savefig(
        FOLDER / f"{name}.svg", metadata={"Date": None, "Creator": "docs/diagrams/draw.py"}, transparent=True
    )
    plt.close(axes.figure)


def words(axes: Axes, x: float, y: float, text: str, *, size: float = 9.5, colour: str = INK, **how: object) -> None:
    """Write a text, by default in the middle of the place."""
    axes.text(x, y, text, fontsize=size, color=colour, **{"ha": "center", "va": "center", "linespacing": 1.35, **how})


def arrow(
    axes: Axes,
    start: tuple[float, float],
    end: tuple[float, float],
    *,
    both: bool = False,
    bend: float = 0.0,
    colour: str = SENT,
) -> None:
    """Draw what is sent, from one place to another."""
    axes.add_patch(
        FancyArrowPatch(
            start,
            end,
            arrowstyle="<|-|>" if both else "-|>",
            mutation_scale=12,
            lw=1.6,
            color=colour,
            connectionstyle=f"arc3,rad={bend}",
            shrinkA=0,
            shrinkB=0,
        )
    )


def frame(
    axes: Axes, x: float, y: float, width: float, height: float, title: str, *, dashed: bool = False, fill: str = CARD
) -> None:
    """Draw the card of a process, or with dashes what several of them form."""
    axes.add_patch(
        FancyBboxPatch(
            (x, y),
            width,
            height,
            boxstyle="round,pad=0,rounding_size=0.1",
            fc="none" if dashed else fill,
            ec=SOFT if dashed else LINE,
            lw=1.1,
            ls=(0, (4, 3)) if dashed else "-",
        )
    )
    words(axes, x + 0.14, y + height - 0.22, title, size=10.5, weight="bold", ha="left", colour=SOFT if dashed else INK)


def bar(
    axes: Axes,
    x: float,
    y: float,
    width: float,
    colour: str,
    parts: int,
    held: Sequence[int],
    names: Sequence[str] = (),
) -> None:
    """Draw one row of a card: so many equal parts, filled where they are held."""
    for part in range(parts):
        has = part in held
        left = x + width * part / parts
        axes.add_patch(
            Rectangle(
                (left, y),
                width / parts,
                ROW,
                fc=colour if has else "white",
                ec="white" if has else LINE,
                lw=1.2,
                ls="-" if has else ":",
            )
        )
        if has and names:
            words(
                axes, left + width / parts / 2, y + ROW / 2 - 0.01, names[part], size=8.5, colour="white", weight="bold"
            )


def process(
    axes: Axes,
    x: float,
    y: float,
    title: str,
    rows: Sequence[tuple[str, str, int, Sequence[int], Sequence[str]]],
    *,
    width: float = 3.5,
) -> float:
    """Draw a process with its rows (word, kind, parts, held, names) and return its height."""
    height = 0.5 + STEP * len(rows) + 0.06
    frame(axes, x, y, width, height, title)
    for number, (word, kind, parts, held, names) in enumerate(rows):
        bottom = y + height - 0.5 - STEP * number - ROW
        words(axes, x + 0.14, bottom + ROW / 2, word, ha="left", size=9.5)
        bar(axes, x + LABELS, bottom, width - LABELS - 0.15, COLOURS[kind], parts, held, names)
    return height


def holdings(
    samples: Sequence[int], of: int, weights: Sequence[int], parts: int, names: Sequence[str] = ()
) -> list[tuple[str, str, int, Sequence[int], Sequence[str]]]:
    """Return the usual four rows: which samples of the global batch, and which parts of weights, gradients and
    state."""
    return [
        ("samples", "samples", of, samples, [str(n + 1) for n in range(of)]),
        ("weights", "weights", parts, weights, names),
        ("gradients", "gradients", parts, weights, names),
        ("optimizer", "optimizer", parts, weights, names),
    ]


def steps(
    axes: Axes, x: float, y: float, lines: Sequence[tuple[str, str]], *, gap: float = 0.42, right: float = 4.75
) -> None:
    """Write what happens in a step, numbered; what is sent is said in red."""
    for number, (does, sends) in enumerate(lines):
        level = y - gap * number
        words(
            axes,
            x,
            level,
            str(number + 1),
            size=9.5,
            colour="white",
            weight="bold",
            bbox={"boxstyle": "circle,pad=0.22", "fc": SOFT, "ec": "none"},
        )
        words(axes, x + 0.26, level, does, ha="left", size=10)
        if sends:
            words(axes, x + right, level, sends, ha="left", size=10, colour=SOFT if sends == NOTHING else SENT)
