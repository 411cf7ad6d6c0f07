"""Plain text that every machine has: the docstrings of the Python standard library, a document for each of its files.

Nothing is shipped. The library differs a little between versions of Python, so no number may hang on its exact size.
"""

import json
import platform
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from toolkit.cache import digest_of, once_per_machine
from toolkit.corpora.docstrings import LEFT_OUT, docstrings_of

BETWEEN = "\n\n"
"""What stands between two docstrings of a file."""


def docstrings_by_file() -> list[dict[str, str]]:
    """Return rows of "text" and "module", in order of path; a docstring that was met before is left out.

    In Python 3.11 these are some 600 documents of 1.5 MB together. The first call on a machine parses the library, which takes
    2 to 6 s; any later one reads a file of that size.
    """
    library = Path(sysconfig.get_paths()["stdlib"])
    # The code is part of the key: another rule makes another corpus.
    key = digest_of(platform.python_version(), str(library), Path(__file__).read_bytes())
    folder = once_per_machine("corpus_language", key, lambda empty: _write(read_documents(library), empty))
    with (folder / "documents.jsonl").open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def read_documents(library: Path) -> Iterator[dict[str, str]]:
    """Yield what the files below a folder say of themselves, in order of path."""
    met: set[str] = set()
    for path in sorted(library.rglob("*.py"), key=lambda path: path.relative_to(library).parts):
        inner = path.relative_to(library)
        if not LEFT_OUT.isdisjoint(inner.parts):
            continue
        texts = []
        for text in docstrings_of(path):
            # A lone surrogate, written as an escape in some docstring, is no text that a tokenizer takes.
            if text not in met and not any("\ud800" <= character <= "\udfff" for character in text):
                met.add(text)
                texts.append(text)
        if texts:
            yield {"text": BETWEEN.join(texts) + "\n", "module": inner.as_posix()}


def _write(rows: Iterator[dict[str, str]], folder: Path) -> None:
    with (folder / "documents.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
