"""Teach a causal language model to reply: conversations, prompts with completions, instructions, questions, answers.

    accelerate launch recipes/chat.py
        the embedded conversations ("describe this function", and a sentence of facts about it), a minute on two cores:
        about 0.7 of the sentences right to the letter, where the most frequent one alone is right for 0.04

    accelerate launch recipes/chat.py --data.train chats.jsonl --model.name path/or/hub-id --model.lora.rank 16
        your own conversations and model, with adapters (LoRA); without --model.lora.rank all weights are trained

    accelerate launch --config_file accelerate_configs/cpu.yaml --num_processes 2 recipes/chat.py
        the same numbers from two processes

Only what the assistant says carries loss. Settings come from the defaults below, then from --config run.yaml, then from
flags.
"""

from dataclasses import dataclass

from toolkit import Batch, Config, Rates, Task, fine_tune
from toolkit.config.model import ModelConfig
from toolkit.details import COMMON_WORDS
from toolkit.losses import counted, mean_losses
from toolkit.models.export import pretrained_folder
from toolkit.models.tokenizer import tokenizer
from toolkit.models.usage import CHAT as CHAT_USE
from toolkit.tasks.conversations.models import chat_model, token_limit
from toolkit.tasks.conversations.template import CHAT
from toolkit.tasks.sft.data import Conversations
from toolkit.tasks.sft.replies import GenerateConfig, Replies, perplexity, unigram_scores
from toolkit.tasks.sft.tokens import next_labels, pad_conversations
from toolkit.vocabulary_loss import causal_scores, laid_out

import torch


@dataclass(frozen=True)
class Chat(Config):
    rates = Rates(new=2e-3, pretrained=2e-5)

    model: ModelConfig = ModelConfig()
    """Which causal model is trained."""
    data: Conversations = Conversations()
    """Which conversations it is trained on."""
    generate: GenerateConfig = GenerateConfig()
    """How replies are asked for in evaluations."""
    epochs: float | None = 0.8
    """Passes over the training data; give epochs or steps, not both."""


def loss(model: torch.nn.Module, batch: Batch) -> torch.Tensor:
    """Return the cross-entropy of all tokens that carry loss, each predicted from those before it."""
    return causal_scores(model, batch).losses.sum()


def scores(model: torch.nn.Module, batch: Batch) -> list[dict[str, float]]:
    """Return the mean loss of each sample's replies in the data."""
    return mean_losses(laid_out(causal_scores(model, batch).losses, batch), next_labels(batch["labels"]))


def task(config: Chat) -> Task:
    chats = config.data.read()
    tokens = tokenizer(config.model, chats.train.texts(), chats.train.digest, CHAT)
    limit = token_limit(config.model, tokens)
    tokenized = chats.tokenize(tokens, config.model, limit)
    replies = Replies(config.generate, tokenized, tokens, limit)
    asked = bool(replies.asked)
    return Task(
        model=lambda runtime: chat_model(config.model, len(tokens), replies.stops, config.evaluate.only),
        data=replies.data,
        collate=pad_conversations,
        units=lambda batch: counted(batch["labels"][:, 1:]),
        loss=loss,
        predict=replies.predict if asked else None,
        scores=scores if asked else None,
        postprocess=replies.postprocess if asked else None,
        metrics=replies.metrics,
        named_metrics=replies.named_metrics,
        from_loss=perplexity,
        baseline_scores=lambda: unigram_scores(tokenized, len(tokens)),
        quality=COMMON_WORDS if asked else None,
        show=replies.show if asked else None,
        decode=tokens.decode,
        export=pretrained_folder(tokens, None, "Chat", "text-generation", CHAT_USE),
        summary={"model": config.model.name or "the embedded causal model, with new weights"},
    )


if __name__ == "__main__":
    fine_tune(Chat, task)
