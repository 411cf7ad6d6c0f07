"""CoNLL files whose ending is not .conll: plain texts, and files with an ending that stands for no format."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.data.config import DataConfig
from toolkit.data.discovery import named_files
from toolkit.data.endings import PACKED, format_of
from toolkit.data.files import FileOptions
from toolkit.data.formats.archive import file_on_disk, is_file
from toolkit.data.formats.conll import conll_table, read_conll
from toolkit.data.formats.content import refuse_packed
from toolkit.data.formats.text import file_errors
from toolkit.errors import UserError

if TYPE_CHECKING:
    from toolkit.data.sources import Splits


def read_tag_files(data: DataConfig) -> "Splits":
    """Return the rows that a data section names.

    A file that was named and has an ending which stands for no other format is read as CoNLL, and so are texts (.txt).
    Raises UserError for whatever is missing, malformed or out of reach.
    """
    from toolkit.data.sources import Splits, read_splits

    options = data.file_options
    train, evaluate = named_files(data.name, data.train, data.eval)
    if not (_is_odd(train) or _is_odd(evaluate)):
        read = read_splits(name=data.name, config=data.config, train=data.train, evaluate=data.eval, options=options)
        to_evaluate = None if read.evaluate is None else _with_words(read.evaluate)
        return replace(read, train=_with_words(read.train), evaluate=to_evaluate)
    if data.config is not None:
        raise UserError(f"data.config is {data.config!r}, but the data are files, which have none; leave it out")
    options.no_header_in("of the files some are read as CoNLL, which has none")
    # Without a name the training data is found in the folder by its usual one.
    named = _read(train, options) if train else None
    found = named or read_splits(name=data.name, config=None, train=None, evaluate=None, options=options)
    if evaluate is None:
        return found
    held = _read(evaluate, options)
    origin = f"{found.origin}; evaluation: {held.origin}"
    return Splits(found.train, held.train, origin, tuple(dict.fromkeys((*found.files, *held.files))))


def _is_odd(path: Path | None) -> bool:
    return path is not None and is_file(path) and format_of(path) is None and path.suffix.lower() not in PACKED


def _read(path: Path, options: FileOptions) -> "Splits":
    """Return one file as rows to train on."""
    import datasets

    from toolkit.data.sources import Splits, read_splits

    if not _is_odd(path):
        read = read_splits(name=None, config=None, train=str(path), evaluate=None, options=options)
        return replace(read, train=_with_words(read.train))
    with file_errors(path):
        refuse_packed(path)
        table, note = read_conll(path)
    how = ", ".join(part for part in ("read as CoNLL", note) if part)
    return Splits(datasets.Dataset(table), None, f"{path} ({how})", (file_on_disk(path),))


def _with_words(rows: Any) -> Any:
    """Return rows that are whole text files as the sentences in them, and any others as they are."""
    import datasets
    import pyarrow as pa

    if rows.column_names != ["text"]:
        return rows
    parts = [
        conll_table(text.split("\n"), f"text file {number:,}" if len(rows) > 1 else "the text file")[0]
        for number, text in enumerate(rows["text"], start=1)
    ]
    return datasets.Dataset(pa.concat_tables(parts))
