"""Summaries for the test that runs every recipe in the same ways."""

import json
from pathlib import Path

WORDS = ["red", "green", "blue", "one", "two", "three", "four", "five", "six", "seven", "eight"]


def rows(count: int, first: int = 0) -> list[dict[str, object]]:
    """Return texts of 3 to 12 words, each with its first word and the number of its words; some have two references."""
    made: list[dict[str, object]] = []
    for number in range(first, first + count):
        words = [WORDS[(7 * number + 3 * place) % 11] for place in range(3 + number % 10)]
        target = f"{words[0]} and {len(words) - 1} more"
        made.append({"document": " ".join(words), "summary": [target, words[0]] if number % 3 == 0 else [target]})
    return made


def write(path: Path, made: list[dict[str, object]]) -> str:
    """Write rows as JSON lines and return the path."""
    path.write_text("".join(json.dumps(row) + "\n" for row in made), encoding="utf-8")
    return str(path)


def arguments(folder: Path) -> list[str]:
    """Write the data and return the flags of a run of six steps."""
    train, held_out = write(folder / "train.jsonl", rows(37)), write(folder / "eval.jsonl", rows(11, first=37))
    model = ["--model.dtype", "float64", "--generate.max_length", "8"]
    run = ["--epochs", "null", "--steps", "6", "--batch.size", "8", "--evaluate.every", "3", "--batch.eval", "4"]
    return ["--data.train", train, "--data.eval", held_out, "--data.prefix", "summarize: ", *model, *run]
