"""Whether the first line of a csv or tsv names its columns: what its cells say beside those below them.

A file without a header would lose its first row to the names of the columns, and one that is read as if it had none would
learn from its header. Neither is guessed: what contradicts data.header is refused.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from toolkit.columns import NUMBER, shortened
from toolkit.errors import UserError

if TYPE_CHECKING:
    import pyarrow

Header = bool | list[str] | None
"""data.header: null takes the first line as names and looks at it, true does not look; false and a list are for files without."""

FEW_ROWS = 20
"""In so small a table a cell that comes again once is enough; in a large one a name may be a word of a text, by chance."""
LOOKED_AT_FIRST = 1000
NO_VALUES = ("", "NA", "N/A", "NAN", "NULL", "NONE", "-", "?")
"""What stands for a missing number; in a first row it does not make a name."""
CELLS_SHOWN = 6


def has_names(header: Header) -> bool:
    """Tell whether the first line is to be taken for the names of the columns."""
    return header is None or header is True


def column_names(header: Header, place: str, first: Sequence[str]) -> list[str]:
    """Return the names of the columns; `place` and `first` are those of the first line.

    Raises:
        UserError: a name stands twice, or data.header names more or fewer columns than there are.
    """
    if header is False:
        return [f"column {number}" for number in range(1, len(first) + 1)]
    if isinstance(header, list):
        if len(header) != len(first):
            raise UserError(
                f"{place} has {len(first)} fields ({shown(first)}), but data.header names {len(header)} columns "
                f"({', '.join(header)}); name each column, in their order"
            )
        return header
    # A nameless first column is what pandas writes for its index.
    names = [name.strip() or f"column {number}" for number, name in enumerate(first, start=1)]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UserError(
            f"{place}: the header has {', '.join(repr(shortened(name)) for name in twice)} more than once; give each "
            "column its own name, or, if that line is data, say so with --data.header false"
        )
    return names


def check_header(header: Header, place: str, first: Sequence[str], rows: "pyarrow.Table") -> None:
    """Refuse a first line that contradicts `header`; `rows` are those below it, as texts.

    Raises:
        UserError: it looks like data and is taken for names, or the other way round.
    """
    if header is None and (evidence := _data_in(first, rows)):
        cell, why = evidence
        names = [f"column {number}" for number in range(1, len(first) + 1)]
        called = f"{names[0]!r} to {names[-1]!r}" if len(names) > 1 else repr(names[0])
        raise UserError(
            f"{place} looks like a row of data, not like the names of the columns ({shown(first)}): {cell} {why}; if it is "
            f'data, name the columns in their order, such as --data.header "[{", ".join(_suggested(first, rows))}]", or call '
            f"them {called} with --data.header false; if it does hold the names, say so with --data.header true"
        )
    if not has_names(header):
        given = header if isinstance(header, list) else []
        named = [cell for cell in first if cell.strip() in given]
        named += [first[number] for number in _names_of_numbers(first, rows)]
        if named:
            raise UserError(
                f"{place} looks like the names of the columns ({shown(first)}), and data.header says that there are none, so "
                f"that {named[0]!r} would be learned from as data; leave data.header out, or correct that line"
            )


def shown(cells: Sequence[str]) -> str:
    """Return the first cells of a line, shortened."""
    more = f", ... ({len(cells)} in all)" if len(cells) > CELLS_SHOWN else ""
    return ", ".join(repr(shortened(cell)) for cell in cells[:CELLS_SHOWN]) + more


def _data_in(first: Sequence[str], rows: "pyarrow.Table") -> tuple[str, str] | None:
    """Return the cell that makes a line look like data, as it is shown, and why; None if nothing does."""
    if _is_numbering(first, rows):
        return None
    for cell, why in _strange_cells(first, rows):
        # A name over nothing but numbers outweighs all else: data of one kind does not begin with another.
        return None if _names_of_numbers(first, rows) else (repr(shortened(cell)), why)
    return None


def _strange_cells(first: Sequence[str], rows: "pyarrow.Table") -> "list[tuple[str, str]]":
    import pyarrow.compute as compute

    found = []
    for cell, column in zip(first, rows.columns, strict=True):
        if NUMBER.fullmatch(cell.strip()) and _all_numbers(column):
            found.append((cell, "is a number, as are all below it"))
        elif cell.strip():
            again = compute.sum(compute.equal(column, cell)).as_py() or 0
            if again > 1 or (again == 1 and len(rows) <= FEW_ROWS):
                found.append((cell, f"comes again in {again:,} row{'s' * (again > 1)} of its column"))
    return found


def _is_numbering(first: Sequence[str], rows: "pyarrow.Table") -> bool:
    """Tell whether the names are 0, 1, ...: those that pandas gives, behind its index or not."""
    named = first[1:] if not first[0].strip() and _all_numbers(rows.column(0)) else first
    return list(named) == [str(number) for number in range(len(named))]


def _names_of_numbers(first: Sequence[str], rows: "pyarrow.Table") -> list[int]:
    """Return the places of the cells that are words over nothing but numbers."""
    return [
        place
        for place, cell in enumerate(first)
        if cell.strip().upper() not in NO_VALUES
        and not NUMBER.fullmatch(cell.strip())
        and _all_numbers(rows.column(place))
    ]


def _all_numbers(column: "pyarrow.ChunkedArray") -> bool:
    import pyarrow.compute as compute

    values = column.drop_null()
    # Most columns of texts are told by their first rows.
    return len(values) > 0 and all(
        compute.all(compute.match_substring_regex(part, rf"^\s*({NUMBER.pattern})\s*$")).as_py()
        for part in (values.slice(0, LOOKED_AT_FIRST), values)
    )


def _suggested(first: Sequence[str], rows: "pyarrow.Table") -> list[str]:
    """Return names by which most recipes find a text and its label: the longest column, and the first strange cell's."""
    import pyarrow.compute as compute

    names = [f"column {number}" for number in range(1, len(first) + 1)]
    lengths = [
        compute.mean(compute.utf8_length(column.slice(0, LOOKED_AT_FIRST))).as_py() or 0 for column in rows.columns
    ]
    text = max(range(len(first)), key=lengths.__getitem__)
    strange = {cell for cell, _ in _strange_cells(first, rows)}
    label = next((place for place, cell in enumerate(first) if cell in strange and place != text), None)
    names[text] = "text"
    if label is not None:
        names[label] = "label"
    return names
