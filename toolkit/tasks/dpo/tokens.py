"""Pairs as token ids, made once per machine and mapped into memory: how they are truncated, and padded in a batch."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from toolkit.batch_layout import ROW_SAMPLES, note_padding
from toolkit.data.cache import digest_of, once_per_machine
from toolkit.data.collate import pad_rows
from toolkit.data.labels import Array
from toolkit.data.tokenized import ROWS_AT_ONCE, WrittenTokens, tokenizer_digest, write_tokens
from toolkit.errors import UserError
from toolkit.losses import NOT_COUNTED
from toolkit.task import Batch
from toolkit.tasks.conversations.messages import Unusable, UnusableRows
from toolkit.tasks.conversations.template import ChatTemplate
from toolkit.tasks.dpo.rows import Pair, PairRows, pairs_of
from toolkit.vocabulary_loss import note_labels

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

    def __init__(self, folder: Path, rows: Array, drop_equal: bool) -> None:
        """Open what `tokenize_pairs` made.

        Args:
            folder: what it returned.
            rows: the number that each pair had in the data, counted from 0.
            drop_equal: leave out pairs whose sides are equal token by token.
        """
        self.tokens = WrittenTokens(folder)
        parts = self.tokens.table.data.column("parts").combine_chunks().values.to_numpy().reshape(-1, 4)
        self.counts: Array = parts[:, :3].astype(np.int64)
        """Tokens of prompt, chosen and rejected; shape (pairs, 3)."""
        self.equal: Array = np.flatnonzero(parts[:, 3])
        """The pairs whose sides are equal, as they are tokenized and truncated."""
        kept = np.arange(len(parts), dtype=np.int64)
        self.kept = np.setdiff1d(kept, self.equal, assume_unique=True) if drop_equal else kept
        """Which pairs the samples are."""
        self.rows = rows

    def __len__(self) -> int:
        return len(self.kept)

    def fetch(self, ids: Sequence[int]) -> list[PairIds]:
        """Return samples."""
        samples = []
        for columns in self.tokens.fetch(self.kept[np.asarray(ids, dtype=np.int64)].tolist()):
            tokens, (prompt, chosen, *_) = columns["input_ids"], columns["parts"]
            end = prompt + chosen
            samples.append(PairIds(tokens[:prompt], tokens[prompt:end], tokens[end:]))
        return samples

    def lengths(self, ids: Array) -> Array:
        """Return the number of tokens of each pair's longer side with its prompt (int64)."""
        counts = self.counts[self.kept[np.asarray(ids)]]
        return np.asarray(counts[..., 0] + counts[..., 1:].max(-1))

    def digest(self) -> str:
        """Return a hash of the token ids."""
        return digest_of(self.tokens.content, len(self.kept))

    def show(self, sample: int, decode: Callable[[list[int]], str]) -> dict[str, Any]:
        """Return the row of a sample, counted from 1, and its texts, for a reader."""
        texts = {name: decode(ids) for name, ids in self.fetch([sample])[0]._asdict().items()}
        return {"row": int(self.rows[self.kept[sample]]) + 1, **texts}


def tokenize_pairs(
    pairs: PairRows, tokenizer: Any, template: ChatTemplate | None, max_length: int | None, drop_equal: bool
) -> TokenizedPairs:
    """Return pairs as token ids, made once per machine.

    Args:
        pairs: texts or messages.
        tokenizer: of Transformers.
        template: how messages are written; None where the pairs are texts.
        max_length: truncate rows to so many tokens; None leaves them whole.
        drop_equal: leave out pairs whose sides are then equal token by token.

    Raises:
        UserError: the chat template refuses conversations, or writes an answer and its prompt as one.
    """
    source = None if template is None else template.source
    key = digest_of(FORMAT, pairs.digest, tokenizer_digest(tokenizer), source, max_length)

    def build(folder: Path) -> None:
        write_tokens(_batches(pairs, tokenizer, template, max_length), folder)

    return TokenizedPairs(once_per_machine("preferences", key, build), pairs.rows, drop_equal)


def _batches(
    pairs: PairRows, tokenizer: Any, template: ChatTemplate | None, max_length: int | None
) -> Iterator[tuple[dict[str, list[list[int]]], Array]]:
    unusable = UnusableRows()
    for start in range(0, len(pairs), ROWS_AT_ONCE):
        block = pairs.table.select(range(start, min(start + ROWS_AT_ONCE, len(pairs))))
        texts: list[Pair] = []
        for row, pair in enumerate(pairs_of(block), start):
            assert isinstance(pair, Pair)  # the table was checked
            with unusable.noted(row):
                texts.append(pair if template is None else rendered(pair, template))
        if unusable.rows:
            continue
        whole = encode(texts, tokenizer, is_rendered=template is not None)
        fitting = whole if max_length is None else [truncated(ids, max_length, tokenizer.bos_token_id) for ids in whole]
        parts = [[*map(len, ids), int(ids.chosen == ids.rejected)] for ids in fitting]
        tokens = [[*ids.prompt, *ids.chosen, *ids.rejected] for ids in fitting]
        yield {"input_ids": tokens, "parts": parts}, np.array([ids.length for ids in whole], dtype=np.int64)
    if unusable.rows:
        raise UserError(*unusable.problems(pairs.name, pairs.rows))


def rendered(pair: Pair, template: ChatTemplate) -> Pair:
    """Return a pair of messages as texts, written by a chat template.

    Raises:
        Unusable: the template refuses the conversation, or writes the prompt differently for the two answers.
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
    tokenizer's first token, and its end token after each completion; a template has written its own. Where there is no
    prompt, the tokens that both sides begin with take its place: they cancel in the difference of the two sides.
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
    # So that the first token has a probability too: models read documents one after the other, an end token between.
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
    """Return how many tokens two rows have in common at their beginning; each keeps one token at least after those."""
    most = min(len(one), len(other)) - 1
    return next((place for place in range(most) if one[place] != other[place]), most)


def truncated(ids: PairIds, max_length: int, begin: int | None) -> PairIds:
    """Return a pair whose rows have at most `max_length` tokens (2 or more).

    First the prompt loses tokens from its beginning, down to half of that length; but a first token that marks the
    beginning (`begin`) stays. What is still too long loses tokens from the end of the completions, which keep one at
    least.
    """
    if ids.length <= max_length:
        return ids
    longest = max(len(ids.chosen), len(ids.rejected))
    kept = max(max_length - longest, min(len(ids.prompt), max_length // 2))
    prompt = ids.prompt[len(ids.prompt) - kept :]
    if ids.prompt[0] == begin:
        prompt[0] = begin
    return PairIds(prompt, ids.chosen[: max_length - kept], ids.rejected[: max_length - kept])


def pad_pairs(tokenizer: Any) -> Callable[[list[PairIds]], Batch]:
    """Return a collate function: what `PolicyAndReference` takes of some pairs, first chosen, then rejected rows."""
    # Padding is masked everywhere: any token will do where the tokenizer has none for it.
    filler = next((token for token in (tokenizer.pad_token_id, tokenizer.eos_token_id) if token is not None), 0)

    def collate(samples: list[PairIds]) -> Batch:
        rows = [(ids.prompt, ids.chosen) for ids in samples] + [(ids.prompt, ids.rejected) for ids in samples]
        tokens = pad_rows([prompt + completion for prompt, completion in rows], filler)
        mask = pad_rows([np.ones(len(prompt) + len(completion), dtype=np.int64) for prompt, completion in rows], 0)
        # The label of a place is the token after it.
        labels = [[NOT_COUNTED] * (len(prompt) - 1) + completion + [NOT_COUNTED] for prompt, completion in rows]
        padded = pad_rows(labels, NOT_COUNTED)
        return {
            "input_ids": tokens,
            "attention_mask": mask,
            "labels": padded,
            ROW_SAMPLES: torch.arange(len(samples)).repeat(2),
            **note_padding([len(prompt) + len(completion) for prompt, completion in rows]),
            **note_labels(padded),
        }

    return collate
