"""Labels as they come (strings, integers, lists, numbers) and as a model needs them (ids or numbers)."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

Kind = Literal["single", "multi", "regression"]
Array = np.ndarray[Any, np.dtype[Any]]

UNKNOWN = -1
"""The code of a label that is missing or has no id."""


@dataclass(frozen=True)
class Labels:
    """The labels of some rows: row i has `values[starts[i]:starts[i + 1]]`, one value unless `kind` is multi."""

    kind: Kind
    names: list[str]
    """Names of the codes; empty for regression."""
    values: Array
    """int64 codes, or float64 numbers for regression."""
    starts: Array
    empty: Array
    """Which rows have no label (bool)."""
    unreadable: Array
    """Which rows have a label that is not a finite number, where numbers are needed (bool)."""
    in_order: bool = False
    """Whether the data itself gave the names their order."""

    def __len__(self) -> int:
        return len(self.starts) - 1

    def take(self, rows: Array) -> "Labels":
        """Return the labels of these rows, in this order."""
        counts = np.diff(self.starts)[rows]
        starts = starts_of(counts)
        values = self.values[np.repeat(self.starts[rows] - starts[:-1], counts) + np.arange(starts[-1])]
        return Labels(self.kind, self.names, values, starts, self.empty[rows], self.unreadable[rows], self.in_order)

    def renamed(self, names: Sequence[str]) -> "Labels":
        """Return the same labels as codes of other names; a label that is not among them becomes UNKNOWN."""
        ids = {name: number for number, name in enumerate(names)}
        table = np.array([*(ids.get(name, UNKNOWN) for name in self.names), UNKNOWN], dtype=np.int64)
        return Labels(self.kind, list(names), table[self.values], self.starts, self.empty, self.unreadable, True)

    def counts(self) -> Array:
        """Return how many rows carry each label."""
        return np.bincount(self.values[self.values >= 0], minlength=len(self.names))

    def target(self, row: int) -> int | float | list[float]:
        """Return what the model is to predict for a row: an id, a number, or a 0/1 vector over all labels."""
        values = self.values[self.starts[row] : self.starts[row + 1]]
        if self.kind != "multi":
            return values[0].item()  # type: ignore[no-any-return]
        vector = [0.0] * len(self.names)
        for value in values.tolist():
            vector[value] = 1.0
        return vector


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


def read_labels(dataset: Any, column: str, kind: Kind, separator: str | None) -> Labels:
    """Return the labels of a column of a `datasets.Dataset`; `kind` has been found to fit by `kind_of`."""
    import pyarrow.compute as pc

    array = column_of(dataset, column)
    rows = len(array)
    nothing = np.zeros(rows, dtype=bool)
    one_each = np.arange(rows + 1, dtype=np.int64)
    if kind == "regression":
        numbers, empty = _numbers(array)
        return Labels(kind, [], numbers, one_each, empty, ~empty & ~np.isfinite(numbers))
    feature = dataset.features[column]
    if kind == "single":
        codes, names = _codes(array, getattr(feature, "names", None))
        return Labels(kind, names, codes, one_each, codes < 0, nothing, bool(getattr(feature, "names", None)))

    null = pc.is_null(array).to_numpy(zero_copy_only=False)
    split = not is_list(array.type)
    lists = pc.split_pattern(_as_text(array), separator) if split else array
    counts = np.asarray(pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False), dtype=np.int64)
    inner = getattr(getattr(feature, "feature", None), "names", None)
    row_of = np.repeat(np.arange(rows), counts)
    flat = pc.list_flatten(lists)
    vectors = None if split or inner else _vectors(flat, counts, null)
    if vectors is not None:
        width = vectors.shape[1] if len(vectors) else 0
        row_of, codes = np.nonzero(vectors)
        row_of = np.flatnonzero(~null)[row_of]
        names = [str(number) for number in range(width)]
        empty = null
    else:
        codes, names = _codes(flat, inner)
        known = codes >= 0
        # "a;;b" means a and b, and ";" means nothing; in a list an entry that is empty is a defect of the row.
        empty = null | (np.bincount(row_of[known], minlength=rows) == 0 if split else _any(row_of[~known], rows))
        row_of, codes = row_of[known], codes[known]
    # A label named twice counts once.
    pairs = np.unique(row_of * max(1, len(names)) + codes)
    row_of, codes = np.divmod(pairs, max(1, len(names)))
    starts = starts_of(np.bincount(row_of, minlength=rows))
    return Labels(kind, names, codes.astype(np.int64), starts, empty, nothing, bool(inner) or vectors is not None)


def ordered(names: Sequence[str]) -> list[str]:
    """Return label names sorted, by value where all of them are whole numbers."""
    if all(re.fullmatch(r"-?\d+", name) for name in names):
        return sorted(names, key=lambda name: (int(name), name))
    return sorted(names)


def starts_of(counts: Array) -> Array:
    """Return where each row begins, and at last where all end, if row i has `counts[i]` entries."""
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts, dtype=np.int64)])


def column_of(dataset: Any, column: str) -> Any:
    """Return a column of a `datasets.Dataset` as one Arrow array (memory: the column)."""
    chunks = dataset.select_columns([column]).with_format("arrow")[:].column(0)
    return chunks.combine_chunks() if hasattr(chunks, "combine_chunks") else chunks


def is_text(type_: Any) -> bool:
    """Tell whether an Arrow type holds text. A column that is null in every row counts: nothing contradicts it."""
    import pyarrow as pa

    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_null)
    return any(test(type_) for test in tests)


def is_list(type_: Any) -> bool:
    """Tell whether an Arrow type holds lists."""
    import pyarrow as pa

    return any(test(type_) for test in (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list))


def _codes(array: Any, given: Sequence[str] | None) -> tuple[Array, list[str]]:
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

    codes, names = _codes(array, None)
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


def _numbers(array: Any) -> tuple[Array, Array]:
    """Return numbers, NaN where a value is none, and which values are missing."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if is_text(array.type):
        codes, names = _codes(array, None)
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
    # The lists [0, 1] and [1, 0] alone could also name the labels 0 and 1; a repeated number cannot.
    repeated = (matrix.sum(axis=1) != 1).any() or widths[0] > 2
    return matrix if repeated else None


def _any(rows: Array, size: int) -> Array:
    return np.bincount(rows, minlength=size) > 0
