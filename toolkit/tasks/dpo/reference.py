"""A causal model beside the one that it was before training: what both give to a completion, in one forward pass."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from toolkit.losses import NOT_COUNTED, causal_logits, full_precision
from toolkit.models.lora import has_adapters


class LogProbabilities(NamedTuple):
    """Of each row's completion, summed over its tokens: float64, shape (rows,)."""

    policy: torch.Tensor
    reference: torch.Tensor
    """No gradient flows into it."""


class PolicyAndReference(torch.nn.Module):
    """Holds the model that is trained, the policy, and its reference: one module, so that one wrapper (DDP) is around both.

    The reference is the policy with its adapters switched off where it has adapters (peft), which costs no memory; otherwise
    a frozen copy, in evaluation mode for ever.
    """

    def __init__(self, policy: torch.nn.Module, reference: torch.nn.Module | None = None) -> None:
        """Take the policy as it is before training.

        Args:
            policy: a causal model of Transformers, or a `peft.PeftModel` around one.
            reference: another model than what the policy is now.
        """
        super().__init__()
        self.policy = policy
        if reference is None and not has_adapters(policy):
            reference = copy.deepcopy(policy)
        self.reference = None if reference is None else reference.requires_grad_(False).eval()

    def train(self, mode: bool = True) -> "PolicyAndReference":
        """Switch the policy; the reference stays in evaluation mode."""
        super().train(mode)
        if self.reference is not None:
            self.reference.eval()
        return self

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, positions: torch.Tensor, labels: torch.Tensor
    ) -> LogProbabilities:
        """Return what policy and reference give to the completions.

        Args:
            input_ids: int64 (rows, length), padded on the right.
            attention_mask: int64, same shape.
            positions: int64 (kept,), the positions whose next token counts in some row: logits are made for these alone.
            labels: int64 (rows, kept), the next token at each of them, or `NOT_COUNTED`.
        """
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
        # First the reference: peft switches requires_grad with the adapters, which no graph of the policy may meet.
        with torch.no_grad(), self.as_reference() as reference:
            of_reference = completion_log_probabilities(reference, inputs, positions, labels)
        return LogProbabilities(completion_log_probabilities(self.policy, inputs, positions, labels), of_reference)

    @contextmanager
    def as_reference(self) -> Iterator[torch.nn.Module]:
        """Yield the reference, without dropout; until the end the policy is not to be used."""
        if self.reference is not None:
            yield self.reference
            return
        adapted: Any = self.policy
        modes = [(module, module.training) for module in adapted.modules()]
        adapted.eval()
        try:
            with adapted.disable_adapter():
                yield adapted
        finally:
            for module, mode in modes:
                module.training = mode


def completion_log_probabilities(
    model: Any, inputs: dict[str, torch.Tensor], positions: torch.Tensor, labels: torch.Tensor
) -> torch.Tensor:
    """Return the log-probability of each row's labelled tokens, summed; float64 (rows,)."""
    flat = full_precision(causal_logits(model, inputs, positions)).flatten(0, 1)
    each = F.cross_entropy(flat, labels.flatten(), ignore_index=NOT_COUNTED, reduction="none")
    # The sum of a long completion has thousands where the difference of two models has hundredths.
    return -each.view(labels.shape).sum(1, dtype=torch.float64)
