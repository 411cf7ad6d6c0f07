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

from toolkit import Task, fine_tune
from toolkit.data.config import embedded_splits
from toolkit.sample_data.functions import described_functions, split_by_module
from toolkit.tasks.seq2seq.data import Pairs, TextPairs
from toolkit.tasks.seq2seq.metrics import summary_metrics
from toolkit.tasks.seq2seq.task import Purpose, Seq2SeqConfig, seq2seq_task

if TYPE_CHECKING:
    from toolkit.data.sources import Splits


@dataclass(frozen=True)
class Summarize(Seq2SeqConfig):
    data: TextPairs = TextPairs()
    """Which long and short texts it is trained on."""
    epochs: float | None = 0.6
    """Passes over the training data; give epochs or steps, not both."""


def corpus() -> "Splits":
    """Return functions and sentences of facts about them; those of one module in twelve are held out."""
    train, held_out = split_by_module(described_functions())
    origin = "functions of this Python's standard library, each with a sentence of facts; split by module"
    return embedded_splits(origin, train, held_out)


def trivial(pairs: Pairs) -> list[str]:
    """Return the most frequent target, or where none is frequent the first words of each source."""
    return pairs.trivial_summaries()


def task(config: Summarize) -> Task:
    purpose = Purpose("Summarization", "summarization", summary_metrics(), trivial)
    return seq2seq_task(config, config.data, corpus, purpose)


if __name__ == "__main__":
    fine_tune(Summarize, task)
