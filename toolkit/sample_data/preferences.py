"""Pairs to prefer between: a sentence of the documentation of the Python standard library, and its words shuffled.

Which of the two is better is no matter of taste, so that a small model learns it in a minute. The first word has no
capital letter and the last one no full stop, so that the model has to read the order of the words.
"""

import re
from collections.abc import Iterator
from hashlib import blake2b
from itertools import count
from pathlib import Path

from toolkit.data.config import split_rows
from toolkit.sample_data.standard_library import docstrings_of, library_files, library_rows

FEWEST, MOST = 5, 25
"""Words of the sentences that are kept: of fewer the order may be free, more take long to read."""
END = re.compile(r"(?<=[.!?])\s|:\s|\n\s*\n")
"""Where the first sentence of a docstring ends."""
WORD = re.compile(r"[\w'-]+[,;]?")
"""What counts as a word of a sentence: no code, no brackets."""

Rows = list[dict[str, str]]


def shuffled_sentences(share: float) -> tuple[Rows, Rows]:
    """Return rows of "prompt" (a module), "chosen" (a sentence on it) and "rejected" (the same words).

    The first are to train on. The second, to evaluate on, are those of a share of the files, and have no file and no
    sentence in common with the first.
    """
    rows = library_rows("preferences", read_pairs, __file__)
    modules = list(dict.fromkeys(row["prompt"] for row in rows))
    held = {modules[number] for number in split_rows(len(modules), share)[1]}
    return [row for row in rows if row["prompt"] not in held], [row for row in rows if row["prompt"] in held]


def read_pairs(library: Path) -> Iterator[dict[str, str]]:
    """Yield a row for every sentence below a folder, each once, in order of path."""
    seen: set[str] = set()
    for path, parts in library_files(library):
        module = ".".join(parts).removesuffix(".py")
        for docstring in docstrings_of(path):
            sentence = first_sentence(docstring)
            if sentence is not None and sentence not in seen:
                seen.add(sentence)
                yield {"prompt": f"{module}: ", "chosen": sentence, "rejected": shuffled(sentence)}


def first_sentence(docstring: str) -> str | None:
    """Return the first sentence in words alone, or None if it is too short, too long, or has something else in it."""
    words = END.split(docstring.strip(), maxsplit=1)[0].rstrip(".!?").split()
    if not FEWEST <= len(words) <= MOST or len(set(words)) < 2 or not all(map(WORD.fullmatch, words)):
        return None
    # A name in capitals keeps them.
    first = words[0] if words[0][1:] != words[0][1:].lower() else words[0].lower()
    return " ".join([first, *words[1:]])


def shuffled(sentence: str) -> str:
    """Return the words of a sentence in another order, which follows from the sentence alone.

    Raises:
        ValueError: all its words are equal.
    """
    words = sentence.split()
    if len(set(words)) < 2:
        raise ValueError(f"the words of {sentence!r} have one order only")
    for attempt in count():
        keys = [blake2b(f"{attempt} {place} {sentence}".encode()).digest() for place in range(len(words))]
        other = " ".join(words[place] for place in sorted(range(len(words)), key=keys.__getitem__))
        if other != sentence:
            return other
    raise AssertionError
