"""A small run of the language recipe, on text files that are made here."""

import random
from pathlib import Path

WORDS = (
    "the",
    "a",
    "red",
    "blue",
    "small",
    "large",
    "dog",
    "cat",
    "bird",
    "house",
    "river",
    "sees",
    "finds",
    "under",
    "and",
)


def lines(count: int, seed: int) -> str:
    """Return so many lines of random words, of different lengths."""
    generator = random.Random(seed)
    return "".join(" ".join(generator.choices(WORDS, k=generator.randint(2, 11))) + ".\n" for _ in range(count))


def write_texts(folder: Path) -> tuple[Path, Path]:
    """Write a folder of three text files to train on, and a file to evaluate on."""
    train, evaluate = folder / "texts", folder / "held-out.txt"
    train.mkdir(parents=True, exist_ok=True)
    for number, count in enumerate((60, 1, 18)):
        (train / f"{number}.txt").write_text(lines(count, number), encoding="utf-8")
    evaluate.write_text(lines(24, 9), encoding="utf-8")
    return train, evaluate


def arguments(folder: Path, objective: str = "causal") -> list[str]:
    """Return the flags of a run of six steps; the last block of either part is shorter than the others."""
    train, evaluate = write_texts(folder)
    return [
        *("--objective", objective, "--data.train", str(train), "--data.eval", str(evaluate), "--data.block", "17"),
        *("--model.dtype", "float64", "--epochs", "null", "--steps", "6", "--batch.size", "8"),
        *("--evaluate.every", "3", "--batch.eval", "4"),
    ]
