"""How long training stands still for a checkpoint in the background, beside `accelerator.save_state` of the same state.

    python benchmarks/performance/blocked_time.py
        15 rounds, half a minute on two cores

The state is that of an encoder with 22.7 million parameters (the shape of all-MiniLM-L6-v2) under AdamW: 272 MB. Each
round begins a checkpoint and takes training steps until it is written, takes as many without one, and calls
`save_state`, so that whatever else the machine does hits all three alike. Exits with 1 if training stands still for
more than a tenth of the time.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

import numpy as np
import torch
import torch.nn.functional as F
from machine import machine, table

from toolkit import BatchConfig, Config, Task, TaskData
from toolkit.checkpoint.writer import Saver
from toolkit.distributed.start_runtime import start_runtime
from toolkit.loop import global_batches, save_checkpoint, train_step
from toolkit.output.ledger import Ledger
from toolkit.output.run_folder import RunFolder
from toolkit.prepare import prepare
from toolkit.train_state import Output

LARGEST_SHARE = 0.1


class Tokens:
    """Random tokens."""

    def __len__(self) -> int:
        return 100_000

    def fetch(self, ids: Sequence[int]) -> list[torch.Tensor]:
        """Return the samples with these ids."""
        return [torch.randint(1, 30_000, (32,), generator=torch.Generator().manual_seed(number)) for number in ids]

    def lengths(self, ids: np.ndarray) -> None:
        """All are of one length."""

    def digest(self) -> str:
        """Return what the content follows from."""
        return "tokens"


def encoder() -> torch.nn.Module:
    """Return a classifier of the shape of all-MiniLM-L6-v2, with new weights and no dropout."""
    from transformers import BertConfig, BertForSequenceClassification

    shape = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
    return BertForSequenceClassification(BertConfig(**shape, hidden_dropout_prob=0, attention_probs_dropout_prob=0))


def task() -> Task:
    """Return the task: two classes, drawn from the first token."""
    return Task(
        model=lambda runtime: encoder(),
        data=TaskData(train=Tokens()),
        collate=lambda samples: {"input_ids": torch.stack(samples), "labels": torch.stack([s[0] % 2 for s in samples])},
        units=lambda batch: len(batch["labels"]),
        loss=lambda model, batch: F.cross_entropy(
            model(input_ids=batch["input_ids"]).logits, batch["labels"], reduction="sum"
        ),
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    config = Config(batch=BatchConfig(size=8), steps=100_000, epochs=None)
    runtime = start_runtime(config)
    training = prepare(task(), config, runtime)
    batches = global_batches(training)
    blocked, plain, beneath, free = [], [], [], []
    with TemporaryDirectory() as place:
        folder = RunFolder(Path(place) / "run")
        folder.path.mkdir()
        folder.replace_record(status="running")
        ledger = Ledger(folder.ledger_file)
        saver = Saver(folder, ledger, keep=1)
        training.output = Output(ledger, writer=saver)
        done = 0

        def steps_while(condition: object, times: list[float], at_least: int = 1) -> int:
            nonlocal done
            count = 0
            while count < at_least or (callable(condition) and condition()):
                step, micro_batches = next(batches)
                started = time.perf_counter()
                train_step(training, step, micro_batches, 8)
                times.append(time.perf_counter() - started)
                done, count = step + 1, count + 1
            return count

        steps_while(None, [], at_least=3)
        for number in range(arguments.rounds + 1):
            if number == 1:
                # The first of each takes memory for the first time.
                for times in (blocked, plain, beneath, free):
                    times.clear()
            save_checkpoint(training, done)
            blocked.append(saver.take_time())
            taken = steps_while(lambda: saver.thread is not None and saver.thread.is_alive(), beneath)
            saver.wait()
            training.output.raise_failure()
            steps_while(None, free, at_least=taken)
            started = time.perf_counter()
            runtime.accelerator.save_state(str(Path(place) / f"state-{number % 2}"))
            plain.append(time.perf_counter() - started)
        size = sum(file.stat().st_size for file in next(folder.checkpoints.iterdir()).iterdir())
        ledger.close()
    share = median(blocked) / median(plain)
    print(f"# Time for which a checkpoint of {size / 1e6:.0f} MB stops the training\n\n{machine()}\n")
    rows = [
        ["training stands still, checkpoint in the background", seconds(blocked)],
        ["training stands still, `accelerator.save_state`", seconds(plain)],
        ["one training step while a checkpoint is written", seconds(beneath)],
        ["one training step otherwise", seconds(free)],
    ]
    print(table(["median (smallest to largest)", "seconds"], rows))
    print(
        f"\nTraining stands still for {share:.3f} of the time of `save_state`; beneath the writing a step takes "
        f"{median(beneath) / median(free):.2f} times as long. {arguments.rounds} rounds."
    )
    runtime.close()
    if share > LARGEST_SHARE:
        sys.exit(1)


def seconds(times: list[float]) -> str:
    """Return the median and the range."""
    return f"{median(times):.3f} ({min(times):.3f} to {max(times):.3f})"


if __name__ == "__main__":
    main()
