"""A small run of the recipe that tags words: CoNLL files that are written here, with sentences of several windows."""

import random
from pathlib import Path

PEOPLE = ["Ada", "Blaise", "Carl", "Emmy"]
FAMILIES = ["Gauss", "Noether", "Pascal"]
PLACES = ["Basel", "Turin", "Ghent", "Lyon"]
OTHERS = ["walks", "to", "from", "near", "and", "sleeps", "in", "extraordinarily", "quiet", "weather", "."]

Sentence = tuple[list[str], list[str]]


def sentences(count: int, seed: int, longest: int = 5) -> list[Sentence]:
    """Return words and BIO tags; every fifth sentence is much longer than the others."""
    generator = random.Random(seed)
    made = []
    for number in range(count):
        words: list[str] = []
        tags: list[str] = []
        for _ in range(generator.randint(1, longest) * (4 if number % 5 == 4 else 1)):
            kind = generator.randrange(3)
            if kind == 0:
                words += [generator.choice(PEOPLE), generator.choice(FAMILIES)]
                tags += ["B-person", "I-person"]
            elif kind == 1:
                words.append(generator.choice(PLACES))
                tags.append("B-place")
            # Now and then a place is meant as another thing, so that nobody gets everything right.
            words.append(generator.choice(PLACES if kind == 2 and generator.random() < 0.3 else OTHERS))
            tags.append("O")
        made.append((words, tags))
    return made


def write_conll(path: Path, rows: list[Sentence], separator: str = "\t") -> Path:
    """Write a CoNLL file."""
    blocks = ["".join(f"{word}{separator}{tag}\n" for word, tag in zip(*row, strict=True)) for row in rows]
    path.write_text("\n".join(blocks), encoding="utf-8")
    return path


def weighted(folder: Path) -> list[str]:
    """Return the flags of a run in which rare tags count more, and targets are smoothed."""
    return [*arguments(folder), "--loss.class_weights", "balanced", "--loss.label_smoothing", "0.1"]


def arguments(folder: Path) -> list[str]:
    """Write 37 training and 11 evaluation sentences and return the flags of a run of 6 steps."""
    train = write_conll(folder / "train.conll", sentences(37, 0))
    held_out = write_conll(folder / "eval.conll", sentences(11, 1))
    flags = "--data.max_length 24 --model.dtype float64 --epochs null --steps 6"
    more = "--batch.size 8 --batch.eval 4 --evaluate.every 3"
    return ["--data.train", str(train), "--data.eval", str(held_out), *flags.split(), *more.split()]
