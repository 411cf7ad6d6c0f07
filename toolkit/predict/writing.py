"""Files that rows are written to, with their predictions."""

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, datetime, time
from pathlib import Path
from typing import IO, Any, Protocol

from toolkit.output.ledger import finite_or_none
from toolkit.predict.rows import Seen
from toolkit.predictor import Row

WRITTEN = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")
"""The endings of files that are written."""


class Writer(Protocol):
    """What rows are written with."""

    def write(self, rows: Sequence[Row]) -> None:
        """Write rows, which all have the columns of the first ones."""


class LinesWriter:
    """Json lines: a row is an object."""

    def __init__(self, file: IO[str]) -> None:
        self.file = file

    def write(self, rows: Sequence[Row]) -> None:
        self.file.writelines(json_of(row) + "\n" for row in rows)


class SeparatedWriter:
    """Csv or tsv; what is no text or number is written as JSON."""

    def __init__(self, file: IO[str], separator: str, columns: Sequence[str]) -> None:
        form = {"delimiter": separator, "lineterminator": "\n"}
        self.writer = csv.DictWriter(file, columns, **form)  # type: ignore[arg-type]
        self.quoting = csv.DictWriter(file, columns, quoting=csv.QUOTE_ALL, **form)  # type: ignore[arg-type]
        self.writer.writeheader()

    def write(self, rows: Sequence[Row]) -> None:
        for row in rows:
            cells = {name: as_cell(value) for name, value in row.items()}
            # Python quotes no lone carriage return, which ends a row to most readers.
            returns = any(isinstance(cell, str) and "\r" in cell for cell in cells.values())
            (self.quoting if returns else self.writer).writerow(cells)


class ParquetWriter:
    """Parquet, with the types of the input."""

    def __init__(self, path: Path, adds: Mapping[str, str], known: Any) -> None:
        self.path, self.adds, self.known = path, adds, known
        self.writer: Any = None
        self.waiting: list[Row] = []
        """The rows before the first one whose scores say what labels there are."""

    def write(self, rows: Sequence[Row]) -> None:
        self.waiting += rows
        scored = [name for name, kind in self.adds.items() if kind == "scores"]
        if all(any(row.get(name) for row in self.waiting) for name in scored) or self.writer is not None:
            self.flush()

    def flush(self) -> None:
        """Write the rows that wait."""
        import pyarrow as pa
        import pyarrow.parquet as parquet

        if self.writer is None:
            kinds = {"text": pa.string(), "number": pa.float64(), "place": pa.int64()}
            kinds |= {"texts": pa.list_(pa.string()), "vector": pa.list_(pa.float64())}
            guess = pa.struct([("token", pa.string()), ("score", pa.float64())])
            kinds["guesses"] = pa.list_(pa.list_(guess))
            of_input = [
                (field.name, pa.string() if pa.types.is_null(field.type) else field.type) for field in self.known
            ]
            made = [(name, kinds.get(kind) or self.scores(name)) for name, kind in self.adds.items()]
            self.writer = parquet.ParquetWriter(self.path, pa.schema([*of_input, *made]))
        if self.waiting:
            self.writer.write_table(pa.Table.from_pylist([dict(row) for row in self.waiting], self.writer.schema))
        self.waiting = []

    def scores(self, name: str) -> Any:
        """Return the type of scores by label, which all rows with a prediction have."""
        import pyarrow as pa

        labels = next((list(row[name]) for row in self.waiting if row.get(name)), None)
        return pa.string() if labels is None else pa.struct([(label, pa.float64()) for label in labels])


@contextmanager
def writing_rows(path: Path, ending: str, seen: "Seen", adds: Mapping[str, str]) -> Iterator[Writer]:
    """Open a file for the rows of another one with what predictions add; the `ending` says its format."""
    columns = [*seen.columns, *adds]
    if ending == ".parquet":
        writer = ParquetWriter(path, adds, seen.schema)
        yield writer
        writer.flush()
        writer.writer.close()
        return
    with path.open("w", encoding="utf-8", newline="") as file:
        if ending in (".csv", ".tsv"):
            yield SeparatedWriter(file, "," if ending == ".csv" else "\t", columns)
        else:
            yield LinesWriter(file)


def as_cell(value: Any) -> Any:
    """Return a value as a csv file has it."""
    return json_of(value) if isinstance(value, Mapping | list) else value


def json_of(value: Any) -> str:
    """Return a value as JSON; numbers that JSON does not have, NaN and the infinite ones, are null."""
    try:
        return json.dumps(value, ensure_ascii=False, default=as_json, allow_nan=False)
    except ValueError:
        return json.dumps(finite_or_none(value), ensure_ascii=False, default=as_json)


def as_json(value: Any) -> str:
    """Return a value that JSON does not know as a text."""
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    return str(value)
