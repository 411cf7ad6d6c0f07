"""Which model is trained on preferences, which one it is held against, and how a saved one finds that again."""

import copy
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from toolkit.config.model import LoraConfig, ModelConfig
from toolkit.errors import UserError
from toolkit.models.export import pretrained_folder
from toolkit.models.lora import has_adapters
from toolkit.models.parameters import digest_of_frozen
from toolkit.models.tokenizer import tokenizer
from toolkit.randomness import seed_for
from toolkit.tasks.conversations.models import causal_model
from toolkit.tasks.dpo.reference import PolicyAndReference

RECORD = "reference.json"
"""Beside a saved policy: which model it was trained against."""


def policy_and_reference(
    config: ModelConfig, reference: str | None, vocabulary: int, only: bool = False
) -> PolicyAndReference:
    """Return the model to train beside its reference.

    Args:
        config: the model that is trained.
        reference: a model folder or hub id; None is the model as it is before training.
        vocabulary: the number of tokens that the tokenizer knows.
        only: the model was trained before and is only evaluated: the reference is then what it was trained against.

    Raises:
        UserError: a model is not to be had, or nothing says what a saved one was trained against.
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
            f"{config.name} does not say which model it was trained against (it has no {RECORD}), so there are no rewards; "
            "name that model with --dpo.reference"
        )
    if record is not None and not (record["switched_off"] and has_adapters(policy)):
        return PolicyAndReference(policy, recorded_reference(bare, record, vocabulary))
    if not only and has_adapters(policy) and config.lora.rank is None:
        # Adapters that are trained further: switched off they would leave what was there before them.
        return PolicyAndReference(policy, copy.deepcopy(policy))
    return PolicyAndReference(policy)


def check_reference(config: ModelConfig, reference: str | None, tokens: Any) -> None:
    """Refuse a reference with another vocabulary than the policy's tokenizer: what it says of token ids would mean nothing.

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
            f"{config.name or 'the embedded model'}, so the two can't be held against each other; give a model of the same family"
        )


def read_record(folder: str | None) -> dict[str, Any] | None:
    """Return what a saved policy says of its reference, or None where it says nothing."""
    try:
        record: dict[str, Any] = json.loads((Path(str(folder)) / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return record


def recorded_reference(config: ModelConfig, record: Mapping[str, Any], vocabulary: int) -> torch.nn.Module:
    """Return the model that `config`, a saved one, was trained against.

    Raises:
        UserError: it is not to be had, or has other weights than it had.
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
            f"{record['digest']} and is {digest}); give the former ones with --dpo.reference, or the former version of torch"
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
    """Return a task's `export` that saves the policy alone, with its tokenizer, and a word on its reference."""
    export = pretrained_folder(tokens, None, "Preferences (DPO)", "text-generation")

    def write(module: PolicyAndReference, folder: Path, results: Mapping[str, Any]) -> None:
        export(module.policy, folder, results)
        record = reference_record(config, reference, seed, module)
        (folder / RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")

    return write
