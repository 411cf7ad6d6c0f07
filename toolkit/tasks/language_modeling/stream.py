"""All tokens of some documents, one after another, in a file that is made once per machine and mapped into memory."""

import json
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from toolkit.data.cache import digest_of, once_per_machine
from toolkit.data.tokenized import settings_kept, tokenizer_digest
from toolkit.errors import UserError

FORMAT = 2
"""Part of every key in the cache: to be raised when what is written below changes."""
PART = 65_536
"""Characters of a document that are tokenized at once: a tokenizer takes some hundred bytes for each token."""
TOGETHER = 16 * PART
"""Characters that are tokenized by one call, on all threads that the tokenizer has."""
COUNTED = 1 << 24
"""Tokens that are in memory at once while they are counted."""

Tokens = np.ndarray[Any, np.dtype[np.int32]]


class Stream:
    """An end-of-text token, and then documents, each followed by such a token: int32, read where it is asked for."""

    def __init__(self, folder: Path) -> None:
        about = json.loads((folder / "content.json").read_text(encoding="utf-8"))
        self.tokens: Tokens = np.memmap(folder / "tokens.bin", dtype=np.int32, mode="r")
        self.digest: str = about["digest"]
        """A hash of the tokens."""
        self.ends: np.ndarray[Any, np.dtype[np.int64]] = np.load(folder / "ends.npy", mmap_mode="r")
        """Where each document ends: the place of the token that follows it (int64)."""
        self.bytes: int = about["bytes"]
        """Bytes of the texts in UTF-8; the tokens after the first predict exactly these, and where documents end."""

    def __len__(self) -> int:
        return len(self.tokens)

    def counts(self, vocabulary: int) -> "np.ndarray[Any, np.dtype[np.int64]]":
        """Return how often each token occurs after the first place. Costs about 5 ms for a million tokens."""
        total = np.zeros(vocabulary, dtype=np.int64)
        for start in range(1, len(self.tokens), COUNTED):
            total += np.bincount(self.tokens[start : start + COUNTED], minlength=vocabulary)
        return total


def tokenize_documents(texts: Iterable[str], texts_digest: str, tokenizer: Any) -> Stream:
    """Return the tokens of documents, which are tokenized if this machine has not done it before.

    A document of more than 65,536 characters is tokenized in parts, so that memory does not grow with it.

    Raises:
        UserError: the tokenizer has no token to end a document with.
    """
    end = end_of_text(tokenizer)
    key = digest_of(FORMAT, texts_digest, tokenizer_digest(tokenizer), end)

    def build(folder: Path) -> None:
        with settings_kept(tokenizer):
            _write(texts, tokenizer, end, folder)

    return Stream(once_per_machine("streams", key, build))


def end_of_text(tokenizer: Any) -> int:
    """Return the token that stands between documents: the tokenizer's own for the end, or else its separator.

    Raises:
        UserError: it has neither.
    """
    end = tokenizer.eos_token_id if tokenizer.eos_token_id is not None else tokenizer.sep_token_id
    if end is None:
        raise UserError(
            f"the tokenizer ({type(tokenizer).__name__}) has no end-of-text token (eos_token, or sep_token) to stand "
            "between documents; save it with one"
        )
    return int(end)


def _write(texts: Iterable[str], tokenizer: Any, end: int, folder: Path) -> None:
    state = blake2b(digest_size=16)
    size = place = 0
    document_ends = []

    def put(ids: Sequence[int]) -> None:
        content = np.array(ids, dtype=np.int32).tobytes()
        state.update(content)
        file.write(content)

    with (folder / "tokens.bin").open("wb") as file:
        put([end])
        for together in _in_calls(texts):
            encoded = tokenizer(
                [part for part, _ in together],
                add_special_tokens=False,
                padding=False,
                truncation=False,
                return_attention_mask=False,
                verbose=False,
            )["input_ids"]
            for (part, ends), ids in zip(together, encoded, strict=True):
                size += len(part.encode("utf-8"))
                put([*ids, end] if ends else ids)
                place += len(ids) + ends
                if ends:
                    document_ends.append(place)
    np.save(folder / "ends.npy", np.array(document_ends, dtype=np.int64))
    content = {"digest": state.hexdigest(), "bytes": size}
    (folder / "content.json").write_text(json.dumps(content), encoding="utf-8")


def _in_calls(texts: Iterable[str]) -> Iterator[list[tuple[str, bool]]]:
    """Yield parts of documents, each with whether its document ends there, as many as are tokenized together."""
    together: list[tuple[str, bool]] = []
    characters = 0
    for text in texts:
        for part, ends in parts_of(text):
            together.append((part, ends))
            characters += len(part)
            if characters >= TOGETHER:
                yield together
                together, characters = [], 0
    if together:
        yield together


def parts_of(text: str) -> Iterator[tuple[str, bool]]:
    """Yield a text in parts, each with whether it is the last.

    A part begins where a line does: to nearly every tokenizer that makes no difference to the whole text.
    """
    start = 0
    while len(text) - start > PART:
        end = _end_of_part(text, start, start + PART)
        yield text[start:end], False
        start = end
    yield text[start:], True


def _end_of_part(text: str, start: int, stop: int) -> int:
    """Return the last place where a part may end: after a single line end, or else any, or a space, or anywhere."""
    place = text.rfind("\n", start, stop)
    while place > start:
        # Tokenizers join white space to runs: an empty line would come out otherwise if it were divided.
        if not text[place - 1].isspace() and not text[place + 1].isspace():
            return place + 1
        place = text.rfind("\n", start, place)
    for sign in ("\n", " "):
        place = text.rfind(sign, start, stop)
        if place > start:
            return place + 1
    return stop
