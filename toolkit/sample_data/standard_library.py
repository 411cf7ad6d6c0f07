"""Python's standard library as data: its files, what they define, and rows that are made of them once per machine.

It is on every machine, needs no network and has no licence question; nothing is shipped. It differs a little between
versions of Python (3.12 has no `distutils`, some systems leave `tkinter` out), so no number may hang on its exact size.
"""

import ast
import json
import platform
import sysconfig
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from toolkit.data.cache import digest_of, once_per_machine

LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idle_test", "lib-dynload"}
"""Folders that are not the library itself."""

Row = dict[str, Any]


def library_rows(name: str, make: Callable[[Path], Iterable[Row]], *rules: str) -> list[Row]:
    """Return the rows that `make` makes of the library's folder, always in the same order.

    Args:
        name: of the corpus.
        make: called on the first use on a machine, which takes 2 to 8 s; any later one reads a file of a few MB.
        rules: the files of code that decide what comes out: with another rule it is another corpus.
    """
    library = Path(sysconfig.get_paths()["stdlib"])
    code = [Path(file).read_bytes() for file in (__file__, *rules)]
    key = digest_of(name, platform.python_version(), str(library), code)

    def build(folder: Path) -> None:
        with (folder / "rows.jsonl").open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in make(library))

    folder = once_per_machine("corpus", key, build)
    with (folder / "rows.jsonl").open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def library_files(library: Path) -> list[tuple[Path, tuple[str, ...]]]:
    """Return the files of the library that lie below a folder, with the parts of their paths, in order of these."""
    files = [(path, path.relative_to(library).parts) for path in library.rglob("*.py")]
    return sorted((file for file in files if LEFT_OUT.isdisjoint(file[1])), key=lambda file: file[1])


def source_of(path: Path) -> str:
    """Return the text of a file; an empty one where it is not UTF-8 or can't be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (UnicodeDecodeError, OSError):
        return ""


def parsed(source: str | bytes) -> ast.Module | None:
    """Return a syntax tree; None where it is not valid Python, as templates and tests of the parser in the library."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # old escapes in the library's own strings
            return ast.parse(source)
    except (SyntaxError, ValueError):
        return None


def definitions(module: ast.Module | None) -> Iterator[ast.AST]:
    """Yield a module, its statements and those in them, which classes and functions are among, in order."""
    waiting: list[ast.AST] = [] if module is None else [module]
    while waiting:
        node = waiting.pop()
        yield node
        # Definitions stand among statements only: to walk the expressions too would take three times as long.
        inner = (child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt | ast.ExceptHandler))
        waiting.extend(reversed(list(inner)))


def docstrings_of(path: Path) -> Iterator[str]:
    """Yield the docstrings of a module, its classes and functions; none where the file is not valid Python."""
    try:
        module = parsed(path.read_bytes())
    except OSError:
        return
    for node in definitions(module):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and (
            text := ast.get_docstring(node)
        ):
            yield text
