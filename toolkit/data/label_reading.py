"""Labels as they come: strings, integers, lists, 0/1 vectors, numbers."""

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from toolkit.data.labels import UNKNOWN, Array, Kind, Labels, starts_of
from toolkit.errors import UserError

WHOLE = re.compile(r"[+-]?[0-9]+")
DECIMAL_COMMA = re.compile(r"[+-]?[0-9]+,[0-9]+")
THOUSANDS = re.compile(r"[+-]?[1-9][0-9]{0,2},[0-9]{3}")


def kind_of(dataset: Any, column: str, asked: str, separator: str | None) -> tuple[Kind | None, str]:
    """Return the kind of task that a column of a data set makes, or None and a sentence if `asked` does not fit."""
    import pyarrow as pa

    feature = dataset.features[column]
    type_ = dataset.data.schema.field(column).type
    lists = is_list(type_)
    held = f"the label column {column!r} holds {type_}"
    if pa.types.is_nested(type_) and (not lists or is_list(type_.value_type) or pa.types.is_struct(type_.value_type)):
        return None, f"{held}, which is no label; give another column with --data.label COLUMN"
    if lists:
        if asked in ("auto", "multi"):
            return "multi", ""
        return None, f"data.kind is {asked}, but {held}: several labels for a text make data.kind multi"
    if asked == "multi" or (asked == "auto" and separator is not None):
        if separator is not None:
            return "multi", ""
        return None, (
            f"data.kind is multi, but {held}, one value for a text; give the sign between two labels with "
            "data.separator, or a column of lists"
        )
    if asked == "regression":
        if getattr(feature, "names", None) or pa.types.is_boolean(type_) or pa.types.is_temporal(type_):
            return None, f"data.kind is regression, but {held}, which are no numbers; leave data.kind out for classes"
        return "regression", ""
    if asked == "auto" and pa.types.is_floating(type_):
        values = column_of(dataset, column).to_numpy(zero_copy_only=False).astype(np.float64)
        finite = values[np.isfinite(values)]
        # A column of integers with a gap is read as floats by some readers: whole numbers are classes.
        return ("single" if (finite == np.floor(finite)).all() else "regression"), ""
    return "single", ""


def read_labels(dataset: Any, column: str, kind: Kind, separator: str | None, like: Labels | None = None) -> Labels:
    """Return the labels of a column of a `datasets.Dataset`; `kind` has been found to fit by `kind_of`.

    `like` are the labels of the training data, if these belong to the evaluation data. Numbers (regression) may have
    decimal commas; raises UserError where all commas may as well divide thousands.
    """

    array = column_of(dataset, column)
    rows = len(array)
    nothing = np.zeros(rows, dtype=bool)
    one_each = np.arange(rows + 1, dtype=np.int64)
    if kind == "regression":
        numbers, empty = _numbers(array, column)
        return Labels(kind, [], numbers, one_each, empty, ~empty & ~np.isfinite(numbers))
    feature = dataset.features[column]
    if kind == "single":
        codes, names = codes_of(array, getattr(feature, "names", None))
        return Labels(kind, names, codes, one_each, codes < 0, nothing, bool(getattr(feature, "names", None)))

    return _read_lists(array, column, getattr(getattr(feature, "feature", None), "names", None), separator, like)


def read_weights(dataset: Any, column: str) -> Array:
    """Return the numbers of a column of a `datasets.Dataset` (float64), NaN where a value is missing or none.

    Raises:
        UserError: all of them have commas, which may as well divide thousands.
    """
    numbers, missing = _numbers(column_of(dataset, column), column)
    return np.where(missing, math.nan, numbers)


def _read_lists(
    array: Any, column: str, given: Sequence[str] | None, separator: str | None, like: Labels | None
) -> Labels:
    import pyarrow.compute as pc

    rows = len(array)
    null = pc.is_null(array).to_numpy(zero_copy_only=False)
    split = not is_list(array.type)
    lists = pc.split_pattern(_as_text(array), separator) if split else array
    counts = np.asarray(pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False), dtype=np.int64)
    flat = pc.list_flatten(lists)
    # The training data decides what lists of 0 and 1 mean: a few rows of evaluation data may fit both readings.
    plain = split or bool(given) or (like is not None and not like.vectors)
    matrix = None if plain else _vectors(flat, counts, null)
    if matrix is None and like is not None and like.vectors:
        raise UserError(
            f"evaluation data: the label column {column!r} holds lists that are not 0/1 vectors of one length, as "
            "those of the training data are; write the labels alike in both"
        )
    if matrix is not None:
        row_of, codes = np.nonzero(matrix)
        row_of = np.flatnonzero(~null)[row_of]
        names, empty = [str(number) for number in range(matrix.shape[1])], null
    else:
        row_of = np.repeat(np.arange(rows), counts)
        codes, names = codes_of(flat, given)
        known = codes >= 0
        # "a;;b" means a and b, and ";" means nothing; in a list an entry that is empty is a defect of the row.
        having, missing = (np.bincount(row_of[which], minlength=rows) for which in (known, ~known))
        empty = null | (having == 0 if split else missing > 0)
        row_of, codes = row_of[known], codes[known]
    # A label named twice counts once.
    width = max(1, len(names))
    row_of, codes = np.divmod(np.unique(row_of * width + codes), width)
    starts = starts_of(np.bincount(row_of, minlength=rows))
    vectors = matrix is not None
    return Labels(
        "multi",
        names,
        codes,
        starts,
        empty,
        np.zeros(rows, dtype=bool),
        in_order=vectors or bool(given),
        vectors=vectors,
    )


def column_of(dataset: Any, column: str) -> Any:
    """Return a column of a `datasets.Dataset` as one Arrow array (memory: the column)."""
    chunks = dataset.select_columns([column]).with_format("arrow")[:].column(0)
    return chunks.combine_chunks() if hasattr(chunks, "combine_chunks") else chunks


def comma_number(dataset: Any, column: str) -> str | None:
    """Return one of the numbers with a comma, if a column holds nothing but such numbers and whole ones."""
    if not is_text(dataset.data.schema.field(column).type):
        return None
    return next(iter(_comma_numbers(codes_of(column_of(dataset, column), None)[1])), None)


def _comma_numbers(names: Sequence[str]) -> list[str]:
    commas = [name for name in names if DECIMAL_COMMA.fullmatch(name)]
    return commas if all(WHOLE.fullmatch(name) or DECIMAL_COMMA.fullmatch(name) for name in names) else []


def is_text(type_: Any) -> bool:
    """Tell whether an Arrow type holds text. A column that is null in every row counts: nothing contradicts it."""
    import pyarrow as pa

    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_null)
    return any(test(type_) for test in tests)


def is_list(type_: Any) -> bool:
    """Tell whether an Arrow type holds lists."""
    import pyarrow as pa

    return any(test(type_) for test in (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list))


def codes_of(array: Any, given: Sequence[str] | None) -> tuple[Array, list[str]]:
    """Return the code of each value, UNKNOWN where it is missing, and the names of the codes."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if given:
        codes = pc.fill_null(array, UNKNOWN).to_numpy(zero_copy_only=False).astype(np.int64)
        return np.where((codes >= 0) & (codes < len(given)), codes, UNKNOWN), list(given)
    encoded = array.cast(pa.string()).dictionary_encode() if pa.types.is_null(array.type) else array.dictionary_encode()
    names = [_name(value) for value in encoded.dictionary.to_pylist()]
    # "spam" and "spam " are one label, and so are 1 and 1.0.
    distinct = list(dict.fromkeys(name for name in names if name))
    numbers = {name: number for number, name in enumerate(distinct)}
    table = np.array([*(numbers.get(name, UNKNOWN) for name in names), UNKNOWN], dtype=np.int64)
    indices = pc.fill_null(encoded.indices, UNKNOWN).to_numpy(zero_copy_only=False).astype(np.int64)
    return table[indices], distinct


def _as_text(array: Any) -> Any:
    """Return each value's name: where no row has two labels, a reader may have made numbers of the column."""
    import pyarrow as pa

    codes, names = codes_of(array, None)
    return pa.array([*names, None], pa.string()).take(pa.array(np.where(codes < 0, len(names), codes)))


def _name(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case float():
            if not math.isfinite(value):
                return ""
            return str(int(value)) if value.is_integer() else repr(value)
        case None:
            return ""
        case _:
            return str(value).strip()


def _numbers(array: Any, column: str) -> tuple[Array, Array]:
    """Return numbers, NaN where a value is none, and which values are missing."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if is_text(array.type):
        codes, names = codes_of(array, None)
        if commas := _comma_numbers(names):
            if all(map(THOUSANDS.fullmatch, commas)):
                raise UserError(
                    f"the column {column!r} holds numbers such as {commas[0]!r}, which may be "
                    f"{commas[0].replace(',', '')} or {commas[0].replace(',', '.')}; write them without a comma"
                )
            names = [name.replace(",", ".") for name in names]
        table = np.array([*(_number(name) for name in names), math.nan])
        return table[codes], codes < 0
    numbers = np.asarray(pc.cast(array, pa.float64(), safe=False).to_numpy(zero_copy_only=False), dtype=np.float64)
    return numbers, np.isnan(numbers)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _vectors(flat: Any, counts: Array, null: Array) -> Array | None:
    """Return lists as a matrix (lists, labels) if they are 0/1 vectors over all labels, not lists of labels."""
    import pyarrow as pa

    widths = np.unique(counts[~null])
    if len(widths) != 1 or widths[0] < 2 or flat.null_count:
        return None
    if not (pa.types.is_integer(flat.type) or pa.types.is_floating(flat.type) or pa.types.is_boolean(flat.type)):
        return None
    matrix = np.asarray(flat.to_numpy(zero_copy_only=False), dtype=np.float64).reshape(-1, widths[0])
    if not np.isin(matrix, (0, 1)).all():
        return None
    # Read as labels, lists of one length with nothing but 0 and 1 in them would all be the same.
    return matrix
