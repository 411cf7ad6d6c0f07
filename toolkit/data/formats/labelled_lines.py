"""Texts with a label and a text on each line, and a space between them, as TREC and fastText have them."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.data.formats.csv import texts_table
from toolkit.data.formats.text import LINES_LOOKED_AT, first_lines, open_text
from toolkit.errors import UserError

if TYPE_CHECKING:
    import pyarrow


def looks_labelled(path: Path) -> bool:
    """Tell whether the first words of the first lines come again and again, as labels do."""
    lines = first_lines(path, LINES_LOOKED_AT, newline="\n")
    labels = [line.split(maxsplit=1)[0] for line in lines]
    return len(labels) > 3 and len(set(labels)) <= len(labels) / 2 and all(" " in line.strip() for line in lines)


def read_labelled_lines(path: Path, names: Sequence[str]) -> "pyarrow.Table":
    """Return the first word of each line that is not blank, and the rest of the line, under two names.

    Raises:
        UserError: a line is one word.
    """
    return texts_table(labelled_lines(path), names)


def first_words(path: Path) -> list[str]:
    """Return the first words of the first lines."""
    return [line.split(maxsplit=1)[0] for line in first_lines(path, LINES_LOOKED_AT, newline="\n")]


def labelled_lines(path: Path) -> Iterator[list[str | None]]:
    """Yield the first word of each line that is not blank, and the rest of the line.

    Raises:
        UserError: a line is one word.
    """
    with open_text(path, newline="\n") as file:
        for number, line in enumerate(file, start=1):
            parts = line.strip().split(" ", 1)
            if len(parts) == 2:
                yield [parts[0], parts[1].lstrip()]
            elif parts[0]:
                raise UserError(
                    f"{path}, line {number}: {parts[0]!r} is a single word; each line has to be a label, a space and "
                    "a text"
                )
