"""A small run of recipes/classify.py: a table that is written here, the embedded model in float64."""

import json
from pathlib import Path

WORDS = ("red", "green", "blue", "one", "two", "three", "four")


def arguments(folder: Path) -> list[str]:
    """Write 37 training and 11 evaluation rows into the folder, and return the flags of a run on them."""
    for name, count in (("train", 37), ("eval", 11)):
        rows = [
            {"text": " ".join(WORDS[(row * k) % 7] for k in range(1, 2 + row % 5)), "label": "ab"[row % 3 == 0]}
            for row in range(count)
        ]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    data = ["--data.train", str(folder / "train.jsonl"), "--data.eval", str(folder / "eval.jsonl")]
    length = ["--epochs", "null", "--steps", "6", "--evaluate.every", "3"]
    return [*data, *length, "--model.dtype", "float64", "--batch.size", "8", "--batch.eval", "4"]
