"""Replies to conversations, or to single prompts; of a model without a chat template, how it continues texts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from toolkit.config.model import ModelConfig
from toolkit.data.collate import pad
from toolkit.data.columns import TEXT_NAMES, plain_name
from toolkit.errors import UserError
from toolkit.models.tokenizer import tokenizer
from toolkit.predictor import EMPTY, Encoded, Predictor, Request, Row, text_of
from toolkit.task import Batch
from toolkit.tasks.conversations.messages import Conversation, Unusable, is_blank, message, messages_of
from toolkit.tasks.conversations.models import causal_model, token_limit
from toolkit.tasks.conversations.template import ChatTemplate
from toolkit.tasks.sft.replies import generated_replies
from toolkit.tasks.sft.rows import CONTEXT_NAMES, MESSAGES_NAMES, PROMPT_NAMES, SYSTEM_NAMES, earlier

USUAL_TOKENS = 256
"""Of the longest reply, where neither the user nor the training says it."""


@dataclass(frozen=True)
class Asked:
    """Where in a row stands what the model is asked."""

    messages: str | None = None
    prompt: str | None = None
    context: str | None = None
    system: str | None = None
    history: str | None = None

    def conversation(self, row: Row) -> Conversation | None:
        """Return the messages up to the reply that is asked for, None where there are none.

        A reply at the end, as training data has it, is left out.

        Raises:
            Unusable: they are none that a model can be asked.
        """
        if self.messages is not None:
            found = messages_of(row.get(self.messages)) if row.get(self.messages) else []
        else:
            asked = row.get(str(self.prompt))
            text = None if isinstance(asked, list) else text_of(asked)
            if text is None and not asked:
                return None
            if self.context is not None and not is_blank(row.get(self.context)):
                text = f"{text}\n\n{row[self.context]}"
            found = messages_of(asked) if text is None else [message("user", text)]
            found = earlier(row.get(self.history) if self.history else None) + found
        if found and found[-1]["role"] == "assistant":
            found = found[:-1]
        if not found:
            return None
        if self.system is not None and not is_blank(row.get(self.system)):
            found = [message("system", row[self.system]), *found]
        return found


def predictor(config: ModelConfig, request: Request) -> Predictor:
    """Return what replies to the rows of a file.

    Raises:
        UserError: the model can't be loaded, or it can't be told which column holds what it is asked.
    """
    tokens = tokenizer(config, (), "")
    limit = token_limit(config, tokens)
    model: Any = causal_model(config, len(tokens), only=True)
    template = ChatTemplate(str(tokens.get_chat_template()), tokens, "all") if tokens.chat_template else None
    asked = asked_columns(request) if template else Asked(prompt=request.column("text", (*TEXT_NAMES, ("prompt",))))
    known = model.generation_config.eos_token_id
    stops = known if isinstance(known, list) else [known if known is not None else tokens.eos_token_id]
    if stops == [None]:
        raise UserError(
            f"{config.name} names no token that ends a text (eos_token_id), so that it would write for ever"
        )
    room = request.tokens or request.setting("generate", "tokens", 0) or USUAL_TOKENS
    columns = ", ".join(
        repr(name) for name in (asked.messages, asked.system, asked.history, asked.prompt, asked.context) if name
    )
    return Predictor(
        model.eval(),
        {"prediction": "text"},
        ("messages", "prompt", "context", "system", "history") if template else ("text",),
        partial(encode, tokens, template, asked, None if limit is None else limit - 1),
        lambda samples: pad(samples, {"input_ids": 0}),
        partial(replies, tokens, stops, room, limit),
        decode,
        {"asked": columns, "reply": f"at most {room} tokens"},
    )


def asked_columns(request: Request) -> Asked:
    """Return the columns that hold what the model is asked.

    Raises:
        UserError: it can't be told which.
    """

    def usual(tiers: Sequence[Sequence[str]]) -> str | None:
        names = {plain_name(name): name for name in request.columns}
        return next((names[name] for tier in tiers for name in tier if name in names), None)

    system = request.optional_column("system") or usual(SYSTEM_NAMES)
    messages = request.optional_column("messages")
    prompt = request.optional_column("prompt")
    if messages is None and prompt is None:
        messages = usual(MESSAGES_NAMES)
    if messages is not None:
        return Asked(messages=messages, system=system)
    prompt = prompt or request.column("prompt", (*PROMPT_NAMES, ("text",)))
    beside = usual(CONTEXT_NAMES) if plain_name(prompt) in PROMPT_NAMES[1] else None
    context = request.optional_column("context") or beside
    return Asked(prompt=prompt, context=context, system=system, history=request.optional_column("history"))


def encode(tokens: Any, template: ChatTemplate | None, asked: Asked, limit: int | None, rows: Sequence[Row]) -> Encoded:
    """Return the token ids of what the model is asked; what is longer than `limit` can't be."""
    from jinja2.exceptions import TemplateError

    samples, owners, remarks = [], [], {}  # type: ignore[var-annotated]

    def note(what: str, place: int) -> None:
        remarks.setdefault(f"{what}: {EMPTY}", []).append(place)

    for place, row in enumerate(rows):
        try:
            conversation = asked.conversation(row)
            if conversation is None:
                note("without a text", place)
                continue
            text = template.text(conversation, prompt=True) if template else conversation[-1]["content"]
        except Unusable as reason:
            note(str(reason), place)
            continue
        except (TemplateError, TypeError, ValueError, KeyError):
            note("that the chat template does not take", place)
            continue
        ids = tokens(text, add_special_tokens=template is None, verbose=False)["input_ids"]
        if not ids or (limit is not None and len(ids) > limit):
            note(f"longer than {limit} tokens" if ids else "without a single token", place)
            continue
        samples.append({"input_ids": list(ids)})
        owners.append(place)
    return Encoded(samples, owners, [len(sample["input_ids"]) for sample in samples], remarks)


def replies(
    tokens: Any, stops: Sequence[int], room: int, limit: int | None, model: torch.nn.Module, batch: Batch
) -> list[str]:
    """Return the reply to each sample; how long one may be follows from its own prompt, whatever else is in the
    batch."""
    groups: dict[int, dict[int, int]] = {}
    for row, length in enumerate(batch["attention_mask"].sum(1).tolist()):
        groups.setdefault(room if limit is None else min(room, limit - length), {})[row] = length
    found: dict[int, str] = {}
    for most, prompts in groups.items():
        found |= generated_replies(model, batch["input_ids"], prompts, most, tokens, stops)
    return [found[row] for row in range(len(batch["input_ids"]))]


def decode(rows: Sequence[Row], encoded: Encoded, found: Sequence[str]) -> Mapping[int, Mapping[str, Any]]:
    """Return the reply to each row."""
    return {place: {"prediction": reply} for place, reply in zip(encoded.owners, found, strict=True)}
