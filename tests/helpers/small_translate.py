"""Translations for the test that runs every recipe in the same ways."""

import json
from pathlib import Path

ENGLISH = ["red", "green", "blue", "one", "two", "three", "four"]
GERMAN = ["rot", "grün", "blau", "eins", "zwei", "drei", "vier"]


def rows(count: int, first: int = 0) -> list[dict[str, object]]:
    """Return sentences of one to six words in two languages, as translation sets of the hub have them."""
    made: list[dict[str, object]] = []
    for number in range(first, first + count):
        words = [(5 * number + 3 * place) % 7 for place in range(1 + number % 6)]
        made.append(
            {"translation": {"en": " ".join(ENGLISH[w] for w in words), "de": " ".join(GERMAN[w] for w in words)}}
        )
    return made


def write(path: Path, made: list[dict[str, object]]) -> str:
    """Write rows as JSON lines and return the path."""
    path.write_text("".join(json.dumps(row) + "\n" for row in made), encoding="utf-8")
    return str(path)


def arguments(folder: Path) -> list[str]:
    """Write the data and return the flags of a run of six steps."""
    train, held_out = write(folder / "train.jsonl", rows(37)), write(folder / "eval.jsonl", rows(11, first=37))
    data = [
        "--data.train",
        train,
        "--data.eval",
        held_out,
        "--data.source_language",
        "en",
        "--data.target_language",
        "de",
    ]
    model = ["--model.dtype", "float64", "--generate.max_length", "8"]
    run = ["--epochs", "null", "--steps", "6", "--batch.size", "8", "--evaluate.every", "3", "--batch.eval", "4"]
    return [*data, *model, *run]
