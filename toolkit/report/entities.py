"""The picture of the errors of entities."""

from collections.abc import Mapping, Sequence
from typing import Any

from toolkit.report.charts import COLOURS, FAINT, INK, Chart, drawn, plain

BLUE, ORANGE, _, VIOLET, ROSE, TEAL = COLOURS
WANTED = ("exact", "wrong_type", "wrong_boundary", "both_wrong", "missed")
"""What becomes of the entities of the references; together they are all of them."""
SPURIOUS = "spurious"
OUTCOMES = (*WANTED, SPURIOUS)
OWN_COLOURS = (BLUE, ORANGE, VIOLET, ROSE, FAINT, TEAL)
"""Of the outcomes; what is missed has none, and green would look right."""
MOST_TYPES = 40
"""Types that are drawn; the table has all."""
UNNAMED = "(no type)"
"""Of an entity whose tags are B and I alone."""


def entity_errors(rows: Sequence[Mapping[str, Any]]) -> Chart:
    """Return bars of how many entities of each type were found, mistaken, and missed, and of what was none."""
    named = [{**row, "type": row["type"] or UNNAMED} for row in rows]
    totals = {row["type"]: sum(row[how] for how in WANTED) for row in named}
    ordered = sorted(named, key=lambda row: (-totals[row["type"]], row["type"]))
    all_types = {how: sum(row[how] for row in ordered) for how in OUTCOMES}
    whole = sum(totals.values())
    table = [
        [name, f"{total:,}", *(f"{row[how]:,}" for how in OUTCOMES)]
        for name, total, row in [
            *((row["type"], totals[row["type"]], row) for row in ordered),
            ("all types", whole, all_types),
        ]
    ]
    shown = ordered[:MOST_TYPES]
    note = (
        "To the right of zero stand all entities of a type in the references, to the left what was predicted where "
        "none is. A wrong boundary shares at least one word with the right one."
    )
    note += f" The {MOST_TYPES} most frequent of {len(ordered):,} types are drawn." if len(ordered) > len(shown) else ""
    return Chart(
        "Errors of entities",
        spec_of(shown, totals, f"{all_types['exact']:,} of {whole:,} entities were found exactly"),
        ["type", "entities", *map(in_full, OUTCOMES)],
        table,
        note,
        wide=True,
    )


def spec_of(rows: Sequence[Mapping[str, Any]], totals: Mapping[str, int], description: str) -> dict[str, Any]:
    """Return the bars of these types; `totals` are their entities in the references."""
    values = [
        {
            "type": row["type"],
            "what": in_full(how),
            "place": place,
            "entities": row[how],
            "length": -row[how] if how == SPURIOUS else row[how],
            "of": totals[row["type"]],
            "share": plain(row[how] / totals[row["type"]]) if totals[row["type"]] else None,
        }
        for row in rows
        for place, how in enumerate(OUTCOMES)
        if row[how]
    ]
    names = [row["type"] for row in rows]
    bars = {
        "mark": {"type": "bar", "tooltip": True},
        "encoding": {
            "y": {
                "field": "type",
                "type": "nominal",
                "title": None,
                "sort": names,
                "scale": {"domain": names},
                "axis": {"labelLimit": 110},
            },
            "x": {
                "field": "length",
                "type": "quantitative",
                "stack": "zero",
                "title": "← spurious · in the references →",
                "axis": {"labelExpr": "format(abs(datum.value), '~s')", "tickMinStep": 1},
            },
            "order": {"field": "place", "type": "quantitative"},
            "color": {
                "field": "what",
                "type": "nominal",
                "scale": {"domain": list(map(in_full, OUTCOMES)), "range": OWN_COLOURS},
                "legend": {"title": None, "orient": "top", "columns": 2},
            },
            "tooltip": [
                {"field": "type", "type": "nominal"},
                {"field": "what", "type": "nominal"},
                {"field": "entities", "type": "quantitative", "format": ",d"},
                {"field": "of", "type": "quantitative", "title": "references", "format": ",d"},
            ],
        },
    }
    zero = {
        "mark": {"type": "rule", "stroke": INK, "aria": False},
        "encoding": {"x": {"datum": 0, "type": "quantitative"}},
    }
    return drawn(description, max(90, 26 * len(rows)), data={"values": values}, layer=[bars, zero])


def in_full(how: str) -> str:
    """Return an outcome as a reader sees it."""
    return how.replace("_", " ")
