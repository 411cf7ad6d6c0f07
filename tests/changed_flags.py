"""Flags of a run with some of them changed: the command line refuses a flag that is given twice."""

from collections.abc import Sequence


def changed(flags: Sequence[str], *changes: str) -> list[str]:
    """Return flags, of which those that are among the changes have the value that they have there."""
    found: dict[str, list[str]] = {}
    flag = ""
    for word in (*flags, *changes):
        if word.startswith("--"):
            flag = word
            found[flag] = []
        else:
            found[flag].append(word)
    return [word for flag, values in found.items() for word in (flag, *values)]
