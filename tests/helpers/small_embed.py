"""A run of the sentence embedding recipe that takes a second, for the tests that hold for every recipe."""

import csv
import random
from pathlib import Path

WORDS = [
    "amber",
    "basil",
    "cedar",
    "delta",
    "ember",
    "fjord",
    "grove",
    "heath",
    "islet",
    "jetty",
    "kiosk",
    "lemon",
    "maple",
]


def arguments(folder: Path) -> list[str]:
    """Write small pairs that belong together, with negatives, and return the flags of a run on them."""
    for name, count, seed in (("train", 37, 0), ("eval", 11, 1)):
        generator = random.Random(seed)
        with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["anchor", "positive", "negative"])
            for number in range(count):
                # Some anchors come twice: their positives are no negatives of each other.
                own = generator.sample(WORDS, generator.randint(2, 7))
                anchor = " ".join(own) if number % 5 else "a text that comes again"
                writer.writerow([anchor, " ".join([*own[::-1], str(number)]), " ".join(generator.sample(WORDS, 3))])
    files = ["--data.train", str(folder / "train.csv"), "--data.eval", str(folder / "eval.csv")]
    model = ["--model.dtype", "float64", "--contrast.symmetric", "true"]
    steps = ["--epochs", "null", "--steps", "6", "--batch.size", "8", "--evaluate.every", "3", "--batch.eval", "4"]
    return [*files, *model, *steps]
