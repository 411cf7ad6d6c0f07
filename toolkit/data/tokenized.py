"""Texts as token ids, made once per machine and mapped into memory; and how a batch of them is padded."""

import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from toolkit.data.cache import digest_of, once_per_machine
from toolkit.data.labels import Array, Labels

if TYPE_CHECKING:
    import torch

FORMAT = 1
"""Part of every key in the cache: to be raised when what is written below changes."""
ROWS_AT_ONCE = 1000
"""Texts that are in memory at once while texts are hashed or tokenized."""


class WrittenTokens:
    """What `write_tokens` wrote: token ids that stay on the disk and are mapped into memory."""

    def __init__(self, folder: Path) -> None:
        from datasets import Dataset

        self.table = Dataset.from_file(str(folder / "tokens.arrow"))
        """What the tokenizer made of the texts: a column for each name."""
        self.lengths: Array = np.load(folder / "lengths.npy", mmap_mode="r")
        """Tokens of each text (int64)."""
        self.full_lengths: Array = np.load(folder / "full_lengths.npy", mmap_mode="r")
        """Tokens of each text before it was cut."""
        self.content: str = json.loads((folder / "content.json").read_text(encoding="utf-8"))["digest"]
        """A hash of the token ids."""

    def __len__(self) -> int:
        return len(self.lengths)

    def fetch(self, ids: Sequence[int]) -> dict[str, list[Any]]:
        """Return what the tokenizer made of some texts, by name: a list for each text."""
        columns: dict[str, list[Any]] = self.table[np.asarray(ids).tolist()]
        return columns


class TokenizedTexts:
    """A `Source` of token ids with labels."""

    def __init__(self, folder: Path, labels: Labels) -> None:
        self.labels = labels
        self.tokens = WrittenTokens(folder)

    def __len__(self) -> int:
        return len(self.tokens)

    def fetch(self, ids: Sequence[int]) -> list[dict[str, Any]]:
        """Return samples: what the tokenizer made of the text (lists, no padding), and "label". About 5 us each."""
        if not len(ids):
            return []
        columns = self.tokens.fetch(ids)
        columns["label"] = [self.labels.target(row) for row in np.asarray(ids).tolist()]
        return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]

    def lengths(self, ids: Array) -> Array:
        """Return the number of tokens of each sample (int64)."""
        return np.asarray(self.tokens.lengths[np.asarray(ids)])

    def digest(self) -> str:
        """Return a hash of the token ids and labels."""
        labels = self.labels
        return digest_of(self.tokens.content, labels.kind, labels.names, labels.values, labels.starts)


def tokenize(texts: Any, tokenizer: Any, max_length: int | None, texts_digest: str) -> Path:
    """Return the folder with the token ids of a `datasets.Dataset` of one or two columns of text.

    With a `max_length` longer texts are cut to so many tokens, special ones included; of a pair always the longer text.
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
            # The lengths say where a text ends: ("ab", "c") is not ("a", "bc").
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
            # What the last call cut or padded to is no property of the tokenizer.
            tokenizer.backend_tokenizer.no_truncation()
            tokenizer.backend_tokenizer.no_padding()
            return digest_of(*settings, tokenizer.backend_tokenizer.to_str())
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        files = sorted(path for path in Path(folder).rglob("*") if path.is_file())
        return digest_of(*settings, [(path.name, path.read_bytes()) for path in files])


def pad_texts(tokenizer: Any, kind: str) -> Callable[[list[dict[str, Any]]], "dict[str, torch.Tensor]"]:
    """Return a collate function: samples of a `TokenizedTexts` to tensors, padded on the tokenizer's side.

    Beside what `pad` makes there is "labels": int64 (samples), float32 (samples, labels) for kind multi, float32 (samples) for
    regression. Raises UserError if the tokenizer has no padding token.
    """
    import torch

    from toolkit.data.collate import fillers_of, pad

    fillers, label_type = fillers_of(tokenizer, "texts"), torch.int64 if kind == "single" else torch.float32

    def collate(samples: list[dict[str, Any]]) -> "dict[str, torch.Tensor]":
        labels = torch.tensor([sample["label"] for sample in samples], dtype=label_type)
        return {**pad(samples, fillers, tokenizer.padding_side), "labels": labels}

    return collate


def _batches(texts: Any, tokenizer: Any, max_length: int | None) -> Iterator[tuple[dict[str, list[list[int]]], Array]]:
    """Yield token ids by name, and how many there were before the cut."""
    for batch in texts.with_format("arrow").iter(ROWS_AT_ONCE):
        columns = [column.to_pylist() for column in batch.columns]
        encoded = _encode(tokenizer, columns, None)
        full = np.array([len(ids) for ids in encoded["input_ids"]], dtype=np.int64)
        # Long texts are tokenized twice: only so the plan can say how many are cut and how long they were.
        long = np.flatnonzero(full > max_length).tolist() if max_length is not None else []
        if long:
            again = _encode(tokenizer, [[column[row] for row in long] for column in columns], max_length)
            for name, rows in again.items():
                for row, ids in zip(long, rows, strict=True):
                    encoded[name][row] = ids
        yield encoded, full


def _encode(tokenizer: Any, columns: list[list[str]], max_length: int | None) -> dict[str, list[list[int]]]:
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
    """Give a fast tokenizer back as it was: every call leaves its cut behind, which would be saved with the model."""
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
