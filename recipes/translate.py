"""Translate texts from one language, or way of writing, into another.

    accelerate launch recipes/translate.py
        the embedded corpus (dates as people write them, in twelve formats, into ISO 8601), about a minute on two
        cores: about 0.95 of the dates exactly right, where copying the source has 0

    accelerate launch recipes/translate.py --model.name path/to/encoder-decoder --data.name hub/set --data.config de-en \\
        --data.source_language en --data.target_language de --data.max_length 128 --output runs/german
        a translation set of the hub, or your own table, and your own model

    accelerate launch --config_file accelerate_configs/cpu.yaml --num_processes 2 recipes/translate.py
        the same numbers from two processes

Settings come from the defaults below, then from --config run.yaml, then from flags.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from toolkit import BatchConfig, Task, fine_tune
from toolkit.data.config import embedded_splits
from toolkit.sample_data.dates import written_dates
from toolkit.tasks.seq2seq.data import Pairs, TranslationPairs
from toolkit.tasks.seq2seq.metrics import translation_metrics
from toolkit.tasks.seq2seq.task import Purpose, Seq2SeqConfig, seq2seq_task

if TYPE_CHECKING:
    from toolkit.data.sources import Splits


@dataclass(frozen=True)
class Translate(Seq2SeqConfig):
    data: TranslationPairs = TranslationPairs()
    """Which texts it is trained on, and in which languages."""
    batch: BatchConfig = BatchConfig(size=64)
    """How many samples a step takes and how they are cut."""
    epochs: float | None = 1.8
    """Passes over the training data; give epochs or steps, not both."""


def corpus() -> "Splits":
    """Return written dates and the same dates in ISO 8601; 300 dates are held out."""
    return embedded_splits("dates from 1900 to 2099 in twelve formats, each with its ISO 8601", *written_dates())


def copy(pairs: Pairs) -> list[str]:
    """Return the sources as they are: names and numbers are often right."""
    return pairs.copies()


def task(config: Translate) -> Task:
    purpose = Purpose("Translation", "translation", translation_metrics(), copy)
    return seq2seq_task(config, config.data, corpus, purpose)


if __name__ == "__main__":
    fine_tune(Translate, task)
