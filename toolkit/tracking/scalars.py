"""What a tracker gets of a run: the values of a step and of the end, by name, and the settings."""

import re
from collections.abc import Mapping
from typing import Any

from toolkit.config.yaml import flatten

COPIED = {
    "loss": "train/loss",
    "gradient_norm": "train/grad_norm",
    "learning_rate": "train/lr",
    "epoch": "train/epoch",
    "units": "train/units",
    "padding": "train/padding",
    "seconds": "time/step",
    "waiting": "time/waiting",
    "saving": "time/saving",
    "host_memory": "memory/host",
    "device_memory": "memory/device",
}
"""The name of each value of a ledger row that is sent as it is."""
RATES = {"samples": "speed/samples_per_second", "tokens": "speed/tokens_per_second"}
"""The name of what a ledger row counts, divided by the seconds of the step."""

Values = dict[str, float]


def values_of(row: Mapping[str, Any]) -> Values:
    """Return what is sent of a ledger row, by name; rows of earlier versions may lack some of it.

    A value that is null in the row is left out: not known, or no finite number.
    """
    values = {name: row.get(key) for key, name in COPIED.items()}
    seconds = row.get("seconds") or 0
    if seconds > 0:
        values |= {name: row[key] / seconds for key, name in RATES.items() if row.get(key) is not None}
    values["train/skipped"] = float(bool(row.get("skipped")))
    values |= {plain(f"evaluation/{name}"): value for name, value in (row.get("evaluation") or {}).items()}
    return {name: float(value) for name, value in values.items() if value is not None}


def final_values(record: Mapping[str, Any]) -> Values:
    """Return what is sent of the run.json of a finished run, by name: the metrics of the saved model and the
    baseline's."""
    found = {
        plain(f"{kind}/{name}"): value
        for kind, key in (("final", "metrics"), ("baseline", "baseline"))
        for name, value in (record.get(key) or {}).items()
    }
    return {name: float(value) for name, value in found.items() if value is not None}


def plain(name: str) -> str:
    """Return a name as every tracker takes it: letters, digits, and _ - . /"""
    words = (re.sub(r"[^\w.-]", "_", word) for word in name.split("/"))
    return "/".join(word for word in words if word.strip("."))


def settings_of(config: Mapping[str, Any]) -> dict[str, bool | float | str]:
    """Return the settings of a run flat, by dotted name; a list is written out, and null is a text.

    `track` itself is left out: it says nothing of the run.
    """
    flat = {key: value for key, value in flatten(config).items() if not key.startswith("track.")}
    return {key: value if isinstance(value, bool | int | float | str) else str(value) for key, value in flat.items()}
