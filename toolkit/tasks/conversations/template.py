"""Chat templates: a conversation as one text, and which parts of the text are the assistant's replies.

Templates are data: Transformers renders them in a sandbox of Jinja, and no code of a hub is run.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from toolkit.config.model import ModelConfig
from toolkit.errors import UserError
from toolkit.models.errors import first_line
from toolkit.models.tokenizer import CAUSAL, EmbeddedTokenizer
from toolkit.tasks.conversations.messages import Conversation, Unusable

TAGS = re.compile(r"\{%-?\s*generation\s*-?%\}")
"""How a template itself marks the part that the assistant generates."""

EMBEDDED_TEMPLATE = """\
{%- for message in messages -%}
<|{{ message['role'] }}|>
{%- if message['role'] == 'assistant' -%}
{%- generation -%}{{ message['content'] | trim }}{{ eos_token }}{%- endgeneration -%}
{%- else -%}
{{ message['content'] | trim }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|assistant|>{%- endif -%}
"""
CHAT: EmbeddedTokenizer = replace(
    CAUSAL,
    vocabulary=1024,
    max_length=1024,
    more_tokens=("<|system|>", "<|user|>", "<|assistant|>"),
    chat_template=EMBEDDED_TEMPLATE,
)
"""The tokenizer of the embedded chat model. With a vocabulary of 4,096 its head took more than half of the time."""

Span = tuple[int, int]


@dataclass(frozen=True)
class Rendered:
    """A conversation as one text."""

    text: str
    replies: list[Span]
    """The replies that carry loss, in characters: the first of each, and one after its last."""


@dataclass(frozen=True)
class ChatTemplate:
    """How a tokenizer's conversations become texts."""

    source: str
    tokenizer: Any
    loss_on: str
    """all, or last: which replies carry loss."""

    @property
    def tagged(self) -> bool:
        """Whether the template marks what the assistant generates."""
        return TAGS.search(self.source) is not None

    def render(self, conversation: Conversation) -> Rendered:
        """Return the text of a conversation, and its replies.

        Where the template has no generation tags, a reply begins where the text ends that the model is prompted with at
        this turn. It ends where the text ends whose last message it is.

        Raises:
            Unusable: the template refuses the conversation, or writes earlier turns in another way once later ones
                follow.
        """
        from jinja2.exceptions import TemplateError

        try:
            found = self.by_tags(conversation) if self.tagged else self.by_prompts(conversation)
        except (TemplateError, TypeError, ValueError, KeyError) as error:
            raise Unusable(f"that the chat template does not take ({first_line(error)})") from None
        if not found.replies:
            raise Unusable("in which the chat template marks no reply of the assistant")
        return found if self.loss_on == "all" else Rendered(found.text, found.replies[-1:])

    def by_tags(self, conversation: Conversation) -> Rendered:
        """Find the replies by the template's own generation tags."""
        from transformers.utils.chat_template_utils import render_jinja_template

        texts, spans = render_jinja_template(
            [conversation],
            chat_template=self.source,
            return_assistant_tokens_mask=True,
            **self.tokenizer.special_tokens_map,
        )
        return Rendered(texts[0], [(start, end) for start, end in spans[0] if end > start])

    def by_prompts(self, conversation: Conversation) -> Rendered:
        """Find the replies by rendering the conversation up to each of them."""
        whole = self.text(conversation)
        turns = [place for place, message in enumerate(conversation) if message["role"] == "assistant"]
        replies = []
        for place in turns if self.loss_on == "all" else turns[-1:]:
            prompt = self.text(conversation[:place], prompt=True)
            replied = self.text(conversation[: place + 1])
            if not replied.startswith(prompt):
                raise Unusable(
                    f"where message {place + 1} can't be told from its prompt: the chat template without generation "
                    "tags shows the conversation before it in another way once the reply follows; mark replies in the "
                    "template with {% generation %} and {% endgeneration %} (data.chat_template FILE)"
                )
            if not whole.startswith(replied):
                raise Unusable(
                    f"where message {place + 1} is shown in another way once later turns follow, so what the model "
                    "would learn is not what it is asked for; train on the last reply alone (--data.loss_on last), or "
                    "give a template that does not do that (data.chat_template FILE)"
                )
            replies.append((len(prompt), len(replied)))
        return Rendered(whole, replies)

    def text(self, conversation: Conversation, prompt: bool = False) -> str:
        """Return the text of some messages; `prompt` adds what asks the model for a reply."""
        rendered: str = self.tokenizer.apply_chat_template(
            conversation, chat_template=self.source, tokenize=False, add_generation_prompt=prompt
        )
        return rendered


def template_problems(given: str | None) -> Iterator[str]:
    """Yield what is wrong with `data.chat_template`, a sentence."""
    if given is not None and not Path(given).is_file():
        yield f"data.chat_template is {given!r}, but there is no such file; give one with a template in Jinja"


def chat_template(tokenizer: Any, model: ModelConfig, given: str | None, loss_on: str) -> ChatTemplate:
    """Return the template of a tokenizer, or that in the file `given`, which becomes the tokenizer's own.

    Raises:
        UserError: the tokenizer has none and none is given, it is no valid template, or the tokenizer can't say which
            characters a token stands for.
    """
    from jinja2.exceptions import TemplateError, TemplateSyntaxError

    where = f"data.chat_template {given}" if given else f"the chat template of {model.name or 'the embedded model'}"
    if given is not None:
        try:
            tokenizer.chat_template = Path(given).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{where} can't be read ({first_line(error)}); give a text file in UTF-8") from None
    if not tokenizer.chat_template:
        raise UserError(
            f"the tokenizer of {model.name} has no chat template, so nothing says how a conversation becomes a text; "
            "give a file with one (--data.chat_template chat.jinja), such as that of the model's own instruct version"
        )
    try:
        source = str(tokenizer.get_chat_template())
        ChatTemplate(source, tokenizer, loss_on).text([{"role": "user", "content": "Hello"}])
    except (TemplateSyntaxError, ValueError) as error:
        raise UserError(f"{where} is no template that can be used ({first_line(error)})") from None
    except (TemplateError, TypeError, KeyError):
        pass  # it may want more than this; the conversations that it refuses are reported with their rows
    if not tokenizer.is_fast:
        raise UserError(
            f"the tokenizer of {model.name} ({type(tokenizer).__name__}) can't say which characters a token stands "
            "for, so the replies can't be found in its tokens; give one with a tokenizer.json"
        )
    return ChatTemplate(source, tokenizer, loss_on)
