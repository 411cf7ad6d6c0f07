"""Teach a model which of two answers is the better one: direct preference optimisation (DPO, arXiv 2305.18290).

    accelerate launch recipes/prefer.py
        the embedded corpus (a sentence of documentation against the same words shuffled), a minute on two cores: of the
        pairs of held-out files it ranks about 90 in a hundred right, where its reference (new weights) ranks 50

    accelerate launch recipes/prefer.py --data.train pairs.jsonl --model.name path/or/hub-id --output runs/pairs
        your own prompts with chosen and rejected answers, and a model that was trained to answer; with
        --model.lora.rank 16 only adapters are trained, and no second model is held in memory

    accelerate launch --config_file accelerate_configs/cpu.yaml --num_processes 2 recipes/prefer.py
        the same numbers from two processes

Settings come from the defaults below, then from --config run.yaml, then from flags.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from toolkit import Batch, Config, Rates, Task, fine_tune
from toolkit.attention import padding_known
from toolkit.config.model import ModelConfig
from toolkit.details import MARGIN
from toolkit.losses import NOT_COUNTED
from toolkit.models.tokenizer import tokenizer
from toolkit.tasks.conversations.models import token_limit
from toolkit.tasks.dpo.data import PreferenceData
from toolkit.tasks.dpo.models import SCORES, check_reference, export_policy, policy_and_reference, preference_scores
from toolkit.tasks.dpo.tokens import pad_pairs

import torch
import torch.nn.functional as F


@dataclass(frozen=True)
class DpoConfig:
    beta: float = 0.1
    """How dear it is to leave the reference: rewards are beta times what the log-probability has grown by."""
    label_smoothing: float = 0.0
    """How often the data is thought to have the two sides the wrong way round, below a half."""
    likelihood: float = 0.0
    """The weight of the chosen side's negative log-likelihood per token, added to the loss of its pair; 0 adds none."""
    reference: str | None = None
    """Another reference, a model folder or a hub id; null is the model as it was before training."""

    def problems(self) -> Iterator[str]:
        """Yield what is wrong with the values, a sentence each."""
        if not self.beta > 0:
            yield f"dpo.beta is {self.beta}; it must be greater than 0"
        if not 0 <= self.label_smoothing < 0.5:
            yield f"dpo.label_smoothing is {self.label_smoothing}; it must be at least 0 and below 0.5"
        if self.likelihood < 0:
            yield f"dpo.likelihood is {self.likelihood}; it must be 0 or greater"


@dataclass(frozen=True)
class Prefer(Config):
    rates = Rates(pretrained=1e-6, adapters=1e-5)

    model: ModelConfig = ModelConfig()
    """Which causal model is trained."""
    data: PreferenceData = PreferenceData()
    """Which pairs it is trained on."""
    dpo: DpoConfig = DpoConfig()
    """What the loss is."""
    epochs: float | None = 1
    """Passes over the training data; give epochs or steps, not both."""


def rewards(model: torch.nn.Module, batch: Batch, beta: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the rewards of both sides, shape (pairs, 2), and the log-likelihood of the chosen ones per token."""
    with padding_known(batch, on_the_right=True):
        policy, reference = model(batch["input_ids"], batch["attention_mask"], batch["carrying"], batch["targets"])
    chosen = len(policy) // 2
    tokens = (batch["labels"][:chosen] != NOT_COUNTED).sum(1)
    return (beta * (policy - reference)).view(2, chosen).T, policy[:chosen] / tokens


def dpo_loss(rewards: torch.Tensor, likelihood: torch.Tensor, config: DpoConfig) -> torch.Tensor:
    """Return the loss summed over the pairs: -log sigmoid of the margin (formula 7 of the paper), smoothed."""
    margin = rewards[:, 0] - rewards[:, 1]
    smooth = config.label_smoothing
    loss = -(1 - smooth) * F.logsigmoid(margin).sum() - smooth * F.logsigmoid(-margin).sum()
    return loss - config.likelihood * likelihood.sum() if config.likelihood else loss


def task(config: Prefer) -> Task:
    dpo, pairs = config.dpo, config.data.read()
    tokens = tokenizer(config.model, pairs.train.texts(), pairs.train.digest, pairs.embedded_tokenizer)
    check_reference(config.model, dpo.reference, tokens)
    data = pairs.tokenize(tokens, config.model, token_limit(config.model, tokens))

    def show(sample: int, prediction: Any, reference: Any) -> dict[str, Any]:
        chosen, rejected = map(float, prediction)
        return {**data.evaluate.show(sample, tokens.decode), "reward_chosen": chosen, "reward_rejected": rejected}

    return Task(
        model=lambda context: policy_and_reference(config.model, dpo.reference, len(tokens), config.evaluate.only),
        data=data,
        collate=pad_pairs(tokens),
        units=lambda batch: len(batch["input_ids"]) // 2,
        loss=lambda model, batch: dpo_loss(*rewards(model, batch, dpo.beta), dpo),
        predict=lambda model, batch: rewards(model, batch, dpo.beta)[0],
        references=lambda batch: torch.zeros(len(batch["input_ids"]) // 2, dtype=torch.int64),
        metrics=[preference_scores],
        named_metrics=dict.fromkeys(SCORES, preference_scores),
        baseline=[0.0, 0.0],  # the reference itself: no rewards, no margin
        baseline_scores=None if dpo.likelihood else lambda: {"loss": math.log(2)},
        quality=MARGIN,
        show=show,
        decode=tokens.decode,
        export=export_policy(tokens, config.model, dpo.reference, config.seed),
        summary={"model": config.model.name or "the embedded Llama, with new weights"},
    )


if __name__ == "__main__":
    fine_tune(Prefer, task)
