"""A small run of the recipe that answers questions: what it takes, as files and flags."""

import json
import random
from pathlib import Path
from typing import Any

WORDS = ["amber", "basil", "cedar", "delta", "ember", "fjord", "grove", "heron", "islet", "jetty", "knoll", "lagoon"]
PLACES = ["attic", "barn", "cellar", "den", "engine room", "forge"]


def questions(count: int, seed: int, missing: bool = True, most: int = 6) -> list[dict[str, Any]]:
    """Return rows on where up to `most` things lie; with `missing` some ask for a thing that lies nowhere."""
    generator = random.Random(seed)
    rows = []
    for number in range(count):
        things = generator.sample(WORDS, generator.randint(2, most))
        places = [generator.choice(PLACES) for _ in things]
        context = " ".join(f"The {thing} lies in the {place}." for thing, place in zip(things, places, strict=True))
        asked = generator.randrange(len(things))
        if missing and number % 5 == 4:
            absent = next(word for word in WORDS if word not in things)
            question, answers = f"Where is the {absent}?", {"text": [], "answer_start": []}
        else:
            question = f"Where is the {things[asked]}?"
            start = context.index(f"The {things[asked]} ") + len(f"The {things[asked]} lies in the ")
            answers = {"text": [places[asked]], "answer_start": [start]}
        rows.append({"id": str(number), "context": context, "question": question, "answers": answers})
    return rows


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Write json lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def arguments(folder: Path) -> list[str]:
    """Write 37 training and 11 evaluation questions and return the flags of a run of 6 steps; some have windows."""
    train = write_rows(folder / "train.jsonl", questions(37, 0))
    held_out = write_rows(folder / "eval.jsonl", questions(11, 1))
    flags = "--data.max_length 32 --data.stride 8 --model.dtype float64 --epochs null --steps 6"
    more = "--batch.size 8 --batch.eval 4 --evaluate.every 3 --optim.lr 1e-3"
    return ["--data.train", str(train), "--data.eval", str(held_out), *flags.split(), *more.split()]
