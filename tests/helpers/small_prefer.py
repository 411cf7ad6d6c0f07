"""A small run of recipes/prefer.py: pairs that are written here, the embedded model in float64."""

import json
from pathlib import Path
from typing import Any

WORDS = ("red", "green", "blue", "one", "two", "three", "four")


def pairs(count: int) -> list[dict[str, Any]]:
    """Return pairs of different lengths: better is what names the words of the prompt in their order."""
    rows = []
    for row in range(count):
        words = [WORDS[(row * k + k) % 7] for k in range(1, 3 + row % 5)]
        other = [WORDS[(row + 3 * k) % 7] for k in range(1 + row % 4)] + ["and", "more"]
        rows.append(
            {"prompt": f"say {' '.join(words)}: ", "chosen": " then ".join(words), "rejected": " or ".join(other)}
        )
    return rows


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Write json lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def arguments(folder: Path) -> list[str]:
    """Write 37 training and 11 evaluation pairs into the folder, and return the flags of a run on them."""
    train, held_out = (
        write_rows(folder / f"{name}.jsonl", pairs(count)) for name, count in (("train", 37), ("eval", 11))
    )
    data = ["--data.train", str(train), "--data.eval", str(held_out)]
    length = ["--epochs", "null", "--steps", "6", "--evaluate.every", "3"]
    loss = ["--dpo.label_smoothing", "0.1", "--dpo.likelihood", "0.5"]
    return [*data, *length, *loss, "--model.dtype", "float64", "--batch.size", "8", "--batch.eval", "4"]
