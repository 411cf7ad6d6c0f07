"""Functions of the Python standard library, each with a sentence that describes it and follows from its source.

The sentence needs reading, not taste: how many parameters there are, and whether the function decides, loops, catches,
raises, yields or returns something. A small model learns to see this in a minute.
"""

import ast
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

from toolkit.sample_data.standard_library import definitions, library_files, library_rows, parsed, source_of

SHORTEST, LONGEST = 60, 400
"""Characters of the sources that are kept: below there is nothing to say, above a sample takes long to read."""
HELD_OUT_EVERY = 12
"""One module in so many is held out where the functions are split: 7 to 9 in a hundred of the functions."""
NUMBERS = ("no parameters", "one parameter", "two parameters", "three parameters", "four parameters")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
SCOPES = (*FUNCTIONS, ast.ClassDef, ast.Lambda)

Function = ast.FunctionDef | ast.AsyncFunctionDef

LOOPS = (ast.For, ast.AsyncFor, ast.While, ast.comprehension)
CHECKS: tuple[tuple[str, Callable[[ast.AST], bool]], ...] = (
    ("decides between cases", lambda node: isinstance(node, ast.If | ast.IfExp | ast.Match)),
    ("loops", lambda node: isinstance(node, LOOPS)),
    ("catches errors", lambda node: isinstance(node, ast.ExceptHandler)),
    ("raises errors", lambda node: isinstance(node, ast.Raise)),
    ("yields values", lambda node: isinstance(node, ast.Yield | ast.YieldFrom)),
    ("returns a value", lambda node: isinstance(node, ast.Return) and not returns_none(node)),
)
"""What a description says of a function, in this order, and which part of its source makes it true."""


def described_functions() -> list[dict[str, str]]:
    """Return rows of "source" (without docstring), "description" (a sentence) and "module".

    They are in order of module and line, and each source is there once. In Python 3.11 these are some 10,000 functions
    of 600 modules.
    """
    return library_rows("functions", read_functions, __file__)


def split_by_module(rows: list[dict[str, str]]) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """Return the rows of most modules, and those of every twelfth one, which share no module with the first."""
    names = sorted({row["module"] for row in rows})
    held = set(names[HELD_OUT_EVERY - 1 :: HELD_OUT_EVERY])
    return [row for row in rows if row["module"] not in held], [row for row in rows if row["module"] in held]


def read_functions(library: Path) -> Iterator[dict[str, str]]:
    """Yield a row for every function below a folder, in order of path, unless its source is too short or too long."""
    seen: set[str] = set()
    for path, parts in library_files(library):
        for source, description in described_in(path):
            if source not in seen:
                seen.add(source)
                yield {
                    "source": source,
                    "description": description,
                    "module": ".".join(parts).removesuffix(".py"),
                }


def described_in(path: Path) -> Iterator[tuple[str, str]]:
    """Yield source and description of the functions of a file; none where it is not valid Python in UTF-8."""
    text = source_of(path)
    lines = text.split("\n")  # as the parser counts them: `splitlines` also ends a line at a form feed
    for node in definitions(parsed(text)):
        # A body that is a docstring alone would leave nothing that is valid Python.
        if isinstance(node, FUNCTIONS) and (len(node.body) > 1 or ast.get_docstring(node) is None):
            source = without_docstring(node, lines)
            if SHORTEST <= len(source) <= LONGEST:
                yield source, describe(node)


def without_docstring(node: Function, lines: list[str]) -> str:
    """Return the source of a function from its `def` on, without docstring and common indentation."""
    first, last = node.lineno - 1, int(node.end_lineno or node.lineno)
    kept = lines[first:last]
    if ast.get_docstring(node, clean=False) is not None:
        docstring = node.body[0]
        # One on the line of the `def` or shared with another statement is left where it is.
        if docstring.lineno > node.lineno and (
            len(node.body) == 1 or node.body[1].lineno > (docstring.end_lineno or 0)
        ):
            kept = lines[first : docstring.lineno - 1] + lines[docstring.end_lineno or 0 : last]
    return textwrap.dedent("\n".join(line.rstrip() for line in kept if line.strip())).strip()


def describe(node: Function) -> str:
    """Return the sentence, such as "A method with two parameters that loops, raises errors and returns a value."

    Functions inside the function do not count.
    """
    arguments = node.args
    names = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
    bound = bool(names) and names[0] in ("self", "cls")
    count = len(names) - bound + len(arguments.kwonlyargs) + sum(map(bool, (arguments.vararg, arguments.kwarg)))
    parts = [part for statement in node.body for part in own_parts(statement)]
    does = [words for words, holds in CHECKS if any(map(holds, parts))]
    if not {"yields values", "returns a value"} & set(does):
        does.append("returns nothing")
    done = does[0] if len(does) == 1 else f"{', '.join(does[:-1])} and {does[-1]}"
    number = NUMBERS[count] if count < len(NUMBERS) else "many parameters"
    return f"A {'method' if bound else 'function'} with {number} that {done}."


def own_parts(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a statement and all that is in it, but not what is in functions and classes in it."""
    if isinstance(node, SCOPES):
        return
    yield node
    for child in ast.iter_child_nodes(node):
        yield from own_parts(child)


def returns_none(node: ast.Return) -> bool:
    """Return whether a `return` has no value, or None."""
    return node.value is None or (isinstance(node.value, ast.Constant) and node.value.value is None)
