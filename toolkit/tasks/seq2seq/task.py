"""The task of every recipe from one text to another: a model with encoder and decoder learns targets, and then writes them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from toolkit.config.model import ModelConfig
from toolkit.config.schema import Config
from toolkit.losses import reference_losses
from toolkit.models.export import pretrained_folder
from toolkit.models.lora import has_adapters
from toolkit.models.tokenizer import SEQ2SEQ, tokenizer
from toolkit.task import Postprocessed, Task, TaskData
from toolkit.tasks.seq2seq.data import Pairs, TextPairs
from toolkit.tasks.seq2seq.generation import GenerateConfig, generated_texts
from toolkit.tasks.seq2seq.models import (
    check_seq2seq,
    longest_text,
    seq2seq_model,
    target_logits,
    target_loss,
    target_tokens,
)
from toolkit.tasks.seq2seq.tokens import pad_pairs, tokenize_pairs

if TYPE_CHECKING:
    from toolkit.data.sources import Splits

USE = """Use it so (Transformers 5 has no pipeline for it):

```python
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer{more}

tokenizer = AutoTokenizer.from_pretrained("<this folder>")
model = AutoModelForSeq2SeqLM.from_pretrained("<this folder>")
inputs = tokenizer([{prefix!r} + text for text in texts], padding=True, truncation={cut}, return_tensors="pt")
answers = tokenizer.batch_decode(model.generate(**inputs{settings}), skip_special_tokens=True)
```"""
# Of a folder with adapters alone Transformers takes the settings for generation of their base.
WHOLE = {"more": "", "settings": ""}
ADAPTERS = {
    "more": ", GenerationConfig",
    "settings": ', generation_config=GenerationConfig.from_pretrained("<this folder>")',
}


@dataclass(frozen=True)
class Seq2SeqConfig(Config):
    """What all recipes from one text to another have in common."""

    model: ModelConfig = ModelConfig()
    """Which encoder-decoder is trained."""
    generate: GenerateConfig = GenerateConfig()
    """How it writes its answers in an evaluation, and when it is used later."""


@dataclass(frozen=True)
class Purpose:
    """What tells one such recipe from another."""

    title: str
    """What the model card is headed with."""
    pipeline_tag: str
    """What the hub calls such models."""
    metrics: Sequence[Callable[..., Any]]
    baseline: Callable[[Pairs], list[str]]
    """Returns what a trivial model would answer, one text per evaluation pair."""


def seq2seq_task(config: Seq2SeqConfig, data: TextPairs, corpus: Callable[[], "Splits"], purpose: Purpose) -> Task:
    """Return the task.

    Args:
        config: the run.
        data: its `data` section.
        corpus: returns the embedded data.
        purpose: what the texts are for.

    Raises:
        UserError: whatever is wrong with model or data.
    """
    check_seq2seq(config.model)
    pairs = data.read(corpus)
    tokens = tokenizer(config.model, pairs.training_texts(), pairs.training_digest, SEQ2SEQ)
    train, evaluate = tokenize_pairs(pairs, data, tokens, longest_text(config.model, tokens))
    longest = int(train.target.lengths.max())

    def postprocess(written: Mapping[int, Any]) -> Postprocessed:
        baseline = purpose.baseline(pairs)
        return Postprocessed(
            list(written.values()),
            [pairs.references[number] for number in written],
            [baseline[number] for number in written],
            samples=list(written),
        )

    def show(number: int, written: str, references: list[str]) -> dict[str, Any]:
        row = {"row": int(pairs.evaluate.rows[number]) + 1}
        return {**row, "source": pairs.source(number), "prediction": written, "references": references}

    return Task(
        model=lambda runtime: seq2seq_model(
            config.model, config.generate, len(tokens), longest, trained=config.evaluate.only
        ),
        data=TaskData(
            train=train,
            evaluate=evaluate,
            files=pairs.files,
            workers=data.workers,
            summary={"model": config.model.name or "the embedded encoder-decoder, with new weights", **pairs.summary},
        ),
        collate=pad_pairs(tokens),
        units=target_tokens,
        loss=target_loss,
        predict=lambda model, batch: generated_texts(model, batch, tokens),
        scores=lambda model, batch: reference_losses(target_logits(model, batch), batch["labels"]),
        postprocess=postprocess,
        metrics=purpose.metrics,
        show=show,
        decode=tokens.decode,
        export=export(tokens, data, purpose),
    )


def export(
    tokens: Any, data: TextPairs, purpose: Purpose
) -> Callable[[torch.nn.Module, Path, Mapping[str, Any]], None]:
    """Return a task's `export`: the model's folder with its settings for generation, and a card that says how to use it."""

    def write(module: Any, folder: Path, results: Mapping[str, Any]) -> None:
        alone = has_adapters(module) and not results["config"].model.lora.merge
        usage = USE.format(prefix=data.prefix, cut=data.max_length is not None, **(ADAPTERS if alone else WHOLE))
        pretrained_folder(tokens, data.max_length, purpose.title, purpose.pipeline_tag, usage)(module, folder, results)
        if alone:
            module.generation_config.save_pretrained(folder)

    return write
