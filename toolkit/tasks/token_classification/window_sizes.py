"""How many tokens the windows of a sentence have."""

from typing import Any

from toolkit.data.text_columns import length_limit
from toolkit.errors import UserError
from toolkit.tasks.token_classification.windows import added_tokens

USUAL_LENGTH = 512
"""Tokens of a window where neither the configuration nor the tokenizer knows a limit."""


def window_sizes(tokenizer: Any, asked: int | None, overlap: int | None) -> tuple[int, int]:
    """Return the tokens of a window, and those that neighbours share.

    `asked` is data.max_length, and `overlap` data.overlap.

    Raises:
        UserError: the model does not take so many, or nothing would be left.
    """
    limit = length_limit(tokenizer)
    max_length = asked or limit or USUAL_LENGTH
    added = added_tokens(tokenizer)
    if limit is not None and max_length > limit:
        raise UserError(
            f"data.max_length is {max_length}, but the model takes at most {limit} tokens; give {limit} or less"
        )
    if max_length <= added:
        raise UserError(
            f"data.max_length is {max_length}, and the tokenizer adds {added} tokens of its own to each window, so "
            f"that nothing would be left; give at least {added + 1}"
        )
    room = max_length - added
    if overlap is not None and overlap >= room:
        raise UserError(
            f"data.overlap is {overlap}, but a window has room for {room} token{'s' * (room > 1)}; give less than "
            "that, or null for a quarter"
        )
    return max_length, min(max_length // 4 if overlap is None else overlap, room - 1)
