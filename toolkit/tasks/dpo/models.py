"""A policy and its reference: one model of both, scores of the rewards, and how a saved policy finds its reference."""

import copy
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from toolkit.config.model import LoraConfig, ModelConfig
from toolkit.errors import UserError
from toolkit.metrics import Scores
from toolkit.models.export import pretrained_folder
from toolkit.models.lora import has_adapters
from toolkit.models.parameters import digest_of_frozen
from toolkit.models.tokenizer import tokenizer
from toolkit.models.usage import CHAT as CHAT_USE
from toolkit.randomness import seed_for
from toolkit.tasks.conversations.models import causal_model
from toolkit.vocabulary_loss import causal_scores, laid_out

RECORD = "reference.json"
"""The file in the folder of a saved policy that says which model it was trained against."""


class LogProbabilities(NamedTuple):
    """Of each row's completion, summed over its tokens: float64, shape (rows,)."""

    policy: torch.Tensor
    reference: torch.Tensor
    """No gradient flows into it."""


class PolicyAndReference(torch.nn.Module):
    """The model that is trained (the policy) and its reference, in one module, so that one wrapper (DDP) holds both.

    The reference of a policy with adapters (peft) is the policy with its adapters switched off, which costs no memory;
    otherwise it is a frozen copy, always in evaluation mode.
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
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, carrying: torch.Tensor, targets: torch.Tensor
    ) -> LogProbabilities:
        """Return what policy and reference give to the completions.

        Args:
            input_ids: int64 (rows, length), padded on the right.
            attention_mask: int64, same shape.
            carrying: int64 (counted, 2), row and place of each token that one of a completion comes after.
            targets: int64 (counted,), these.
        """
        batch = {"input_ids": input_ids, "attention_mask": attention_mask, "carrying": carrying, "targets": targets}
        # First the reference: peft switches requires_grad with the adapters, which would spoil the policy's graph.
        with torch.no_grad(), self.as_reference() as reference:
            of_reference = completion_log_probabilities(reference, batch)
        return LogProbabilities(completion_log_probabilities(self.policy, batch), of_reference)

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


def completion_log_probabilities(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the log-probability of each row's labelled tokens, summed; float64 (rows,)."""
    each = laid_out(causal_scores(model, batch).losses, batch)
    # The sum of a long completion has thousands where the difference of two models has hundredths.
    return -each.sum(1, dtype=torch.float64)


SCORES = ("preference_accuracy", "margin", "reward_chosen", "reward_rejected")
"""The names of what `preference_scores` returns."""


def preference_scores(predictions: Any, references: Any) -> Scores:
    """Return the share of pairs that are ranked right, the mean margin, and the mean reward of both sides.

    A prediction is a pair of rewards; its reference is the number of the preferred side. A tie counts as half, as a
    coin would get: a model that was not trained yet has only ties, and 0.5.
    """
    rewards, preferred = np.asarray(predictions, dtype=np.float64), np.asarray(references)
    rows = np.arange(len(rewards))
    chosen, rejected = rewards[rows, preferred], rewards[rows, 1 - preferred]
    return {
        "preference_accuracy": float(np.mean((chosen > rejected) + 0.5 * (chosen == rejected))),
        "margin": float(np.mean(chosen - rejected)),
        "reward_chosen": float(np.mean(chosen)),
        "reward_rejected": float(np.mean(rejected)),
    }


def policy_and_reference(
    config: ModelConfig, reference: str | None, vocabulary: int, only: bool = False
) -> PolicyAndReference:
    """Return the model to train, with its reference.

    Args:
        config: the model that is trained.
        reference: a model folder or hub id; None is the model as it is before training.
        vocabulary: the number of tokens that the tokenizer knows.
        only: the model was trained before and is only evaluated: the reference is then what it was trained against.

    Raises:
        UserError: a model can't be loaded, or it is not known which one a saved policy was trained against.
    """
    policy = causal_model(config, vocabulary, only)
    bare = replace(config, lora=LoraConfig(bits=config.lora.bits), checkpoint_activations=False)
    record = read_record(config.name) if only else None
    if reference is not None:
        asked = replace(bare, name=reference, revision=None)
        try:
            return PolicyAndReference(policy, causal_model(asked, vocabulary, only=True))
        except UserError as error:
            raise UserError(*(text.replace("model.name", "dpo.reference") for text in error.problems)) from None
    if only and record is None and not has_adapters(policy):
        raise UserError(
            f"{config.name} does not say which model it was trained against (it has no {RECORD}), so there are no "
            "rewards; name that model with --dpo.reference"
        )
    if record is not None and not (record["switched_off"] and has_adapters(policy)):
        return PolicyAndReference(policy, recorded_reference(bare, record, vocabulary))
    if not only and has_adapters(policy) and config.lora.rank is None:
        # Adapters that are trained further: switched off they would leave what was there before them.
        return PolicyAndReference(policy, copy.deepcopy(policy))
    return PolicyAndReference(policy)


def check_reference(config: ModelConfig, reference: str | None, tokens: Any) -> None:
    """Refuse a reference with another vocabulary than the policy's tokenizer: its probabilities are of other tokens.

    One without a tokenizer is taken as it is.
    """
    if reference is None:
        return
    try:
        own = tokenizer(replace(config, name=reference, revision=None), (), "")
    except UserError:
        return
    if own.get_vocab() != tokens.get_vocab():
        raise UserError(
            f"dpo.reference is {reference!r}, whose tokenizer has another vocabulary than that of "
            f"{config.name or 'the embedded model'}, so the two can't be held against each other; give a model of the "
            "same family"
        )


def read_record(folder: str | None) -> dict[str, Any] | None:
    """Return what is recorded of a saved policy's reference, or None if nothing is."""
    try:
        record: dict[str, Any] = json.loads((Path(str(folder)) / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return record


def recorded_reference(config: ModelConfig, record: Mapping[str, Any], vocabulary: int) -> torch.nn.Module:
    """Return the model that `config`, a saved one, was trained against.

    Raises:
        UserError: it can't be loaded, or has other weights than it had.
    """
    chosen = replace(config, name=record["name"], revision=record["revision"])
    with torch.random.fork_rng():
        # New weights were drawn first of all from this number.
        torch.manual_seed(seed_for(record["seed"], "new weights"))
        found = causal_model(chosen, vocabulary, only=True)
    digest = digest_of_frozen(found.requires_grad_(False))
    if record["dtype"] == config.dtype and record["digest"] not in (None, digest):
        what = chosen.name or "the embedded model"
        raise UserError(
            f"{config.name} was trained against {what} with other weights than {what} has here (their digest was "
            f"{record['digest']} and is {digest}); give the previous ones with --dpo.reference, or the previous "
            "version of torch"
        )
    return found


def reference_record(
    config: ModelConfig, reference: str | None, seed: int, model: PolicyAndReference
) -> dict[str, Any]:
    """Return what `recorded_reference` needs to know."""
    name = reference or config.name
    place = Path(name).absolute() if name is not None and Path(name).is_dir() else name
    return {
        "name": None if place is None else str(place),
        "revision": None if reference else config.revision,
        "seed": seed,
        "dtype": config.dtype,
        "switched_off": model.reference is None,
        # Rounded weights lie in memory in another way once they were used.
        "digest": None if model.reference is None or config.lora.bits else digest_of_frozen(model.reference),
    }


def export_policy(
    tokens: Any, config: ModelConfig, reference: str | None, seed: int
) -> Callable[[Any, Path, Mapping[str, Any]], None]:
    """Return a task's `export` that saves the policy alone, with its tokenizer, and records its reference."""
    usage = CHAT_USE if tokens.chat_template else None
    export = pretrained_folder(tokens, None, "Preferences (DPO)", "text-generation", usage)

    def write(module: PolicyAndReference, folder: Path, results: Mapping[str, Any]) -> None:
        export(module.policy, folder, results)
        record = reference_record(config, reference, seed, module)
        (folder / RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")

    return write
