"""Plain text that every machine has: the docstrings of the Python standard library, a document for each of its files.

Nothing is shipped. The library differs a little between versions of Python, so no number may hang on its exact size.
"""

from collections.abc import Iterator
from pathlib import Path

from toolkit.sample_data.library import docstrings_of, library_files, library_rows

BETWEEN = "\n\n"
"""What stands between two docstrings of a file."""


def docstrings_by_file() -> list[dict[str, str]]:
    """Return rows of "text" and "module", in order of path; a docstring that was met before is left out.

    In Python 3.11 these are some 600 documents of 1.5 MB together. The first call on a machine parses the library, which takes
    2 to 6 s; any later one reads a file of that size.
    """
    return library_rows("documents", read_documents, __file__)


def read_documents(library: Path) -> Iterator[dict[str, str]]:
    """Yield what the files below a folder say of themselves, in order of path."""
    met: set[str] = set()
    for path, parts in library_files(library):
        texts = []
        for text in docstrings_of(path):
            # A lone surrogate, written as an escape in some docstring, is no text that a tokenizer takes.
            if text not in met and not any("\ud800" <= character <= "\udfff" for character in text):
                met.add(text)
                texts.append(text)
        if texts:
            yield {"text": BETWEEN.join(texts) + "\n", "module": "/".join(parts)}
