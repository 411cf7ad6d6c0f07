"""Json and json lines: a list of objects, one under a key of an object, or one object a line.

A list under a key has a path that goes on behind that of the file: rows.json/train, rows.json/result/rows.

They are decoded by Python's own `json`. `pyarrow.json` takes texts for dates and rounds large numbers;
`pandas.read_json` makes floats of whole numbers next to a null and lets types mix. Neither says in which line of the
file an error is.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from toolkit.data.formats.inside import SeveralTablesError
from toolkit.data.formats.text import ROWS_AT_ONCE, open_text
from toolkit.errors import UserError

if TYPE_CHECKING:
    import pyarrow

HALF = "half a character (a lone surrogate, \\ud800 to \\udfff), which UTF-8 can't hold; correct or remove it"
READ = "import json, sys; found = json.load(sys.stdin); "
OF_ROWS = "rows = list(found.values()); "
OF_COLUMNS = (
    "columns = [c.values() if isinstance(c, dict) else c for c in found.values()]; "
    "rows = [dict(zip(found, row)) for row in zip(*columns)]; "
)
WRITE = "json.dump(rows, sys.stdout)"
KINDS = {dict: "object", list: "list", str: "text", bool: "truth value", int: "number", float: "number"}


def read_json_lines(path: Path) -> "pyarrow.Table":
    """Return the objects of a file, one a line, as rows; blank lines are left out."""
    with open_text(path, newline="\n") as file:
        return _table(path, json_objects(path, file))


def read_json(path: Path, inner: str | None = None) -> tuple["pyarrow.Table", str]:
    """Return the objects of a file as rows, and what the plan should say about where they were found.

    They are a list, or the list of objects under a key: "data" where there is one, or else the only such list. A file
    with an object a line is read too.

    Args:
        path: the file.
        inner: the key of the list that is meant, or several with slashes between them.

    Raises:
        SeveralTablesError: there are several such lists.
        UserError: there is none, or something is malformed.
    """
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
            if inner is not None:
                raise UserError(f"{path / inner}: {path} has an object on each line; give {path}") from error
            return read_json_lines(path), ""
        line = f", line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise UserError(
            f"{path}{line}: malformed json ({_reason(error)}); give a list of objects, or one object a line"
        ) from error
    del text
    note = ""
    if inner is not None:
        content = _under(path, content, inner)
    elif isinstance(content, dict) and isinstance(content.get("data"), list):
        content = content["data"]
    elif isinstance(content, dict):
        found = _lists_in(content)
        if len(found) > 1:
            raise SeveralTablesError(path, found, "lists of objects")
        for key in found:
            note = f"the list under {key!r}"
            content = _under(path, content, key)
    if not isinstance(content, list):
        raise UserError(
            f"{path} holds one json {_kind(content)}; "
            'give a list of objects, {"data": [objects]}, or one object a line' + _advice(path, content)
        )
    return _table(path, ((f"row {number}", row) for number, row in enumerate(content, start=1))), note


def lists_in(path: Path) -> list[str]:
    """Return the keys under which a file has lists of objects; none if it is no object."""
    with open_text(path, newline="\n") as file:
        try:
            content = json.load(file)
        except (ValueError, RecursionError):
            return []
    return _lists_in(content) if isinstance(content, dict) else []


def _lists_in(content: dict[str, Any], depth: int = 2) -> list[str]:
    """Return the keys under which lists of objects stand; a list of messages is one conversation, and no table."""
    found = []
    for key, value in content.items():
        if isinstance(value, dict) and depth > 1:
            found += [f"{key}/{inner}" for inner in _lists_in(value, depth - 1)]
        elif isinstance(value, list) and value and all(isinstance(row, dict) for row in value):
            found += [key] if not {"role", "from"} & set(value[0]) else []
    return found


def _under(path: Path, content: Any, inner: str) -> Any:
    """Return what stands under a key, or under keys in one another."""
    if isinstance(content, dict):
        for key, value in content.items():
            if inner == key:
                return value
            if inner.startswith(f"{key}/"):
                return _under(path, value, inner.removeprefix(f"{key}/"))
    known = _lists_in(content) if isinstance(content, dict) else []
    where = f"; there are: {', '.join(known)}" if known else f"; give {path}" if isinstance(content, list) else ""
    raise UserError(f"{path} has no list under the key {inner!r}{where}")


def _advice(path: Path, content: Any) -> str:
    """Return the command that makes rows of what pandas writes by default: columns, or rows by their number."""
    values = [*content.values()] if isinstance(content, dict) else []
    if len(values) < 2 or path.suffix == ".gz":
        return ""
    of_columns = all(isinstance(value, list) for value in values) and len({len(value) for value in values}) == 1
    of_rows = all(isinstance(value, dict) and value.keys() == values[0].keys() for value in values)
    if not (of_columns or of_rows):
        return ""
    by_row = of_rows and not all(key.isdigit() for key in values[0])
    return (
        f"; as it holds {'rows by their name' if by_row else 'columns'}, a list is made of it by: python -c "
        f"{quote(READ + (OF_ROWS if by_row else OF_COLUMNS) + WRITE)} < {quote(str(path))} > "
        f"{quote(str(path.with_suffix('.rows.json')))}"
    )


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
