"""Which of two answers a model prefers, and by how much."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch

from toolkit.attention import padding_known
from toolkit.config.model import ModelConfig
from toolkit.data.columns import plain_name
from toolkit.errors import UserError
from toolkit.models.lora import has_adapters
from toolkit.models.tokenizer import tokenizer
from toolkit.predictor import EMPTY, Encoded, Predictor, Request, Row, rounded
from toolkit.task import Batch
from toolkit.tasks.conversations.messages import Unusable
from toolkit.tasks.conversations.models import causal_model, token_limit
from toolkit.tasks.conversations.template import ChatTemplate
from toolkit.tasks.dpo.data import CHOSEN_NAMES, CONVERSATION_NAMES, PROMPT_NAMES, REJECTED_NAMES
from toolkit.tasks.dpo.models import completion_log_probabilities, policy_and_reference, read_record
from toolkit.tasks.dpo.rows import EQUAL, NO_CHOSEN, NO_PROMPT, NO_REJECTED, pair_of_messages, pair_of_texts
from toolkit.tasks.dpo.tokens import PairIds, encode, pad_pairs, rendered, truncated

SHORT = {
    NO_PROMPT: "without a prompt",
    NO_CHOSEN: "without a chosen side",
    NO_REJECTED: "without a rejected side",
    EQUAL: "whose two sides are equal",
}
"""What is said of rows that are no pair; the reasons of the training come with advice for that."""
USUAL_BETA = 0.1
BETWEEN = "the difference of the two log-probabilities"


def has_pairs(request: Request) -> bool:
    """Return whether a file has two answers to compare, and no reply is asked for."""
    if request.tokens is not None:
        return False
    plain = {plain_name(name) for name in request.columns}
    return all(part in request.given or part in plain for part in ("chosen", "rejected"))


def predictor(config: ModelConfig, request: Request) -> Predictor:
    """Return what compares the two answers in each row of a file.

    Raises:
        UserError: the model can't be loaded, or it can't be told which columns hold the answers.
    """
    columns = {
        "chosen": request.column("chosen", CHOSEN_NAMES),
        "rejected": request.column("rejected", REJECTED_NAMES),
    }
    plain = {plain_name(name): name for name in request.columns if name not in columns.values()}
    usual = (plain[name] for tier in (*PROMPT_NAMES, CONVERSATION_NAMES) for name in tier if name in plain)
    if prompt := request.optional_column("prompt") or next(usual, None):
        columns["prompt"] = prompt
    tokens = tokenizer(config, (), "")
    template = ChatTemplate(str(tokens.get_chat_template()), tokens, "last") if tokens.chat_template else None
    limit = request.setting("data", "max_length", None) or token_limit(config, tokens)
    beta = float(request.setting("dpo", "beta", USUAL_BETA))
    model, told = with_reference(config, len(tokens), beta)
    return Predictor(
        model.eval(),
        {
            "prediction": "text",
            "margin": "number",
            "log_probability_chosen": "number",
            "log_probability_rejected": "number",
        },
        ("prompt", "chosen", "rejected"),
        partial(pairs_in, tokens, template, columns, limit),
        pad_pairs(tokens),
        partial(margins, beta),
        decode,
        {"pairs": ", ".join(f"{part} {name!r}" for part, name in columns.items()), "margin": told},
    )


def with_reference(config: ModelConfig, vocabulary: int, beta: float) -> tuple[torch.nn.Module, str]:
    """Return the policy with the reference that it was trained against, or alone, and what a margin of it is.

    Raises:
        UserError: the policy can't be loaded.
    """
    rewards = f"the difference of the rewards, {beta:g} times what the log-probability has grown by since the reference"
    record = read_record(config.name)
    if record is None:
        policy = causal_model(config, vocabulary, only=True)
        if not has_adapters(policy):
            return policy, f"{BETWEEN} (the model names no reference)"
        return policy_and_reference(config, None, vocabulary, only=True), rewards
    try:
        return policy_and_reference(config, None, vocabulary, only=True), rewards
    except UserError as error:
        reason = error.problems[0].partition(";")[0]
        return causal_model(config, vocabulary, only=True), f"{BETWEEN} (without its reference: {reason})"


def pairs_in(
    tokens: Any, template: ChatTemplate | None, columns: Mapping[str, str], limit: int | None, rows: Sequence[Row]
) -> Encoded:
    """Return the pairs of some rows as token ids."""
    samples: list[PairIds] = []
    owners: list[int] = []
    remarks: dict[str, list[int]] = {}
    for place, row in enumerate(rows):
        cells = {part: row.get(name) for part, name in columns.items()}
        prompt = (cells["prompt"],) if "prompt" in cells else ()
        of_messages = any(isinstance(cell, list | dict) for cell in cells.values())
        made = (pair_of_messages if of_messages else pair_of_texts)(cells["chosen"], cells["rejected"], *prompt)
        try:
            if isinstance(made, str):
                raise Unusable(SHORT.get(made, made.partition(";")[0]))
            if of_messages:
                if template is None:
                    raise Unusable("of messages, for which the model has no chat template")
                made = rendered(made, template)
        except Unusable as reason:
            remarks.setdefault(f"{reason}: {EMPTY}", []).append(place)
            continue
        ids = encode([made], tokens, is_rendered=of_messages)[0]
        if limit is not None and ids.length > limit:
            remarks.setdefault(f"longer than {limit} tokens: truncated as in training", []).append(place)
            ids = truncated(ids, limit, tokens.bos_token_id)
        samples.append(ids)
        owners.append(place)
    return Encoded(samples, owners, [ids.length for ids in samples], remarks)


def margins(beta: float, model: torch.nn.Module, batch: Batch) -> list[list[float]]:
    """Return for each pair the margin of its chosen side, and the log-probabilities of both sides under the policy."""
    names = ("input_ids", "attention_mask", "carrying", "targets")
    with padding_known(batch, on_the_right=True):
        if hasattr(model, "policy"):
            policy, reference = model(*(batch[name] for name in names))
            rewards = beta * (policy - reference)
        else:
            policy = rewards = completion_log_probabilities(model, dict(batch))
    chosen = len(policy) // 2
    made = torch.stack([rewards[:chosen] - rewards[chosen:], policy[:chosen], policy[chosen:]], 1)
    found: list[list[float]] = made.cpu().tolist()
    return found


def decode(rows: Sequence[Row], encoded: Encoded, found: Sequence[list[float]]) -> Mapping[int, Mapping[str, Any]]:
    """Return which side of each row the model prefers; a margin of 0 prefers neither."""
    made = {}
    for place, values in zip(encoded.owners, found, strict=True):
        margin, chosen, rejected = map(rounded, values)
        made[place] = {
            "prediction": "chosen" if margin > 0 else "rejected" if margin < 0 else "neither",
            "margin": margin,
            "log_probability_chosen": chosen,
            "log_probability_rejected": rejected,
        }
    return made
