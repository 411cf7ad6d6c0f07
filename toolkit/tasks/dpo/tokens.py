"""Pairs as token ids, made once per machine and mapped into memory; how long ones are cut, and how a batch is padded."""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from toolkit.data.cache import digest_of, once_per_machine
from toolkit.data.labels import Array
from toolkit.data.reading import row_numbers
from toolkit.data.tokenized import ROWS_AT_ONCE, tokenizer_digest, write_tokens
from toolkit.errors import UserError
from toolkit.losses import NOT_COUNTED
from toolkit.tasks.conversations.rows import Unusable
from toolkit.tasks.conversations.template import ChatTemplate
from toolkit.tasks.dpo.rows import Pair, pairs_of

if TYPE_CHECKING:
    import torch

FORMAT = 2
"""Part of every key in the cache: to be raised when what is written below changes."""


class PairIds(NamedTuple):
    """A pair in token ids."""

    prompt: list[int]
    """Never empty."""
    chosen: list[int]
    rejected: list[int]

    @property
    def length(self) -> int:
        """Tokens of the longer row that the model reads."""
        return len(self.prompt) + max(len(self.chosen), len(self.rejected))


class TokenizedPairs:
    """A `Source` of pairs; the token ids stay on the disk and are mapped into memory."""

    def __init__(self, folder: Path, drop_equal: bool) -> None:
        """Open what `tokenize_pairs` made; `drop_equal` leaves out pairs whose sides are equal token by token."""
        from datasets import Dataset

        self._tokens = Dataset.from_file(str(folder / "tokens.arrow"))
        self._content: str = json.loads((folder / "content.json").read_text(encoding="utf-8"))["digest"]
        self.full_lengths: Array = np.load(folder / "full_lengths.npy", mmap_mode="r")
        """Tokens of each pair's longer side with its prompt, before anything was cut."""
        parts = self._tokens.data.column("parts").combine_chunks().values.to_numpy().reshape(-1, 4)
        self.counts: Array = parts[:, :3].astype(np.int64)
        """Tokens of prompt, chosen and rejected; shape (pairs, 3)."""
        self.equal: Array = np.flatnonzero(parts[:, 3])
        """The pairs whose sides are equal, as they are tokenized and cut."""
        kept = np.arange(len(parts), dtype=np.int64)
        self.kept = np.setdiff1d(kept, self.equal, assume_unique=True) if drop_equal else kept
        """Which pairs the samples are."""

    def __len__(self) -> int:
        return len(self.kept)

    def fetch(self, ids: Sequence[int]) -> list[PairIds]:
        """Return samples."""
        if not len(ids):
            return []
        rows = self.kept[np.asarray(ids)]
        samples = []
        for tokens, (prompt, chosen, _) in zip(
            self._tokens[rows.tolist()]["input_ids"], self.counts[rows].tolist(), strict=True
        ):
            end = prompt + chosen
            samples.append(PairIds(tokens[:prompt], tokens[prompt:end], tokens[end:]))
        return samples

    def lengths(self, ids: Array) -> Array:
        """Return the number of tokens of each pair's longer side with its prompt (int64)."""
        counts = self.counts[self.kept[np.asarray(ids)]]
        return np.asarray(counts[..., 0] + counts[..., 1:].max(-1))

    def digest(self) -> str:
        """Return a hash of the token ids."""
        return digest_of(self._content, len(self.kept))


def tokenize_pairs(
    table: Any,
    rows: Array,
    name: str,
    tokenizer: Any,
    template: ChatTemplate | None,
    max_length: int | None,
    table_digest: str,
) -> Path:
    """Return the folder with the token ids of a table of valid pairs.

    Args:
        table: a `datasets.Dataset` of the columns chosen, rejected and maybe prompt.
        rows: the numbers of its rows where they came from, for messages.
        name: what to call the table, for messages.
        tokenizer: of Transformers.
        template: how messages are written; None where the table holds texts.
        max_length: cut rows to so many tokens; None leaves them whole.
        table_digest: a hash of the table.

    Raises:
        UserError: conversations that the chat template refuses, or writes so that an answer can't be told from its prompt.
    """
    source = None if template is None else template.source
    key = digest_of(FORMAT, table_digest, tokenizer_digest(tokenizer), source, max_length)

    def build(folder: Path) -> None:
        write_tokens(_batches(table, rows, name, tokenizer, template, max_length), folder)

    return once_per_machine("preferences", key, build)


def _batches(
    table: Any, rows: Array, name: str, tokenizer: Any, template: ChatTemplate | None, max_length: int | None
) -> Iterator[tuple[dict[str, list[list[int]]], Array]]:
    refused: dict[str, list[int]] = {}
    for start in range(0, len(table), ROWS_AT_ONCE):
        block = table.select(range(start, min(start + ROWS_AT_ONCE, len(table))))
        texts: list[Pair] = []
        for row, pair in enumerate(pairs_of(block), start):
            assert isinstance(pair, Pair)  # the table was checked
            try:
                texts.append(pair if template is None else rendered(pair, template))
            except Unusable as error:
                refused.setdefault(str(error), []).append(row)
        if refused:
            continue
        whole = encode(texts, tokenizer, is_rendered=template is not None)
        cut = whole if max_length is None else [shortened(ids, max_length, tokenizer.bos_token_id) for ids in whole]
        counts = [[*map(len, ids), int(ids.chosen == ids.rejected)] for ids in cut]
        tokens = [[*ids.prompt, *ids.chosen, *ids.rejected] for ids in cut]
        yield {"input_ids": tokens, "parts": counts}, np.array([ids.length for ids in whole], dtype=np.int64)
    if refused:
        raise UserError(*(f"{name}: {row_numbers(rows[found])} {why}" for why, found in refused.items()))


def rendered(pair: Pair, template: ChatTemplate) -> Pair:
    """Return a pair of messages as texts, written by a chat template.

    Raises:
        Unusable: the template refuses the conversation, or writes the prompt otherwise for one answer than for the other.
    """
    prompts, sides = [], []
    for side in (pair.chosen, pair.rejected):
        written = template.render([*pair.prompt, side])
        start, _ = written.replies[-1]
        prompts.append(written.text[:start])
        sides.append(written.text[start:])
    if prompts[0] != prompts[1]:
        raise Unusable(
            "whose prompt the chat template writes in another way for one side than for the other; remove them"
        )
    return Pair(prompts[0], *sides)


def encode(pairs: Sequence[Pair], tokenizer: Any, is_rendered: bool = False) -> list[PairIds]:
    """Return token ids of pairs of texts.

    Prompt and completion are tokenized apart, as they are when the model completes the prompt. A plain text gets the
    tokenizer's beginning, and its end token behind each completion; a template has written its own. Where there is no
    prompt, what both sides begin with takes its place: it counts nothing in a difference.
    """

    def ids_of(texts: Sequence[str]) -> list[list[int]]:
        found: list[list[int]] = tokenizer(
            list(texts), add_special_tokens=False, return_attention_mask=False, verbose=False
        )["input_ids"]
        return found

    begin = end = []
    if not is_rendered:
        begin = [token for token in tokenizer("a")["input_ids"][:1] if token == tokenizer.bos_token_id]
        end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    # So that the first token has a probability too: models read documents one behind the other, with an end token between.
    alone = [token for token in (tokenizer.bos_token_id, tokenizer.eos_token_id) if token is not None][:1]
    prompts = ids_of([pair.prompt or "" for pair in pairs])
    sides = (ids_of([pair.chosen for pair in pairs]), ids_of([pair.rejected for pair in pairs]))
    encoded = []
    for pair, prompt, *both in zip(pairs, prompts, *sides, strict=True):
        chosen, rejected = both[0] + end, both[1] + end
        shared = shared_beginning(chosen, rejected) if pair.prompt is None else 0
        encoded.append(PairIds(begin + prompt + chosen[:shared] or alone, chosen[shared:], rejected[shared:]))
    return encoded


def shared_beginning(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many tokens two rows begin with alike, of which each keeps one at least behind them."""
    most = min(len(one), len(other)) - 1
    return next((place for place in range(most) if one[place] != other[place]), most)


def shortened(ids: PairIds, limit: int, begin: int | None) -> PairIds:
    """Return a pair cut to at most `limit` tokens (2 or more) a row: first the prompt from its beginning, down to half of that.

    What is still too long is cut from the end of the completions, which keep a token at least. A first token that marks the
    beginning stays.
    """
    if ids.length <= limit:
        return ids
    longest = max(len(ids.chosen), len(ids.rejected))
    kept = max(limit - longest, min(len(ids.prompt), limit // 2))
    prompt = ids.prompt[len(ids.prompt) - kept :]
    if ids.prompt[0] == begin:
        prompt[0] = begin
    return PairIds(prompt, ids.chosen[: limit - kept], ids.rejected[: limit - kept])


def pad_pairs(tokenizer: Any) -> "Callable[[list[PairIds]], dict[str, torch.Tensor]]":
    """Return a collate function: pairs to what `PolicyAndReference` takes, all chosen rows first, then all rejected ones."""
    import torch

    # Padding is masked everywhere: any token will do where the tokenizer has none for it.
    filler = next((token for token in (tokenizer.pad_token_id, tokenizer.eos_token_id) if token is not None), 0)

    def collate(samples: list[PairIds]) -> "dict[str, torch.Tensor]":
        rows = [(ids.prompt, ids.chosen) for ids in samples] + [(ids.prompt, ids.rejected) for ids in samples]
        longest = max(len(prompt) + len(completion) for prompt, completion in rows)
        first = min(len(prompt) for prompt, _ in rows) - 1
        tokens = np.full((len(rows), longest), filler, dtype=np.int64)
        mask = np.zeros_like(tokens)
        # At each position the label is the token after it.
        labels = np.full((len(rows), longest - 1 - first), NOT_COUNTED, dtype=np.int64)
        for row, (prompt, completion) in enumerate(rows):
            begin, end = len(prompt), len(prompt) + len(completion)
            tokens[row, :begin], tokens[row, begin:end], mask[row, :end] = prompt, completion, 1
            labels[row, begin - 1 - first : end - 1 - first] = completion
        arrays = {"input_ids": tokens, "attention_mask": mask, "labels": labels}
        batch = {name: torch.from_numpy(array) for name, array in arrays.items()}
        return {**batch, "positions": torch.arange(first, longest - 1)}

    return collate
