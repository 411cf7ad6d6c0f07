"""The pictures of a task, of the quality of its predictions, and of where the time went."""

from collections.abc import Mapping, Sequence
from typing import Any

from toolkit.report.charts import COLOURS, FAINT, INK, ROWS, Chart, drawn, number, plain

MOST_LABELS = 40
"""A confusion matrix of more labels is a table of its most frequent mistakes."""
NAMED = 15
"""Mistakes in that table."""


def confusion(details: Mapping[str, Any]) -> list[Chart]:
    """Return the picture of a confusion matrix, and its most frequent mistakes as a table."""
    labels, counts = details["labels"], details["counts"]
    totals: dict[int, int] = {}
    for label, _, count in counts:
        totals[label] = totals.get(label, 0) + count
    cells = [
        {
            "label": labels[label],
            "taken for": labels[taken],
            "count": count,
            "share": plain(count / totals[label]),
        }
        for label, taken, count in counts
    ]
    wrong = sorted((cell for cell in cells if cell["label"] != cell["taken for"]), key=lambda cell: -cell["count"])
    rows = [[cell["label"], cell["taken for"], f"{cell['count']:,}", f"{cell['share']:.1%}"] for cell in wrong[:NAMED]]
    head = ["label", "taken for", "samples", "of this label"]
    mistakes = Chart("The most frequent mistakes", None, head, rows or [["none", "–", "0", "–"]])
    seen = [label for label in labels if any(label in (cell["label"], cell["taken for"]) for cell in cells)]
    if len(seen) > MOST_LABELS:
        return [mistakes]
    names = {"labelLimit": 110, "grid": False}
    # Both axes have all labels, those too that are never predicted.
    x = {"field": "taken for", "type": "nominal", "scale": {"domain": seen}, "axis": {**names, "labelAngle": -50}}
    y = {"field": "label", "type": "nominal", "scale": {"domain": seen}, "axis": names}
    # The share is the depth of one colour: a scale of colours can't be made of the names of a style sheet.
    depth = {
        "field": "share",
        "type": "quantitative",
        "scale": {"domain": [0, 1], "range": [0.08, 0.7]},
        "legend": None,
    }
    squares = {
        "mark": {"type": "rect", "tooltip": True, "color": COLOURS[0]},
        "encoding": {
            "x": x,
            "y": y,
            "opacity": depth,
            "tooltip": [
                {"field": "label", "type": "nominal"},
                {"field": "taken for", "type": "nominal"},
                {"field": "count", "type": "quantitative"},
                {"field": "share", "type": "quantitative", "format": ".1%"},
            ],
        },
    }
    counted = {
        "mark": {"type": "text", "color": INK, "fontSize": 11},
        "encoding": {"x": x, "y": y, "text": {"field": "count", "type": "quantitative", "format": ",d"}},
    }
    spec = drawn(
        f"Confusion matrix of {len(seen)} labels; the table has the most frequent mistakes",
        max(160, 22 * len(seen)),
        data={"values": cells},
        layer=[squares, counted],
    )
    note = "Rows are labels, columns what they were taken for; the deeper, the larger the share of the row."
    given = {cell["taken for"] for cell in cells}
    never = [label for label in seen if label not in given]
    note += f" Never predicted: {', '.join(never)}." if never else ""
    return [Chart("Which class is taken for which", spec, head, rows or [["none", "–", "0", "–"]], note, wide=True)]


def counted_labels(rows: Sequence[Mapping[str, Any]]) -> Chart:
    """Return bars of how often each of several labels was found, missed or given wrongly."""
    kinds = ("found", "missed", "wrong")
    values = [{"label": row["label"], "what": kind, "count": row[kind]} for row in rows for kind in kinds]
    spec = drawn(
        "How often each label was found, missed and given wrongly",
        max(120, 22 * len(rows)),
        data={"values": values},
        mark={"type": "bar", "tooltip": True},
        encoding={
            "y": {"field": "label", "type": "nominal", "title": None, "sort": [row["label"] for row in rows]},
            "x": {"field": "count", "type": "quantitative", "stack": "zero", "axis": {"format": "~s"}},
            "color": {
                "field": "what",
                "type": "nominal",
                "scale": {"domain": kinds, "range": COLOURS[:3]},
                "legend": {"title": None, "orient": "top"},
            },
        },
    )
    table = [[str(row["label"]), *(f"{row[kind]:,}" for kind in kinds)] for row in rows]
    return Chart("Labels", spec, ["label", *kinds], table)


def points(pairs: Sequence[Sequence[float | None]]) -> Chart:
    """Return predicted numbers over those that were right."""
    values = [{"right": right, "predicted": given} for right, given in pairs]
    known = [value for pair in pairs for value in pair if value is not None]
    ends = [{"right": end, "predicted": end} for end in (min(known, default=0), max(known, default=1))]
    quantity = {"type": "quantitative", "scale": {"zero": False}}
    encoding = {"x": {"field": "right", **quantity}, "y": {"field": "predicted", **quantity}}
    spec = drawn(
        f"Predicted numbers over the right ones, {len(values)} of them",
        260,
        layer=[
            {
                "data": {"values": ends},
                "mark": {"type": "line", "strokeDash": [4, 3], "stroke": FAINT},
                "encoding": encoding,
            },
            {
                "data": {"values": values},
                "mark": {"type": "point", "filled": True, "opacity": 0.5, "size": 22, "tooltip": True},
                "encoding": {**encoding, "color": {"value": COLOURS[0]}},
            },
        ],
    )
    chosen = values[:: max(1, len(values) // ROWS)][:ROWS]
    table = [[number(one["right"]), number(one["predicted"])] for one in chosen]
    return Chart("Predicted and right", spec, ["right", "predicted"], table, "On the dashed line both are the same.")


def histogram(name: str, found: Mapping[str, Sequence[float]]) -> Chart:
    """Return how many samples have which quality."""
    edges, counts = found["edges"], found["counts"]
    values = [
        {"from": plain(low), "to": plain(high), "samples": count}
        for low, high, count in zip(edges[:-1], edges[1:], counts, strict=True)
    ]
    spec = drawn(
        f"How many samples have which {name}",
        170,
        data={"values": values},
        mark={"type": "bar", "tooltip": True, "color": COLOURS[0]},
        encoding={
            "x": {"field": "from", "type": "quantitative", "title": name, "bin": {"binned": True}},
            "x2": {"field": "to"},
            "y": {"field": "samples", "type": "quantitative", "title": "samples", "axis": {"format": "~s"}},
            "tooltip": [{"field": field, "type": "quantitative"} for field in ("from", "to", "samples")],
        },
    )
    table = [
        [f"{number(one['from'])} to {number(one['to'])}", f"{one['samples']:,}"] for one in values if one["samples"]
    ]
    return Chart("Quality of single predictions", spec, [name, "samples"], table)


def by_length(name: str, groups: Sequence[Mapping[str, float]]) -> Chart:
    """Return the quality of short and of long samples."""
    values = [
        {**group, "length": f"{group['from']:,}–{group['to']:,}", "mean": plain(group["mean"])} for group in groups
    ]
    spec = drawn(
        f"{name} of short and of long samples",
        170,
        data={"values": values},
        mark={"type": "bar", "tooltip": True, "color": COLOURS[0]},
        encoding={
            "x": {"field": "length", "type": "ordinal", "sort": None, "title": "length", "axis": {"labelAngle": -40}},
            "y": {"field": "mean", "type": "quantitative", "title": "mean"},
            "tooltip": [
                {"field": "length", "type": "nominal"},
                {"field": "mean", "type": "quantitative", "format": ".4~g"},
                {"field": "samples", "type": "quantitative", "format": ",d"},
            ],
        },
    )
    table = [[str(one["length"]), number(one["mean"]), number(one["samples"])] for one in values]
    return Chart("Quality by length", spec, ["length", f"mean {name}", "samples"], table)


def spent(parts: Mapping[str, float]) -> Chart:
    """Return where the time of a run went, in seconds by name."""
    total = sum(parts.values()) or 1.0
    values = [
        {"what": name, "seconds": plain(seconds), "share": plain(seconds / total)} for name, seconds in parts.items()
    ]
    spec = drawn(
        "Where the time went",
        70,
        data={"values": values},
        mark={"type": "bar", "tooltip": True},
        encoding={
            "x": {
                "field": "seconds",
                "type": "quantitative",
                "stack": "zero",
                "title": "seconds",
                "axis": {"format": "~s"},
            },
            "color": {
                "field": "what",
                "type": "nominal",
                "scale": {"domain": list(parts), "range": COLOURS},
                "legend": {"title": None, "orient": "top", "columns": 3},
            },
            "order": {"field": "share", "sort": "descending"},
            "tooltip": [
                {"field": "what", "type": "nominal"},
                {"field": "seconds", "type": "quantitative", "format": ",.1f"},
                {"field": "share", "type": "quantitative", "format": ".1%"},
            ],
        },
    )
    table = [[name, number(seconds), f"{seconds / total:.1%}"] for name, seconds in parts.items()]
    return Chart("Where the time went", spec, ["what", "seconds", "share"], table)
