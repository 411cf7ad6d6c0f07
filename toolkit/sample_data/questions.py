"""The embedded questions: what a function of the Python standard library is called, takes, calls and returns.

Context is a function's source, the answer a span of it, and the title is the file, by which questions are held out.
"""

import ast
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from toolkit.sample_data.standard_library import library_files, library_rows, parsed, source_of

SHORTEST, LONGEST = 80, 250
"""Characters of a function's source."""
LONGEST_ANSWER = 30
"""Characters of an answer."""

Function = ast.FunctionDef | ast.AsyncFunctionDef
Row = dict[str, Any]


def questions_on_source() -> list[Row]:
    """Return rows of id, title, context, question and answers, always in the same order."""
    return library_rows("questions", numbered_questions, __file__)


def questions_of(source: str) -> Iterator[tuple[str, int, int]]:
    """Yield questions on the source of a function, each with where its answer begins and ends, in characters."""
    function = ast.parse(source).body[0]
    assert isinstance(function, Function)
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def place(node: Any) -> tuple[int, int]:
        return starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset

    name = source.index("def ") + len("def ")
    yield "What is the name of the function?", name, name + len(function.name)
    arguments = [*function.args.posonlyargs, *function.args.args]
    named = [argument for argument in arguments if argument.arg not in ("self", "cls")]
    for question, argument in zip(("first", "second", "third"), named, strict=False):
        begin, _ = place(argument)
        yield f"What is the {question} parameter besides self?", begin, begin + len(argument.arg)
    defaults = function.args.defaults
    for argument, value in zip(arguments[len(arguments) - len(defaults) :], defaults, strict=True):
        yield f"What is the default of {argument.arg}?", *place(value)
    found: dict[str, ast.AST] = {}
    for node in ast.walk(function):
        match node:
            case ast.Return(value=ast.expr() as value):
                found["What does it return at last?"] = value
            case ast.Raise(exc=ast.Call(func=raised) | (ast.Name() as raised)):
                found.setdefault("Which exception does it raise?", raised)
            case ast.For(iter=over):
                found.setdefault("What does it loop over?", over)
            case ast.If(test=test):
                found.setdefault("What does it test first?", test)
            case ast.Call(func=ast.Name() as called, args=[passed, *_]):
                found.setdefault(f"What is {called.id} called with?", passed)
            case ast.Assign(targets=[ast.Name() as target], value=value):
                found.setdefault(f"What is {target.id} set to?", value)
    for question, answer in found.items():
        yield question, *place(answer)


def rows_of(path: Path, title: str) -> Iterator[Row]:
    """Yield the rows of a file's functions; none where it is not valid Python."""
    text = source_of(path)
    if (module := parsed(text)) is None:
        return
    lines = text.splitlines(keepends=True)
    for node in ast.walk(module):
        if not isinstance(node, Function) or node.decorator_list or ast.get_docstring(node):
            continue
        source = textwrap.dedent("".join(lines[node.lineno - 1 : node.end_lineno]))
        # Places in the source count bytes of UTF-8: in ASCII they count characters.
        if not SHORTEST <= len(source) <= LONGEST or not source.isascii() or not source.startswith(("def ", "async ")):
            continue
        try:
            asked = list(questions_of(source))
        except SyntaxError:  # a string over several lines, which lost its indentation
            continue
        for question, begin, end in asked:
            answer = source[begin:end]
            # Ends of letters or digits are ends of tokens too; a bracket may share one with its neighbours.
            if len(answer) <= LONGEST_ANSWER and answer[:1].isalnum() and answer[-1:].isalnum() and "\n" not in answer:
                yield {
                    "title": title,
                    "context": source,
                    "question": question,
                    "answers": {"text": [answer], "answer_start": [begin]},
                }


def numbered_questions(library: Path) -> Iterator[Row]:
    """Yield the rows of all files below a folder, in order of path, each source once."""
    number = 0
    seen: set[str] = set()
    for path, parts in library_files(library):
        # Some 120 files of `encodings` hold the same few functions: they would be on both sides of the split.
        if parts[0] == "encodings":
            continue
        rows = list(rows_of(path, "/".join(parts)))
        for row in rows:
            # A function that stands in several files would be on both sides of the split.
            if row["context"] not in seen:
                yield {"id": str(number), **row}
                number += 1
        seen.update(row["context"] for row in rows)
