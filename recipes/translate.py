"""Translate texts from one language, or way of writing, into another.

    accelerate launch recipes/translate.py
        the embedded corpus (dates as people write them, in twelve formats, into ISO 8601), about a minute on two
        cores: about 0.95 of the dates exactly right, where copying the source has 0

    accelerate launch recipes/translate.py --model.name path/to/encoder-decoder --data.name hub/set \\
        --data.config de-en --data.source_language en --data.target_language de --data.max_length 128 \\
        --output runs/german
        a translation set of the hub, or your own table, and your own model

    accelerate launch --config_file accelerate_configs/cpu.yaml --num_processes 2 recipes/translate.py
        the same numbers from two processes

Settings come from the defaults below, then from --config run.yaml, then from flags.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from toolkit import BatchConfig, Config, Task, fine_tune
from toolkit.config.loss import SmoothingConfig
from toolkit.config.model import ModelConfig
from toolkit.data.config import embedded_splits
from toolkit.details import COMMON_WORDS
from toolkit.errors import require
from toolkit.losses import counted, reference_losses, summed_cross_entropy
from toolkit.models.tokenizer import SEQ2SEQ, tokenizer
from toolkit.sample_data.dates import written_dates
from toolkit.tasks.seq2seq.data import TranslationPairs
from toolkit.tasks.seq2seq.export import seq2seq_folder
from toolkit.tasks.seq2seq.generation import GenerateConfig, generated_texts
from toolkit.tasks.seq2seq.models import check_seq2seq, longest_text, seq2seq_model, target_logits
from toolkit.tasks.seq2seq.pairs import pad_pairs
from toolkit.text_metrics import bleu, exact_match, named_text_metrics

if TYPE_CHECKING:
    from toolkit.data.sources import Splits


@dataclass(frozen=True)
class Translate(Config):
    model: ModelConfig = ModelConfig()
    """Which encoder-decoder is trained."""
    generate: GenerateConfig = GenerateConfig()
    """How it writes its answers in an evaluation, and when it is used later."""
    loss: SmoothingConfig = SmoothingConfig()
    """What the loss wants of each token."""
    data: TranslationPairs = TranslationPairs()
    """Which texts it is trained on, and in which languages."""
    batch: BatchConfig = BatchConfig(size=64)
    """How many samples a step takes and how they are cut."""
    epochs: float | None = 1.8
    """Passes over the training data; give epochs or steps, not both."""


def corpus() -> "Splits":
    """Return written dates and the same dates in ISO 8601; 300 dates are held out."""
    return embedded_splits("dates from 1900 to 2099 in twelve formats, each with its ISO 8601", *written_dates())


def task(config: Translate) -> Task:
    require("sacrebleu", "translate", "BLEU")  # now, and not at the first evaluation
    check_seq2seq(config.model)
    pairs = config.data.read(corpus)
    tokens = tokenizer(config.model, pairs.training_texts(), pairs.training_digest, SEQ2SEQ)
    train, held_out = pairs.tokenize(tokens, longest_text(config.model, tokens))

    return Task(
        model=lambda runtime: seq2seq_model(
            config.model, config.generate, len(tokens), train.longest("target"), trained=config.evaluate.only
        ),
        data=pairs.task_data(train, held_out),
        collate=pad_pairs(tokens),
        units=lambda batch: counted(batch["labels"]),
        loss=lambda model, batch: summed_cross_entropy(
            target_logits(model, batch), batch["labels"], label_smoothing=config.loss.label_smoothing
        ),
        predict=lambda model, batch: generated_texts(model, batch, tokens),
        scores=lambda model, batch: reference_losses(target_logits(model, batch), batch["labels"]),
        postprocess=lambda written: pairs.postprocess(written, baseline=pairs.copies()),
        metrics=[bleu, exact_match],
        named_metrics=named_text_metrics(),
        quality=COMMON_WORDS,
        show=pairs.show,
        decode=tokens.decode,
        export=seq2seq_folder(tokens, config.data, "Translation", "translation"),
        summary={"model": config.model.name or "the embedded encoder-decoder, with new weights"},
    )


if __name__ == "__main__":
    fine_tune(Translate, task)
