"""Make a short text of a long one: summaries, headlines, descriptions; or any text of another.

    accelerate launch recipes/summarize.py
        the embedded corpus (functions of Python's standard library, each with a sentence of facts about it), about a
        minute on two cores: ROUGE-L about 0.94 and 0.62 exactly right, where the most frequent sentence alone has 0.69
        and 0.08

    accelerate launch recipes/summarize.py --model.name path/to/encoder-decoder --data.train news.jsonl \\
        --data.source article --data.target summary --data.max_length 1024 --output runs/news
        your own table and model

    accelerate launch --config_file accelerate_configs/cpu.yaml --num_processes 2 recipes/summarize.py
        the same numbers from two processes

Settings come from the defaults below, then from --config run.yaml, then from flags.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from toolkit import Config, Task, fine_tune
from toolkit.config.loss import SmoothingConfig
from toolkit.config.model import ModelConfig
from toolkit.data.config import embedded_splits
from toolkit.details import COMMON_WORDS
from toolkit.errors import require
from toolkit.losses import counted, reference_losses, summed_cross_entropy
from toolkit.models.tokenizer import SEQ2SEQ, tokenizer
from toolkit.sample_data.functions import described_functions, split_by_module
from toolkit.tasks.seq2seq.data import TextPairs
from toolkit.tasks.seq2seq.export import seq2seq_folder
from toolkit.tasks.seq2seq.generation import GenerateConfig, generated_texts
from toolkit.tasks.seq2seq.models import check_seq2seq, longest_text, seq2seq_model, target_logits
from toolkit.tasks.seq2seq.pairs import pad_pairs
from toolkit.text_metrics import exact_match, named_text_metrics, rouge

if TYPE_CHECKING:
    from toolkit.data.sources import Splits


@dataclass(frozen=True)
class Summarize(Config):
    model: ModelConfig = ModelConfig()
    """Which encoder-decoder is trained."""
    generate: GenerateConfig = GenerateConfig()
    """How it writes its answers in an evaluation, and when it is used later."""
    loss: SmoothingConfig = SmoothingConfig()
    """What the loss wants of each token."""
    data: TextPairs = TextPairs()
    """Which long and short texts it is trained on."""
    epochs: float | None = 0.6
    """Passes over the training data; give epochs or steps, not both."""


def corpus() -> "Splits":
    """Return functions and sentences of facts about them; those of one module in twelve are held out."""
    train, held_out = split_by_module(described_functions())
    origin = "functions of this Python's standard library, each with a sentence of facts; split by module"
    return embedded_splits(origin, train, held_out)


def task(config: Summarize) -> Task:
    require("rouge_score", "summarize", "ROUGE")  # now, and not at the first evaluation
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
        postprocess=lambda written: pairs.postprocess(written, baseline=pairs.trivial_summaries()),
        metrics=[rouge, exact_match],
        named_metrics=named_text_metrics(),
        quality=COMMON_WORDS,
        show=pairs.show,
        decode=tokens.decode,
        export=seq2seq_folder(tokens, config.data, "Summarization", "summarization"),
        summary={"model": config.model.name or "the embedded encoder-decoder, with new weights"},
    )


if __name__ == "__main__":
    fine_tune(Summarize, task)
