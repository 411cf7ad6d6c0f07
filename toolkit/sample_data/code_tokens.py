"""The embedded corpus for tagging: lines of the Python standard library, each token with what it is.

There are thirteen kinds, which the compiler knows and a reader guesses: `os` after `import` is a module, before a dot a
variable, as a default's name in a call an argument. Lines are held out by file, so that a file's own names are new.
"""

import ast
import builtins
import io
import keyword
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from toolkit.sample_data.standard_library import library_files, library_rows, parsed, source_of

EVERY = 3
"""Of the library's files one in so many is read: all of them would take half a minute."""
HELD_OUT = 10
"""One in so many of the files that are read is held out."""
LINES = {"train": 12_000, "held_out": 1_500}
FEWEST, MOST = 3, 48
"""Tokens of a line: shorter ones (`else:`) tell nothing, longer ones are tables."""
WHOLE_LINE = -1
"""Stands for a column where all names of a line are of one kind."""
BUILTINS = frozenset(dir(builtins))

Row = dict[str, list[str]]
Place = tuple[int, int]


def code_tokens() -> tuple[list[Row], list[Row]]:
    """Return rows of "tokens" and "tags" to train on and others that are held out, always in the same order."""
    rows = library_rows("code tokens", split_lines, __file__)
    train, held_out = ([row["line"] for row in rows if row["split"] == name] for name in LINES)
    return train, held_out


def tagged_lines(source: str) -> Iterator[Row]:
    """Yield the lines of a module that hold whole tokens alone, in order; none where it is not valid Python."""
    if not source.isascii():  # places in the syntax tree are counted in bytes
        return
    if (module := parsed(source)) is None:
        return
    kinds = {place: kind for node in ast.walk(module) for place, kind in _kinds_of(node)}
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    except (SyntaxError, tokenize.TokenError):
        return
    lines: dict[int, Row] = {}
    broken: set[int] = set()
    for number, token in enumerate(tokens):
        if token.start[0] != token.end[0]:
            broken.update(range(token.start[0], token.end[0] + 1))
        kind = _kind(token, tokens[number - 1].string if number else "", kinds)
        if kind is not None and token.string.strip():
            line = lines.setdefault(token.start[0], {"tokens": [], "tags": []})
            line["tokens"].append(token.string)
            line["tags"].append(kind)
    for number, line in lines.items():
        if number not in broken and FEWEST <= len(line["tokens"]) <= MOST:
            yield line


def _kinds_of(node: ast.AST) -> Iterator[tuple[Place, str]]:
    """Yield where a node's own name stands, and what it is."""
    match node:
        case ast.Name():
            yield (node.lineno, node.col_offset), "builtin" if node.id in BUILTINS else "variable"
        case ast.arg():
            yield (node.lineno, node.col_offset), "parameter"
        case ast.keyword(arg=str()):
            yield (node.lineno, node.col_offset), "argument"
        case ast.Call(func=ast.Attribute() as method):
            # The end is the only place of it that is written down.
            assert method.end_lineno is not None
            assert method.end_col_offset is not None
            yield (method.end_lineno, method.end_col_offset - len(method.attr)), "method"
        case ast.Import() | ast.ImportFrom():
            # The parts of `os.path` have no place of their own, but nothing else stands on these lines.
            for line in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                yield (line, WHOLE_LINE), "import"
        case _:
            return


def _kind(token: tokenize.TokenInfo, before: str, kinds: dict[Place, str]) -> str | None:
    """Return what a token is, or None for those that are no part of a line."""
    if token.type == tokenize.NUMBER:
        return "number"
    if token.type == tokenize.OP:
        return "operator"
    if token.type == tokenize.STRING or tokenize.tok_name[token.type].startswith("FSTRING"):
        return "string"
    if token.type != tokenize.NAME:
        return None
    if keyword.iskeyword(token.string):
        return "keyword"
    if before in ("def", "class"):
        return "function" if before == "def" else "class"
    # The name after a dot has no place of its own in the syntax tree.
    found = kinds.get((token.start[0], WHOLE_LINE)) or kinds.get(token.start)
    return found or ("attribute" if before == "." else "variable")


def split_lines(library: Path) -> Iterator[dict[str, Any]]:
    """Yield the chosen lines of a part of the files below a folder, each once, with the split that they are for."""
    found: dict[str, dict[str, Row]] = {name: {} for name in LINES}
    for number, (path, _) in enumerate(library_files(library)):
        if number % EVERY:
            continue
        name = "held_out" if number // EVERY % HELD_OUT == 0 else "train"
        for line in tagged_lines(source_of(path)):
            found[name].setdefault(" ".join(line["tokens"]), line)
    fresh = [line for text, line in found["held_out"].items() if text not in found["train"]]
    for name, lines in (("train", list(found["train"].values())), ("held_out", fresh)):
        # Evenly from all files, in their order.
        wanted = min(LINES[name], len(lines))
        yield from ({"split": name, "line": lines[at * len(lines) // wanted]} for at in range(wanted))
