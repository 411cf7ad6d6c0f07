"""Whether the first line of a csv, tsv or Excel file names its columns, judged by what stands below it.

If data is taken for names, its first row is lost; if names are taken for data, the model learns them. So nothing is
guessed: a first line that contradicts `data.header` is refused.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from toolkit.data.columns import NUMBER, shortened
from toolkit.errors import UserError

if TYPE_CHECKING:
    import pyarrow

Header = bool | list[str] | None
"""The setting `data.header`: null takes the first line for names unless it looks like data, true in any case; false and
a list say that it is data, and a list names the columns."""

FEW_ROWS = 20
"""With so few rows a value that comes once more below is enough; in more rows it may stand by chance."""
ROWS_FIRST = 1000
"""Most columns of texts show in their first rows that they do not hold numbers."""
NO_VALUES = ("", "NA", "N/A", "NAN", "NULL", "NONE", "-", "?")
"""What stands for a missing number: over a column of numbers it is no name."""
CELLS_SHOWN = 6


class NoHeaderError(UserError):
    """The first line of a file looks like data."""


def has_names(header: Header) -> bool:
    """Tell whether the first line is taken for the names of the columns."""
    return header is None or header is True


def column_names(header: Header, line: str, first: Sequence[str]) -> list[str]:
    """Return the names of the columns; `line` says where the first line stands, and `first` are its fields.

    Raises:
        UserError: a name stands twice, or data.header names more or fewer columns than there are.
    """
    numbered = [f"column {number}" for number in range(1, len(first) + 1)]
    if header is False:
        return numbered
    if isinstance(header, list):
        if len(header) != len(first):
            raise UserError(
                f"{line} has {len(first)} fields ({shown(first)}), but data.header has {len(header)} names "
                f"({', '.join(header)}); name every column, in their order"
            )
        return header
    # A nameless first column is what pandas writes for its index.
    names = [cell.strip() or name for cell, name in zip(first, numbered, strict=True)]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UserError(
            f"{line}: the header has {', '.join(repr(shortened(name)) for name in twice)} more than once; give each "
            "column its own name, or, if this line is data, say so with --data.header false"
        )
    return names


def check_header(header: Header, line: str, first: Sequence[str], rows: "pyarrow.Table") -> None:
    """Refuse a first line that contradicts `header`; `rows` are all lines below it, as texts.

    Raises:
        NoHeaderError: it was taken for names and looks like data.
        UserError: it was taken for data and looks like names.
    """
    if header is None and any(reasons := _like_those_below(first, rows)):
        # The numbers of columns are names, and a word over nothing but numbers is one, whatever the other cells are.
        if _is_numbering(first) or _over_numbers(first, rows):
            return
        reason = next(f"{shortened(cell)!r} {reason}" for cell, reason in zip(first, reasons, strict=True) if reason)
        last = f" to 'column {len(first)}'" if len(first) > 1 else ""
        suggested = ", ".join(_suggested(reasons, rows))
        raise NoHeaderError(
            f"{line} looks like data, not like the names of the columns ({shown(first)}): {reason}; if it is data, "
            f'name the columns in their order, such as --data.header "[{suggested}]", or call them '
            f"'column 1'{last} with --data.header false; if it is the names, say so with --data.header true"
        )
    if not has_names(header):
        given = header if isinstance(header, list) else []
        names = [cell for cell in first if cell.strip() in given] or _over_numbers(first, rows)
        if names:
            raise UserError(
                f"{line} looks like the names of the columns ({shown(first)}), but data.header says that it is data, "
                f"so that {names[0]!r} would be learned from; leave data.header out, or correct that line"
            )


def shown(cells: Sequence[str]) -> str:
    """Return the first fields of a line, shortened."""
    more = f", ... ({len(cells)} in all)" if len(cells) > CELLS_SHOWN else ""
    return ", ".join(repr(shortened(cell)) for cell in cells[:CELLS_SHOWN]) + more


def _like_those_below(first: Sequence[str], rows: "pyarrow.Table") -> list[str]:
    """Return for each cell in what it is like those below it; empty texts for those that are not."""
    import pyarrow.compute as compute

    reasons = []
    for cell, column in zip(first, rows.columns, strict=True):
        reason = ""
        if NUMBER.fullmatch(cell.strip()) and _all_numbers(column):
            reason = "is a number, as are all below it"
        elif cell.strip():
            again = compute.sum(compute.equal(column, cell)).as_py() or 0
            if again > 1 or (again == 1 and len(rows) <= FEW_ROWS):
                reason = f"stands in {again:,} more row{'s' * (again > 1)} of its column"
        reasons.append(reason)
    return reasons


def _is_numbering(first: Sequence[str]) -> bool:
    """Tell whether the names are 0, 1, ..., as pandas calls columns without one; after other names, at least three."""
    numbers = [cell for cell in first if NUMBER.fullmatch(cell)]
    words = [cell for cell in first if cell.strip() and cell not in numbers]
    return numbers == [str(number) for number in range(len(numbers))] and (not words or len(numbers) > 2)


def _over_numbers(first: Sequence[str], rows: "pyarrow.Table") -> list[str]:
    """Return the cells that are words and have nothing but numbers below them."""
    return [
        cell
        for cell, column in zip(first, rows.columns, strict=True)
        if cell.strip().upper() not in NO_VALUES and not NUMBER.fullmatch(cell.strip()) and _all_numbers(column)
    ]


def _all_numbers(column: "pyarrow.ChunkedArray") -> bool:
    import pyarrow.compute as compute

    values = column.drop_null()
    return len(values) > 0 and all(
        compute.all(compute.match_substring_regex(part, rf"^\s*({NUMBER.pattern})\s*$")).as_py()
        for part in (values.slice(0, ROWS_FIRST), values)
    )


def _suggested(reasons: Sequence[str], rows: "pyarrow.Table") -> list[str]:
    """Return names by which most recipes find the text (the longest column) and the label (the fewest values)."""
    import pyarrow.compute as compute

    names = [f"column {number}" for number in range(1, len(reasons) + 1)]
    labels = [place for place, reason in enumerate(reasons) if reason]
    texts = [place for place, reason in enumerate(reasons) if not reason] or labels
    begin = rows.slice(0, ROWS_FIRST)
    lengths = [compute.mean(compute.utf8_length(column)).as_py() or 0 for column in begin.columns]
    text = max(texts, key=lengths.__getitem__)
    names[text] = "text"
    values = {place: len(begin.column(place).unique()) for place in labels if place != text}
    if values:  # a column of a single value tells nothing apart
        names[min(values, key=lambda place: (values[place] < 2, values[place]))] = "label"
    return names if len(names) <= CELLS_SHOWN else [*names[:CELLS_SHOWN], "..."]
