"""Json and json lines: a list of objects, {"data": [objects]}, or one object a line."""

import json
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.data.text import open_text
from toolkit.errors import UserError

if TYPE_CHECKING:
    import pyarrow

ROWS_AT_ONCE = 100_000
"""Rows of json lines that are Python objects at one time; as an Arrow table they take about a tenth of the memory."""
HALF = "half a character (a lone surrogate, \\ud800 to \\udfff), which UTF-8 can't hold; correct or remove it"


def read_json_lines(path: Path) -> "pyarrow.Table":
    def rows() -> Iterator[tuple[str, Any]]:
        with open_text(path, newline="\n") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    try:
                        yield f"line {number}", json.loads(line.rstrip())
                    except (ValueError, RecursionError) as error:
                        raise UserError(
                            f"{path}, line {number}: malformed json ({_reason(error)}); give one object a line"
                        ) from error

    return _objects(path, rows())


def read_json(path: Path) -> "pyarrow.Table":
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
    return _objects(path, ((f"row {number}", row) for number, row in enumerate(content, start=1)))


def _objects(path: Path, rows: Iterator[tuple[str, Any]]) -> "pyarrow.Table":
    import pyarrow as pa

    pieces = []
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
        pieces.append(pa.table(columns, names=list(names)))
    try:
        return pa.concat_tables(pieces, promote_options="permissive") if pieces else pa.table({})
    except pa.ArrowException as error:
        raise UserError(f"{path}: a column changes its type in the middle ({error}); give it one type") from error


def _column(path: Path, name: str, values: Sequence[tuple[str, Any]]) -> "pyarrow.Array":
    import pyarrow as pa

    try:
        return pa.array([value for _, value in values])
    except (pa.ArrowException, OverflowError, UnicodeError, TypeError) as error:
        first: dict[str, str] = {}
        for place, value in values:
            if value is not None:
                first.setdefault(_kind(value), place)
        if len(first) > 1:
            reason = "mixed types: " + ", ".join(f"{kind} in {place}" for kind, place in first.items())
            raise UserError(f"{path}, column {name!r}: {reason}; give all rows of a column one type") from error
        place = next((f", {place}" for place, value in values if not _can_be_stored(value)), "")
        if isinstance(error, UnicodeError):
            raise UserError(f"{path}{place}, column {name!r}: a text with {HALF}") from error
        raise UserError(f"{path}{place}, column {name!r}: {error}; give all rows of a column one type") from error


def _can_be_stored(value: Any) -> bool:
    import pyarrow as pa

    try:
        pa.array([value])
    except (pa.ArrowException, OverflowError, UnicodeError, TypeError):
        return False
    return True


def _reason(error: Exception) -> str:
    """Say what is wrong and in which column; the decoder's own text counts lines, which the file has others of."""
    return f"{error.msg} at column {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)


def _kind(value: Any) -> str:
    kinds = {dict: "object", list: "list", str: "text", bool: "truth value", int: "number", float: "number"}
    return kinds.get(type(value), "null")
