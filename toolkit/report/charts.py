"""Charts as Vega-Lite says them (https://vega.github.io/vega-lite): mappings that become JSON in the page.

Colours are those of the page, by the names that its style sheet gives them, so that light, dark and print need no
second drawing.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from toolkit.output.console import amount
from toolkit.report.curves import Curve
from toolkit.report.saved import is_number

Spec = dict[str, Any]
SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
"""A name, which nothing fetches."""
COLOURS = [f"var(--series-{number})" for number in range(1, 7)]
INK, FAINT = "var(--ink)", "var(--faint)"
DASHES = ([1, 0], [6, 3])
"""How lines are drawn, in pixels on and off: where colours come again, the other way."""
MOST_LINES = len(COLOURS) * len(DASHES)
"""More can't be told apart in one picture."""
ROWS = 8
"""Of the table that stands for a curve where no picture can be seen."""


@dataclass(frozen=True)
class Look:
    """How a line is drawn, and what it is of."""

    name: str
    colour: str
    dash: Sequence[int]


@dataclass(frozen=True)
class Chart:
    """A picture with its title and the same in numbers."""

    title: str
    spec: Spec | None
    """None where only the table is worth showing."""
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    """What has to be known to read it."""
    wide: bool = False
    legend: Sequence[Look] = ()
    """Stands above the picture as text, since it has to wrap."""


def looks(names: Sequence[str]) -> list[Look]:
    """Return how the lines of these are drawn, no two of them alike up to `MOST_LINES`."""
    kinds = [(colour, dash) for dash in DASHES for colour in COLOURS]
    return [Look(name, *kinds[place % MOST_LINES]) for place, name in enumerate(names)]


def drawn(description: str, height: int, **rest: Any) -> Spec:
    """Return a picture that is as wide as its place."""
    return {"$schema": SCHEMA, "description": description, "width": "container", "height": height, **rest}


def lines(
    title: str,
    series: Mapping[str, Curve],
    marks: Sequence[tuple[int, str]] = (),
    dots: Mapping[str, Mapping[int, float | None]] = MappingProxyType({}),
    note: str = "",
    form: str = ".4~g",
    logarithmic: bool = False,
    among: Sequence[str] = (),
) -> Chart:
    """Return curves over the steps, each with the band of its lowest and highest values.

    Args:
        title: what the curves are of.
        series: the curves by name; one alone needs no legend.
        marks: steps with a vertical line, and what it says.
        dots: further values by name and step, such as those of evaluations, joined by a line.
        note: what has to be known to read it.
        form: of the numbers, as d3 says it.
        logarithmic: whether the scale of the values is; it has to be above zero then.
        among: all names on the page, where each has to look the same in every picture.

    Of more than `MOST_LINES` series the first are drawn, and the table has all.
    """
    known = {name: {step: value for step, value in some.items() if value is not None} for name, some in dots.items()}
    dots = {name: some for name, some in known.items() if some}
    whole = numbers_of(series, dots)
    names = [*series, *(name for name in dots if name not in series)]
    if len(names) > MOST_LINES:
        note = " ".join(filter(None, (f"{MOST_LINES} of {len(names):,} are drawn; the table has all.", note)))
        names = names[:MOST_LINES]
        series = {name: one for name, one in series.items() if name in names}
        dots = {name: some for name, some in dots.items() if name in names}
    points = [
        {"step": int(step), "series": name, "value": plain(mean)}
        for name, one in series.items()
        for step, mean in zip(one.steps, one.means, strict=True)
    ]
    bands = [
        {"step": int(step), "series": name, "low": plain(low), "high": plain(high)}
        for name, one in series.items()
        if not one.is_exact()
        for step, low, high in zip(one.steps, one.lowest, one.highest, strict=True)
    ]
    single = [
        {"step": step, "series": name, "value": plain(value)}
        for name, some in dots.items()
        for step, value in some.items()
    ]
    legend = [look for look in looks(among or names) if look.name in names]
    shown = [look.name for look in legend]
    colour, dash = (
        {"field": "series", "type": "nominal", "scale": {"domain": shown, "range": kinds}, "legend": None}
        for kinds in ([look.colour for look in legend], [look.dash for look in legend])
    )
    many = len(names) > len(COLOURS)
    ends = [*(int(one.steps[-1]) for one in series.values() if len(one)), *(max(some) for some in dots.values())]
    x = {
        "field": "step",
        "type": "quantitative",
        "title": "step",
        "scale": {"domain": [0, max(ends, default=1)], "nice": False},
        "axis": {"format": "~s", "grid": False},
    }
    scale: Spec = {"type": "log"} if logarithmic else {"zero": False}
    y = {"field": "value", "type": "quantitative", "title": None, "scale": scale, "axis": {"format": form}}
    layers: list[Spec] = []
    if bands:
        low_high = {"y": {**y, "field": "low"}, "y2": {"field": "high"}}
        layers.append(
            {
                "data": {"values": bands},
                "mark": {"type": "area", "opacity": 0.18, "clip": True},
                "encoding": {"x": x, **low_high, "color": colour},
            }
        )
    if points:
        layers.append(
            {
                "data": {"values": points},
                "mark": {"type": "line", "strokeWidth": 1.5, "interpolate": "linear"},
                "encoding": {"x": x, "y": y, "color": colour, "strokeDash": dash},
            }
        )
    if single:
        layers.append(
            {
                "data": {"values": single},
                "mark": {"type": "line", "strokeWidth": 1.5, "point": {"size": 36}},
                "encoding": {"x": x, "y": y, "color": colour, "strokeDash": dash},
            }
        )
    layers += [vertical(marks, x)] if marks else []
    layers.append(hover(points + single, names, x, form))
    spec = drawn(
        f"{title}: {summary_of(series, dots)}", 300 if many else 190, layer=layers, resolve={"scale": {"y": "shared"}}
    )
    return Chart(title, spec, *whole, note=note, wide=many, legend=legend if len(legend) > 1 else ())


def vertical(marks: Sequence[tuple[int, str]], x: Spec) -> Spec:
    """Return vertical lines at some steps, which say what happened there."""
    return {
        "data": {"values": [{"step": step, "what": what} for step, what in marks]},
        "mark": {"type": "rule", "strokeDash": [4, 3], "stroke": INK, "opacity": 0.7, "size": 1.5},
        "encoding": {"x": x, "tooltip": {"field": "what", "type": "nominal", "title": "here"}},
    }


def hover(values: Iterable[Mapping[str, Any]], names: Sequence[str], x: Spec, form: str) -> Spec:
    """Return what shows the numbers of the step under the pointer."""
    # Said as an expression: of a tooltip that names fields, Vega-Lite 6.4 takes texts from the area around the nearest
    # step instead of from its row, and writes NaN where a series has no number at this step.
    row = "(isObject(datum.datum) ? datum.datum : datum)"
    values_of = {name: f"{row}[{json.dumps(name)}]" for name in names}
    texts = [
        f"{json.dumps(name)}: isValid({value}) ? format({value}, '{form}') : '–'" for name, value in values_of.items()
    ]
    told = f"{{step: format({row}.step, ',d'), {', '.join(texts)}}}"
    return {
        "data": {"values": list(values)},
        "transform": [{"pivot": "series", "value": "value", "groupby": ["step"]}],
        "mark": {"type": "rule", "stroke": FAINT, "tooltip": {"expr": told}},
        "encoding": {
            "x": x,
            "opacity": {"condition": {"param": "hover", "value": 1, "empty": False}, "value": 0},
        },
        "params": [
            {
                "name": "hover",
                "select": {
                    "type": "point",
                    "fields": ["step"],
                    "nearest": True,
                    "on": "pointerover",
                    "clear": "pointerout",
                },
            }
        ],
    }


def numbers_of(
    series: Mapping[str, Curve], dots: Mapping[str, Mapping[int, float | None]]
) -> tuple[list[str], list[list[str]]]:
    """Return some of the numbers of curves as a table."""
    steps = sorted(
        {int(step) for one in series.values() for step in one.steps} | {s for some in dots.values() for s in some}
    )
    chosen = [steps[place] for place in np.unique(np.linspace(0, len(steps) - 1, min(ROWS, len(steps))).astype(int))]
    by_name: dict[str, Mapping[int, float | None]] = {
        name: dict(zip(one.steps.tolist(), one.means.tolist(), strict=True)) for name, one in series.items()
    }
    by_name |= dots
    return ["step", *by_name], [
        [f"{step:,}", *(number(some.get(step)) for some in by_name.values())] for step in chosen
    ]


def summary_of(series: Mapping[str, Curve], dots: Mapping[str, Mapping[int, float | None]]) -> str:
    """Return curves in a sentence, for who can't see them."""
    values = {name: one.means.tolist() for name, one in series.items()}
    values |= {name: list(some.values()) for name, some in dots.items()}
    return "; ".join(f"{name} from {number(some[0])} to {number(some[-1])}" for name, some in values.items() if some)


def number(value: Any) -> str:
    """Return a number for a reader, with four digits, or all that it has before the point; a dash for none."""
    if not is_number(value) or value is None or not np.isfinite(value):
        return "–"
    return f"{value:,}" if isinstance(value, int) else amount(value) if abs(value) >= 100 else f"{value:.4g}"


def plain(value: Any) -> float | None:
    """Return a number as JSON can hold it, with six digits: a page needs no more."""
    return float(f"{value:.6g}") if np.isfinite(value) else None
