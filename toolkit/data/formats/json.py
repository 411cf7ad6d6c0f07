"""Json and json lines: a list of objects, {"data": [objects]}, or one object a line.

They are decoded by Python's own `json`. `pyarrow.json` takes texts for dates and rounds large numbers;
`pandas.read_json` makes floats of whole numbers next to a null and lets types mix. Neither says in which line of the
file an error is.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.data.formats.text import ROWS_AT_ONCE, open_text
from toolkit.errors import UserError

if TYPE_CHECKING:
    import pyarrow

HALF = "half a character (a lone surrogate, \\ud800 to \\udfff), which UTF-8 can't hold; correct or remove it"
KINDS = {dict: "object", list: "list", str: "text", bool: "truth value", int: "number", float: "number"}


def read_json_lines(path: Path) -> "pyarrow.Table":
    """Return the objects of a file, one a line, as rows; blank lines are left out."""
    with open_text(path, newline="\n") as file:
        return _table(path, json_objects(path, file))


def read_json(path: Path) -> "pyarrow.Table":
    """Return the objects of a file as rows: those of a list, of a list called "data", or one a line after all."""
    with open_text(path, newline="\n") as file:
        text = file.read()
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        try:
            is_lines = isinstance(json.loads(text.lstrip().partition("\n")[0]), dict)
        except (ValueError, RecursionError):
            is_lines = False
        if is_lines:
            return read_json_lines(path)
        line = f", line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise UserError(
            f"{path}{line}: malformed json ({_reason(error)}); give a list of objects, or one object a line"
        ) from error
    if isinstance(content, dict) and isinstance(content.get("data"), list):
        content = content["data"]
    if not isinstance(content, list):
        raise UserError(
            f"{path} holds one json {_kind(content)}; "
            'give a list of objects, {"data": [objects]}, or one object a line'
        )
    return _table(path, ((f"row {number}", row) for number, row in enumerate(content, start=1)))


def json_objects(path: Path, lines: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """Yield what stands in each line that is not blank, with its place, such as "line 3".

    Raises:
        UserError: a line is no JSON.
    """
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                yield f"line {number}", json.loads(line.rstrip())
            except (ValueError, RecursionError) as error:
                raise UserError(
                    f"{path}, line {number}: malformed json ({_reason(error)}); give one object a line"
                ) from error


def _table(path: Path, rows: Iterator[tuple[str, Any]]) -> "pyarrow.Table":
    """Return objects as rows; each comes with its place in the file, such as "line 3"."""
    import pyarrow as pa

    parts = []
    while chunk := list(islice(rows, ROWS_AT_ONCE)):
        names: dict[str, None] = {}
        for place, row in chunk:
            if not isinstance(row, dict):
                raise UserError(f"{path}, {place}: a json {_kind(row)}, not an object with columns as its keys")
            names.update(dict.fromkeys(row))
        for name in names:
            if name.encode("utf-8", "replace").decode() != name:
                place = next(place for place, row in chunk if name in row)
                raise UserError(f"{path}, {place}: the key {name!r} has {HALF}")
        columns = [_column(path, name, [(place, row.get(name)) for place, row in chunk]) for name in names]
        parts.append(pa.table(columns, names=list(names)))
    try:
        return pa.concat_tables(parts, promote_options="permissive") if parts else pa.table({})
    except pa.ArrowException as error:
        raise UserError(f"{path}: a column changes its type in the middle ({error}); give it one type") from error


def _column(path: Path, name: str, values: Sequence[tuple[str, Any]]) -> "pyarrow.Array":
    array, error = _stored([value for _, value in values])
    if error is None:
        return array
    first: dict[str, str] = {}
    for place, value in values:
        if value is not None:
            first.setdefault(_kind(value), place)
    if len(first) > 1:
        kinds = ", ".join(f"{kind} in {place}" for kind, place in first.items())
        raise UserError(f"{path}, column {name!r}: mixed types: {kinds}; give all rows of a column one type") from error
    place = next((f", {place}" for place, value in values if _stored([value])[1]), "")
    if isinstance(error, UnicodeError):
        raise UserError(f"{path}{place}, column {name!r}: a text with {HALF}") from error
    raise UserError(f"{path}{place}, column {name!r}: {error}; give all rows of a column one type") from error


def _stored(values: Sequence[Any]) -> "tuple[pyarrow.Array | None, Exception | None]":
    """Return values as an array, or why Arrow can't hold them."""
    import pyarrow as pa

    try:
        return pa.array(values), None
    except (pa.ArrowException, OverflowError, UnicodeError, TypeError) as error:
        return None, error


def _reason(error: Exception) -> str:
    """Return what is wrong and in which column; the decoder counts the lines of its own text, not of the file."""
    return f"{error.msg} at column {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)


def _kind(value: Any) -> str:
    return KINDS.get(type(value), "null")
