"""The files of Python's standard library, and rows that are made of them once per machine."""

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
        make: called on the first use on a machine, which takes seconds; any later one reads a file.
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
    """Return the files below a folder that belong to the library, with the parts of their paths in it, in order of path."""
    files = [(path, path.relative_to(library).parts) for path in library.rglob("*.py")]
    return sorted((file for file in files if LEFT_OUT.isdisjoint(file[1])), key=lambda file: file[1])


def parsed(path: Path) -> ast.Module | None:
    """Return the syntax tree of a file; None where it is not valid Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # old escapes in the library's own strings
            return ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, OSError):
        # The library carries files that are broken on purpose (templates, tests of the parser).
        return None


def docstrings_of(path: Path) -> Iterator[str]:
    """Yield the docstrings of a module, its classes and functions; none where the file is not valid Python."""
    module = parsed(path)
    waiting: list[ast.AST] = [] if module is None else [module]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield text
        # Definitions stand among statements only: to walk the expressions too would take three times as long.
        inner = (child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt | ast.ExceptHandler))
        waiting.extend(reversed(list(inner)))
