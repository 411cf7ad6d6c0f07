"""Masked language modelling: which tokens of a block are hidden, as in BERT (arXiv 1810.04805, section 3.1)."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from toolkit.errors import UserError
from toolkit.losses import NOT_COUNTED

HIDDEN, REPLACED = 0.8, 0.1
"""Of the tokens that are to be predicted, so many become the mask token, and so many any other; the rest stay."""

Ids = np.ndarray[Any, np.dtype[np.int64]]


class Masking:
    """A task's `transform`: hides some tokens of a block and labels them with what they were.

    Each token is chosen by itself with the same probability, so that a short block may have none. Special tokens are
    never chosen.
    """

    def __init__(self, tokenizer: Any, share: float) -> None:
        """Prepare the masks of a tokenizer; `share` is the probability that a token is to be predicted.

        Raises:
            UserError: the tokenizer has no mask token.
        """
        if tokenizer.mask_token_id is None:
            raise UserError(
                f"the objective is masked, but the tokenizer ({type(tokenizer).__name__}) has no mask token; give a "
                "model that was made for it, or --objective causal"
            )
        self.share = share
        self.mask = int(tokenizer.mask_token_id)
        special = np.array(sorted(set(tokenizer.all_special_ids)), dtype=np.int64)
        self.is_special = np.zeros(len(tokenizer), dtype=bool)
        self.is_special[special] = True
        self.ordinary = np.flatnonzero(~self.is_special)
        """The tokens that a replaced one may become."""

    def __call__(self, sample: Mapping[str, Ids], generator: np.random.Generator) -> dict[str, Ids]:
        """Return the block with "labels"; as many numbers are drawn for each block of one length, whatever it holds."""
        tokens = sample["input_ids"]
        chosen = (generator.random(len(tokens)) < self.share) & ~self.is_special[tokens]
        action = generator.random(len(tokens))
        other = self.ordinary[generator.integers(len(self.ordinary), size=len(tokens))]
        inputs = np.where(chosen & (action < HIDDEN), self.mask, tokens)
        inputs = np.where(chosen & (action >= HIDDEN) & (action < HIDDEN + REPLACED), other, inputs)
        return {"input_ids": inputs, "labels": np.where(chosen, tokens, NOT_COUNTED)}
