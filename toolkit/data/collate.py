"""How token ids of different lengths become one batch: the one place where anything is padded."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from toolkit.batch_layout import note_padding
from toolkit.errors import UserError


def pad(
    samples: Sequence[Mapping[str, Sequence[int]]], fillers: Mapping[str, int], side: str = "right"
) -> dict[str, torch.Tensor]:
    """Return what a model takes of some samples, padded to the longest of them.

    Args:
        samples: token ids and other values of each token, by name, without padding.
        fillers: the columns to take, "input_ids" among them, each with the value that it is padded with; columns that
            the samples do not have are ignored, and columns that are not named are left out.
        side: where the padding goes, "right" or "left".

    Returns:
        Each column and "attention_mask" (1 on tokens, 0 on padding), int64 of shape (samples, tokens of the longest);
        and what `note_padding` says of them.
    """
    found = {name: filler for name, filler in fillers.items() if name in samples[0]}
    columns = {name: pad_rows([sample[name] for sample in samples], filler, side) for name, filler in found.items()}
    counts = [len(sample["input_ids"]) for sample in samples]
    mask = pad_rows([np.ones(count, dtype=np.int64) for count in counts], 0, side)
    return {**columns, "attention_mask": mask, **note_padding(counts, side)}


def pad_rows(rows: Sequence[Sequence[int] | np.ndarray[Any, Any]], filler: int, side: str = "right") -> torch.Tensor:
    """Return rows of numbers as an int64 tensor of shape (rows, the longest of them), padded with `filler`."""
    longest = max(map(len, rows))
    matrix = np.full((len(rows), longest), filler, dtype=np.int64)
    for place, row in zip(matrix, rows, strict=True):
        place[longest - len(row) if side == "left" else 0 :][: len(row)] = row
    return torch.from_numpy(matrix)


def padding_token(tokenizer: Any, what: str) -> int:
    """Return the id of the token that `what` of different length are padded with, such as texts.

    Raises:
        UserError: the tokenizer has none.
    """
    if tokenizer.pad_token_id is None:
        raise UserError(
            f"the tokenizer ({type(tokenizer).__name__}) has no padding token, so {what} of different length cannot "
            "stand in one batch; give the model a tokenizer with a pad_token"
        )
    return int(tokenizer.pad_token_id)


def fillers_of(tokenizer: Any, what: str) -> dict[str, int]:
    """Return what each column that a tokenizer makes is padded with, for `pad`; `what` names the texts in a message.

    Raises:
        UserError: the tokenizer has no padding token.
    """
    own = {"input_ids": padding_token(tokenizer, what), "token_type_ids": getattr(tokenizer, "pad_token_type_id", 0)}
    return {**dict.fromkeys(tokenizer.model_input_names, 0), **own}
