"""Texts as token ids, made once per machine and mapped into memory."""

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from toolkit.data.cache import digest_of, once_per_machine
from toolkit.data.labels import Array, Labels

FORMAT = 1
"""Part of every key in the cache: to be raised when what is written below changes."""
ROWS_AT_ONCE = 1000
"""Texts that are in memory at once while texts are hashed or tokenized."""


class WrittenTokens:
    """What `write_tokens` wrote: token ids that stay on the disk and are mapped into memory."""

    def __init__(self, folder: Path, without: Sequence[str] = ()) -> None:
        """Map what was written into a folder; columns that no sample needs are left out with `without`."""
        from datasets import Dataset

        self.table = Dataset.from_file(str(folder / "tokens.arrow"))
        """All columns."""
        self._samples = self.table.remove_columns(list(without)) if without else self.table
        self.lengths: Array = np.load(folder / "lengths.npy", mmap_mode="r")
        """Tokens of each text (int64)."""
        self.full_lengths: Array = np.load(folder / "full_lengths.npy", mmap_mode="r")
        """Tokens of each text before it was truncated."""
        self.content: str = json.loads((folder / "content.json").read_text(encoding="utf-8"))["digest"]
        """A hash of the token ids."""

    def __len__(self) -> int:
        return len(self.lengths)

    def fetch(self, ids: Sequence[int]) -> list[dict[str, list[int]]]:
        """Return what the tokenizer made of some texts: lists without padding, by name."""
        if not ids:
            return []
        columns = self._samples[ids]
        return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


class TokenizedDataset:
    """A `Source` of samples with named columns: texts as token ids, and values such as labels. About 5 us a sample."""

    def __init__(
        self, texts: Mapping[str, WrittenTokens], values: Mapping[str, Labels | Array], lengths: Array, content: str
    ) -> None:
        """Put columns together.

        Args:
            texts: columns of texts; a sample has what the tokenizer made of each.
            values: further columns; a sample has what is to be predicted, or a number, or a list of numbers.
            lengths: what each sample counts as in tokens (int64), for batches of samples of like length.
            content: a hash of everything.
        """
        self.texts, self.values = texts, values
        self._lengths, self._content = lengths, content

    def __len__(self) -> int:
        return len(self._lengths)

    def fetch(self, ids: Sequence[int]) -> list[dict[str, Any]]:
        """Return samples: the entry of each column by its name."""
        rows = np.asarray(ids, dtype=np.int64)
        columns: dict[str, list[Any]] = {name: tokens.fetch(rows.tolist()) for name, tokens in self.texts.items()}
        for name, values in self.values.items():
            columns[name] = values.targets(rows) if isinstance(values, Labels) else values[rows].tolist()
        return [dict(zip(columns, entries, strict=True)) for entries in zip(*columns.values(), strict=True)]

    def longest(self, column: str) -> int:
        """Return the number of tokens of the longest text of a column."""
        return int(self.texts[column].lengths.max())

    def lengths(self, ids: Array) -> Array:
        """Return the number of tokens of each sample (int64)."""
        return np.asarray(self._lengths[np.asarray(ids)])

    def digest(self) -> str:
        """Return a hash of the token ids and values."""
        return self._content


def tokenize(texts: Any, tokenizer: Any, max_length: int | None, texts_digest: str) -> Path:
    """Return the folder with the token ids of a `datasets.Dataset` of one or two columns of text.

    With a `max_length` longer texts are truncated to so many tokens, special ones included; of a pair always the longer
    text.
    Costs about 0.1 ms a sentence the first time, nothing from then on.
    """
    key = digest_of(FORMAT, texts_digest, tokenizer_digest(tokenizer), max_length)

    def build(folder: Path) -> None:
        with settings_kept(tokenizer):
            write_tokens(_batches(texts, tokenizer, max_length), folder)

    return once_per_machine("tokens", key, build)


def text_digest(texts: Any) -> str:
    """Return a hash of a `datasets.Dataset` that holds only texts; about 1 s for a million rows."""
    state = blake2b(digest_size=16)
    for batch in texts.with_format("arrow").iter(ROWS_AT_ONCE):
        for column in batch.columns:
            rows = column.to_pylist()
            # The lengths tell where a text ends: ("ab", "c") is not ("a", "bc").
            state.update(np.array([len(row) for row in rows], dtype=np.int64).tobytes())
            state.update("".join(rows).encode("utf-8", "surrogatepass"))
    return digest_of(len(texts), len(texts.column_names), state.hexdigest())


def tokenizer_digest(tokenizer: Any) -> str:
    """Return a hash of everything in a tokenizer that decides which ids a text becomes."""
    settings = (
        type(tokenizer).__name__,
        getattr(tokenizer, "truncation_side", None),
        list(tokenizer.model_input_names),
        bool(getattr(tokenizer, "split_special_tokens", False)),
    )
    if getattr(tokenizer, "is_fast", False):
        with settings_kept(tokenizer):
            # What the last call truncated or padded to is no property of the tokenizer.
            tokenizer.backend_tokenizer.no_truncation()
            tokenizer.backend_tokenizer.no_padding()
            return digest_of(*settings, tokenizer.backend_tokenizer.to_str())
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        files = sorted(path for path in Path(folder).rglob("*") if path.is_file())
        return digest_of(*settings, [(path.name, path.read_bytes()) for path in files])


def _batches(texts: Any, tokenizer: Any, max_length: int | None) -> Iterator[tuple[dict[str, list[list[int]]], Array]]:
    """Yield token ids by name, and how many of each text there were before it was truncated."""
    for batch in texts.with_format("arrow").iter(ROWS_AT_ONCE):
        columns = [column.to_pylist() for column in batch.columns]
        encoded = encode_texts(tokenizer, columns, None)
        full = np.array([len(ids) for ids in encoded["input_ids"]], dtype=np.int64)
        # Long texts are tokenized twice: only so the plan can tell how many are truncated and how long they were.
        long = np.flatnonzero(full > max_length).tolist() if max_length is not None else []
        if long:
            again = encode_texts(tokenizer, [[column[row] for row in long] for column in columns], max_length)
            for name, rows in again.items():
                for row, ids in zip(long, rows, strict=True):
                    encoded[name][row] = ids
        yield encoded, full


def encode_texts(tokenizer: Any, columns: list[list[str]], max_length: int | None) -> dict[str, list[list[int]]]:
    encoded = tokenizer(
        *columns,
        padding=False,
        truncation=max_length is not None,
        max_length=max_length,
        return_attention_mask=False,
        verbose=False,
    )
    return {name: list(encoded[name]) for name in encoded if name != "attention_mask"}


def write_tokens(batches: Iterator[tuple[dict[str, list[list[int]]], Array]], folder: Path) -> None:
    """Write token ids as the stream of Arrow batches that `datasets.Dataset.from_file` maps into memory."""
    import pyarrow as pa

    state = blake2b(digest_size=16)
    lengths: list[Array] = []
    full_lengths: list[Array] = []
    writer: Any = None
    try:
        for encoded, full in batches:
            types = {name: pa.list_(pa.int8() if name == "token_type_ids" else pa.int32()) for name in encoded}
            batch = pa.record_batch([pa.array(encoded[name], types[name]) for name in encoded], names=list(encoded))
            writer = writer or pa.ipc.new_stream(str(folder / "tokens.arrow"), batch.schema)
            writer.write_batch(batch)
            lengths.append(np.array([len(ids) for ids in encoded["input_ids"]], dtype=np.int64))
            full_lengths.append(full)
            state.update(lengths[-1].tobytes())
            for name, column in zip(encoded, batch.columns, strict=True):
                state.update(name.encode())
                state.update(column.values.to_numpy().tobytes())
    finally:
        if writer is not None:
            writer.close()
    np.save(folder / "lengths.npy", np.concatenate(lengths))
    np.save(folder / "full_lengths.npy", np.concatenate(full_lengths))
    (folder / "content.json").write_text(json.dumps({"digest": state.hexdigest()}), encoding="utf-8")


@contextmanager
def settings_kept(tokenizer: Any) -> Iterator[None]:
    """Give a fast tokenizer back as it was: each call leaves its truncation behind, which would be saved
    with the model."""
    if not getattr(tokenizer, "is_fast", False):
        yield
        return
    backend = tokenizer.backend_tokenizer
    truncation, padding = backend.truncation, backend.padding
    try:
        yield
    finally:
        backend.no_truncation()
        backend.no_padding()
        if truncation is not None:
            backend.enable_truncation(**truncation)
        if padding is not None:
            backend.enable_padding(**padding)
