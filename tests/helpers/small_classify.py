"""A small run of recipes/classify.py: a table that is written here, the embedded model in float64."""

import json
from pathlib import Path

WORDS = ("red", "green", "blue", "one", "two", "three", "four")


def weighted(folder: Path) -> list[str]:
    """Return the flags of a run in which labels and rows count differently, targets are smoothed, and what is certain
    counts less."""
    weights = ["--data.weight", "weight", "--loss.class_weights", "{a: 0.3, b: 1.7}"]
    return [*arguments(folder), *weights, "--loss.label_smoothing", "0.1", "--loss.focal", "2"]


def several(folder: Path) -> list[str]:
    """Return the flags of a run whose texts have several labels, balanced, under the focal loss."""
    return [*arguments(folder), "--data.label", "several", "--loss.class_weights", "balanced", "--loss.focal", "1.5"]


def arguments(folder: Path) -> list[str]:
    """Write 37 training and 11 evaluation rows into the folder, and return the flags of a run on them."""
    for name, count in (("train", 37), ("eval", 11)):
        rows = [
            {
                "text": " ".join(WORDS[(row * k) % 7] for k in range(1, 2 + row % 5)),
                "label": "ab"[row % 3 == 0],
                "several": [label for label, every in (("x", 2), ("y", 3), ("z", 5)) if row % every == 0],
                "weight": (row % 4) / 10,
            }
            for row in range(count)
        ]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    data = ["--data.train", str(folder / "train.jsonl"), "--data.eval", str(folder / "eval.jsonl")]
    length = ["--epochs", "null", "--steps", "6", "--evaluate.every", "3"]
    return [*data, *length, "--model.dtype", "float64", "--batch.size", "8", "--batch.eval", "4"]
