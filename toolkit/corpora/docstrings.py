"""The embedded corpus: the docstrings of the Python standard library, each labelled with the package it belongs to.

It is on every machine, needs no network and has no licence question; nothing is shipped. It differs a little between
versions of Python (3.12 has no `distutils`, some systems leave `tkinter` out), so no number may hang on its exact size.
"""

import ast
import json
import platform
import sysconfig
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from toolkit.cache import digest_of, once_per_machine

LEAST_LENGTH = 25
"""Characters of the shortest docstring that is kept: shorter ones ("Return True.") say nothing of their package."""
LEAST_COUNT = 100
"""Docstrings that a package must have to be a class."""
LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idle_test", "lib-dynload"}
"""Folders that are not the library itself."""


def docstrings() -> list[dict[str, str]]:
    """Return rows of "text" and "label", always in the same order.

    In Python 3.11 these are 4,571 docstrings of 18 packages. The first call on a machine parses some 730 files, which
    takes 2 to 6 s; any later one reads a file of 1.5 MB.
    """
    library = Path(sysconfig.get_paths()["stdlib"])
    # The code is part of the key: another rule makes another corpus.
    key = digest_of(platform.python_version(), str(library), Path(__file__).read_bytes())
    folder = once_per_machine("corpus", key, lambda empty: _write(selected(read_library(library)), empty))
    with (folder / "docstrings.jsonl").open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def read_library(library: Path) -> Iterator[tuple[str, str]]:
    """Yield every docstring below a folder with the top-level package or module that it stands in, in order of path."""
    for path in sorted(library.rglob("*.py"), key=lambda path: path.relative_to(library).parts):
        parts = path.relative_to(library).parts
        if LEFT_OUT.isdisjoint(parts):
            package = parts[0].removesuffix(".py")
            for text in docstrings_of(path):
                yield text, package


def docstrings_of(path: Path) -> Iterator[str]:
    """Yield the docstrings of a module, its classes and functions; none where the file is not valid Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # old escapes in the library's own strings
            module = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, OSError):
        # The library carries files that are broken on purpose (templates, tests of the parser).
        return
    waiting: list[ast.AST] = [module]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield text
        # Definitions stand among statements only: to walk the expressions too would take three times as long.
        inner = (child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt | ast.ExceptHandler))
        waiting.extend(reversed(list(inner)))


def selected(found: Iterator[tuple[str, str]]) -> list[dict[str, str]]:
    """Return the rows that make the corpus: long enough, each text once, and of a package with enough of them."""
    first: dict[str, str] = {}
    for text, package in found:
        # A lone surrogate, written as an escape in some docstring, is no text that a tokenizer takes.
        if len(text) >= LEAST_LENGTH and not any("\ud800" <= character <= "\udfff" for character in text):
            first.setdefault(text, package)
    counts = Counter(first.values())
    return [{"text": text, "label": package} for text, package in first.items() if counts[package] >= LEAST_COUNT]


def _write(rows: list[dict[str, str]], folder: Path) -> None:
    with (folder / "docstrings.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
