"""The embedded corpus: the docstrings of the Python standard library, each labelled with the package it belongs to.

It is on every machine, needs no network and has no licence question; nothing is shipped. It differs a little between
versions of Python (3.12 has no `distutils`, some systems leave `tkinter` out), so no number may hang on its exact size.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from toolkit.sample_data.library import docstrings_of, library_files, library_rows

LEAST_LENGTH = 25
"""Characters of the shortest docstring that is kept: shorter ones ("Return True.") say nothing of their package."""
LEAST_COUNT = 100
"""Docstrings that a package must have to be a class."""


def docstrings() -> list[dict[str, str]]:
    """Return rows of "text" and "label", always in the same order.

    In Python 3.11 these are 4,571 docstrings of 18 packages. The first call on a machine parses some 730 files, which
    takes 2 to 6 s; any later one reads a file of 1.5 MB.
    """
    return library_rows("docstrings", lambda library: selected(read_library(library)), __file__)


def read_library(library: Path) -> Iterator[tuple[str, str]]:
    """Yield every docstring below a folder with the top-level package or module that it stands in, in order of path."""
    for path, parts in library_files(library):
        package = parts[0].removesuffix(".py")
        for text in docstrings_of(path):
            yield text, package


def selected(found: Iterator[tuple[str, str]]) -> list[dict[str, str]]:
    """Return the rows that make the corpus: long enough, each text once, and of a package with enough of them."""
    first: dict[str, str] = {}
    for text, package in found:
        # A lone surrogate, written as an escape in some docstring, is no text that a tokenizer takes.
        if len(text) >= LEAST_LENGTH and not any("\ud800" <= character <= "\udfff" for character in text):
            first.setdefault(text, package)
    counts = Counter(first.values())
    return [{"text": text, "label": package} for text, package in first.items() if counts[package] >= LEAST_COUNT]
