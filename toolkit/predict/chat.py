"""`toolkit chat`: talk to a trained model in the terminal; replies appear word by word."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import torch

from toolkit.config.model import Dtype
from toolkit.errors import UserError
from toolkit.models.tokenizer import tokenizer
from toolkit.predict.models import find_model
from toolkit.tasks.conversations.messages import Conversation
from toolkit.tasks.conversations.models import causal_model, token_limit
from toolkit.tasks.conversations.template import ChatTemplate

HELP = "an empty line or Ctrl-D ends, /new begins anew, Ctrl-C cuts a reply short"
USUAL_TOKENS = 512


@dataclass(frozen=True)
class Talk:
    """What the user asks for."""

    model: str
    system: str | None = None
    tokens: int | None = None
    """The longest reply, in tokens."""
    temperature: float = 0.0
    """How much chance there is in a reply; 0 takes the likeliest token each time."""
    seed: int = 0
    dtype: Dtype = "float32"


class Talker:
    """A model that replies to a conversation."""

    def __init__(self, talk: Talk) -> None:
        """Load the model.

        Raises:
            UserError: it can't be loaded, or has no chat template.
        """
        trained = find_model(Path(talk.model), talk.dtype)
        self.tokens = tokenizer(trained.config, (), "")
        if not self.tokens.chat_template:
            raise UserError(
                f"{trained.told} has no chat template, so that it can't be talked to; toolkit predict shows how it "
                "goes on with texts"
            )
        self.limit = token_limit(trained.config, self.tokens)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        self.model: Any = causal_model(trained.config, len(self.tokens), only=True).to(device).eval()
        self.template = ChatTemplate(str(self.tokens.get_chat_template()), self.tokens, "all")
        self.talk = talk
        torch.manual_seed(talk.seed)

    def reply(self, conversation: Conversation, output: TextIO) -> str:
        """Write the reply to the last message as it comes, and return it."""
        from jinja2.exceptions import TemplateError
        from transformers import TextStreamer

        try:
            text = self.template.text(conversation, prompt=True)
        except (TemplateError, TypeError, ValueError, KeyError) as error:
            raise UserError(
                f"the chat template of {self.talk.model} does not take this conversation ({error})"
            ) from None
        ids = self.tokens(text, add_special_tokens=False, return_tensors="pt").to(self.model.device)["input_ids"]
        room = self.talk.tokens or USUAL_TOKENS
        if self.limit is not None:
            room = min(room, self.limit - ids.shape[1])
        if room < 1:
            raise UserError(f"the conversation is as long as the model takes ({self.limit} tokens); begin another one")
        written: list[str] = []

        class Writer(TextStreamer):  # type: ignore[misc]
            """Writes the words that are certain to stay as they are."""

            def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
                written.append(text)
                output.write(text)
                output.flush()

        chance = {"do_sample": True, "temperature": self.talk.temperature} if self.talk.temperature else {}
        certain = {"do_sample": False, "temperature": None, "top_k": None, "top_p": None}
        try:
            with torch.inference_mode():
                self.model.generate(
                    input_ids=ids,
                    attention_mask=torch.ones_like(ids),
                    max_new_tokens=room,
                    streamer=Writer(self.tokens, skip_prompt=True, skip_special_tokens=True),
                    **(chance or certain),
                )
        except KeyboardInterrupt:
            output.write(" ...")
        output.write("\n")
        return "".join(written).strip()


def chat(talk: Talk, given: TextIO | None = None, output: TextIO | None = None) -> None:
    """Talk until there is nothing more to read.

    Raises:
        UserError: the model can't be loaded, or takes no more.
    """
    given, output = given or sys.stdin, output or sys.stdout
    talker = Talker(talk)
    first: Conversation = [{"role": "system", "content": talk.system}] if talk.system else []
    output.write(f"{talk.model}: {HELP}\n")
    conversation = list(first)
    for line in said(given, output):
        if line == "/new":
            conversation = list(first)
            continue
        conversation.append({"role": "user", "content": line})
        conversation.append({"role": "assistant", "content": talker.reply(conversation, output)})


def said(given: TextIO, output: TextIO) -> Iterator[str]:
    """Yield what the user says, a line each, up to an empty one or the end."""
    while True:
        output.write("> ")
        output.flush()
        try:
            line = given.readline()
        except KeyboardInterrupt:
            line = ""
        if not line.strip():
            output.write("\n" if not line else "")
            return
        yield line.strip()
