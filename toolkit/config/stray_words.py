"""What was probably meant by a word of the command line that is no flag, and not the value of one."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from toolkit.config.suggestions import nearest, show
from toolkit.config.values import as_list, takes

LONG_DASHES = "–—−"
"""What an office program or a web page makes of two hyphens."""


def split_value(name: str, known: Mapping[str, Any], words: Sequence[str]) -> str | None:
    """Return the problem of a flag that is followed by several words, if they are one value that the shell took apart.

    Args:
        name: of the flag.
        known: the type of each setting, by its dotted key.
        words: what follows it, two at least.
    """
    hint = known.get(name)
    if any(stands_alone(word) or word in known for word in words[1:]):
        return None
    if listed := as_list(hint, " ".join(words)):
        written = listed
    elif takes(hint, str):
        written = " ".join(words)
    else:
        return None
    return f'--{name} is followed by {len(words)} words, and takes one value; write --{name} "{written}"'


def stands_alone(word: str) -> bool:
    """Return whether a word is something of its own: a file, a setting, or a flag with a long dash."""
    return "=" in word or word == "help" or has_long_dash(word) or exists(word)


def has_long_dash(word: str) -> bool:
    """Return whether a word begins with what was to be the hyphens of a flag."""
    return bool(word) and word[0] in LONG_DASHES


def exists(word: str) -> bool:
    """Return whether there is a file or folder of this name."""
    try:
        return bool(word) and Path(word).exists()
    except (OSError, ValueError):  # no name for a file
        return False


def stray_word(word: str, known: Mapping[str, Any], given: Sequence[str]) -> str:
    """Return the problem of a word that belongs to nothing, with what was probably meant.

    Args:
        word: as it was given.
        known: the type of each setting, by its dotted key.
        given: all words of the command.
    """
    if has_long_dash(word):
        name = word.lstrip(LONG_DASHES)
        meant = nearest(name, known)
        hint = f"; did you mean --{meant[0]}?" if name and meant else ""
        return f"{show(word)} begins with a long dash, and flags begin with two hyphens{hint}"
    name, equals, value = word.partition("=")
    if equals and (meant := nearest(name, known)):
        return f"{show(word)} is not a flag; did you mean --{meant[0]} {value}?"
    if word == "help":
        return "help is not a flag; did you mean --help?"
    if exists(word):
        for name in ("data.train", "data.eval"):
            if name in known and not any(each.startswith(f"--{name}") for each in given):
                return f"{show(word)} is not a flag; did you mean --{name} {word}?"
    if word in known:
        return f"{show(word)} is not a flag; did you mean --{word}?"
    return f"{show(word)} is not a flag; a setting is given as --name value"
