"""Dates as people write them, in twelve formats, each with the same date in ISO 8601: made by arithmetic."""

import datetime

FIRST, DAYS = datetime.date(1900, 1, 1), 73_049
"""The days from 1900 to 2099."""
STRIDE = 28_657
"""A prime that does not divide the number of days: its multiples reach each day once, in an order that looks random."""
TRAINING, HELD_OUT = 20_000, 300
MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
# Dots mean that the day comes first, slashes that the month or the year does, so that every text means one date.
FORMATS = (
    "{day} {month} {year}",
    "{month} {day}, {year}",
    "{day} {month:.3} {year}",
    "{month:.3} {day}, {year}",
    "{weekday}, {day} {month} {year}",
    "{weekday:.3} {month:.3} {day} {year}",
    "the {day}{ending} of {month} {year}",
    "{month} {day}{ending}, {year}",
    "{day:02}-{month:.3}-{year}",
    "{day:02}.{number:02}.{year}",
    "{number:02}/{day:02}/{year}",
    "{year}/{number:02}/{day:02}",
)


def written_dates() -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """Return 20,000 rows of "source" and "target" to train on and 300 to evaluate on; no date is in both."""
    rows = []
    for number in range(TRAINING + HELD_OUT):
        date = FIRST + datetime.timedelta(days=number * STRIDE % DAYS)
        rows.append({"source": written(date, FORMATS[number % len(FORMATS)]), "target": date.isoformat()})
    return rows[:TRAINING], rows[TRAINING:]


def written(date: datetime.date, layout: str) -> str:
    """Return a date in one of the formats, in English whatever the locale."""
    return layout.format(
        day=date.day,
        number=date.month,
        year=date.year,
        month=MONTHS[date.month - 1],
        weekday=WEEKDAYS[date.weekday()],
        ending="th" if 10 < date.day < 14 else {1: "st", 2: "nd", 3: "rd"}.get(date.day % 10, "th"),
    )
