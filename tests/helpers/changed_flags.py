"""Flags of a run with some of them changed: the command line refuses a flag that is given twice."""

from collections.abc import Sequence

from toolkit.output.saved_run import OF_TRAINING


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


def without_training(flags: Sequence[str]) -> list[str]:
    """Return flags without those of the training, which an evaluation refuses."""
    kept, is_kept = [], True
    for word in flags:
        if word.startswith("--"):
            is_kept = not word.removeprefix("--").startswith(OF_TRAINING)
        if is_kept:
            kept.append(word)
    return kept
