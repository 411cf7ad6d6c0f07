"""A small run of the recipe that teaches a model to reply: what it takes, as files and flags; and a small model for
it."""

import json
import random
from pathlib import Path
from typing import Any

COLOURS = {"sky": "blue", "grass": "green", "coal": "black", "snow": "white", "blood": "red", "sand": "yellow"}
MARKS = [
    "<pad>",
    "<s>",
    "</s>",
    "<|im_start|>",
    "<|im_end|>",
    "<|header|>",
    "<|/header|>",
    "<|eot|>",
    "<turn>",
    "</turn>",
]
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def conversations(count: int, seed: int) -> list[dict[str, Any]]:
    """Return conversations of one to three turns on the colours of things; every third begins with a system message."""
    generator = random.Random(seed)
    rows = []
    for number in range(count):
        messages = [{"role": "system", "content": "Name one colour."}] if number % 3 == 0 else []
        for thing in generator.sample(list(COLOURS), generator.randint(1, 3)):
            messages += [
                {"role": "user", "content": f"What is the colour of {thing}?"},
                {"role": "assistant", "content": f"It is {COLOURS[thing]}."},
            ]
        rows.append({"messages": messages})
    return rows


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Write json lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def arguments(folder: Path) -> list[str]:
    """Write 37 training and 11 evaluation conversations and return the flags of a run of 6 steps; seven are asked for a
    reply."""
    train = write_rows(folder / "train.jsonl", conversations(37, 0))
    held_out = write_rows(folder / "eval.jsonl", conversations(11, 1))
    flags = "--model.dtype float64 --epochs null --steps 6 --batch.size 8 --batch.eval 4 --evaluate.every 3"
    more = "--generate.tokens 6 --generate.samples 7"
    return ["--data.train", str(train), "--data.eval", str(held_out), *flags.split(), *more.split()]


def chat_tokenizer(template: str | None = CHATML, end: str = "<|im_end|>") -> Any:
    """Return a byte-level tokenizer that knows the marks of several templates, and few words."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    texts = [message["content"] for row in conversations(50, 2) for message in row["messages"]]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=320, special_tokens=MARKS, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(texts, trainer)
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token=end,
        additional_special_tokens=[mark for mark in MARKS[3:] if mark != end],
    )
    wrapped.chat_template = template
    return wrapped


def save_llama(folder: Path, template: str | None = CHATML, vocabulary: int = 320, width: int = 32) -> Path:
    """Save a Llama of two small layers with new weights, and its tokenizer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": width, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 2 * width}
    config = LlamaConfig(vocab_size=vocabulary, **sizes, max_position_embeddings=128, pad_token_id=0, eos_token_id=2)
    LlamaForCausalLM(config).double().save_pretrained(folder)
    chat_tokenizer(template).save_pretrained(folder)
    return folder
