"""The docstrings of the Python standard library: each with its package, or all of a file as a document."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from toolkit.sample_data.standard_library import docstrings_of, library_files, library_rows

LEAST_LENGTH = 25
"""Characters of the shortest docstring that is kept: shorter ones ("Return True.") say nothing of their package."""
LEAST_COUNT = 100
"""Docstrings that a package must have to be a class."""
BETWEEN = "\n\n"
"""What stands between two docstrings of a file."""


def docstrings() -> list[dict[str, str]]:
    """Return rows of "text" and "label", always in the same order; in Python 3.11 4,571 docstrings of 18 packages."""
    return library_rows("docstrings", lambda library: selected(read_library(library)), __file__)


def docstrings_by_file() -> list[dict[str, str]]:
    """Return rows of "text" and "module", in order of path; in Python 3.11 some 600 documents of 1.5 MB together.

    A docstring that an earlier file has too is left out.
    """
    return library_rows("documents", read_documents, __file__)


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
        if len(text) >= LEAST_LENGTH and _can_be_encoded(text):
            first.setdefault(text, package)
    counts = Counter(first.values())
    return [{"text": text, "label": package} for text, package in first.items() if counts[package] >= LEAST_COUNT]


def read_documents(library: Path) -> Iterator[dict[str, str]]:
    """Yield what the files below a folder say of themselves, in order of path."""
    seen: set[str] = set()
    for path, parts in library_files(library):
        texts = []
        for text in docstrings_of(path):
            if text not in seen and _can_be_encoded(text):
                seen.add(text)
                texts.append(text)
        if texts:
            yield {"text": BETWEEN.join(texts) + "\n", "module": "/".join(parts)}


def _can_be_encoded(text: str) -> bool:
    # A lone surrogate, written as an escape in some docstring, is no text that a tokenizer takes.
    return not any("\ud800" <= character <= "\udfff" for character in text)
