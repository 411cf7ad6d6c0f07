"""What each command of `gpu.py` runs: timed steps of a new Llama, and then some in which no wait is allowed."""

import argparse
import json
import resource
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from toolkit import BatchConfig, Config, OptimConfig, Task, TaskData
from toolkit.checkpoint.sharded import whole_weights
from toolkit.distributed.counts import Counts, count_micro_batches
from toolkit.distributed.runtime import Runtime
from toolkit.distributed.start_runtime import start_runtime
from toolkit.errors import USER_CAN_FIX, UserError
from toolkit.loop import global_batches, train_step
from toolkit.losses import NOT_COUNTED, counted
from toolkit.prepare import prepare
from toolkit.tasks.sft.tokens import next_labels
from toolkit.vocabulary_loss import causal_scores, note_labels

CHECKED_STEPS = 3
# The first steps of a process fill caches.
WARM = 3


@dataclass(frozen=True)
class Size:
    """How much there is to compute."""

    hidden: int
    mlp: int
    layers: int
    vocabulary: int
    longest: int
    batch: int


SIZES = {
    "real": Size(1024, 2816, 16, 32_000, 512, 16),
    "tiny": Size(64, 128, 2, 512, 32, 4),
}


class Progressions:
    """Rows of numbers, each a fixed step from the one before: there is something to learn. Each follows from its id."""

    def __init__(self, size: Size) -> None:
        self.size = size

    def __len__(self) -> int:
        return 100_000

    def lengths(self, ids: np.ndarray) -> np.ndarray:
        """Return the lengths, between a half of the longest and it."""
        half = self.size.longest // 2
        return half + np.asarray(ids) * 7919 % (half + 1)

    def fetch(self, ids: Sequence[int]) -> list[torch.Tensor]:
        """Return the rows with these ids."""
        rows = []
        for number, length in zip(ids, self.lengths(np.array(ids)), strict=True):
            values = (number * 31 + (1 + number % 5) * torch.arange(int(length))) % (self.size.vocabulary - 1)
            rows.append(values + 1)
        return rows

    def digest(self) -> str:
        """Return what the content follows from."""
        return f"progressions {self.size}"


def collate(rows: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    labels = ids.masked_fill(ids == 0, NOT_COUNTED)
    noted = note_labels(next_labels(labels))
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": labels, **noted}


def task(size: Size) -> Task:
    """Return the task: the next number of each row."""

    def model(runtime: Runtime) -> torch.nn.Module:
        from transformers import LlamaConfig, LlamaForCausalLM

        shape = LlamaConfig(
            vocab_size=size.vocabulary,
            hidden_size=size.hidden,
            intermediate_size=size.mlp,
            num_hidden_layers=size.layers,
            num_attention_heads=size.hidden // 64 or 1,
            max_position_embeddings=size.longest,
            use_cache=False,
            attn_implementation="sdpa",
        )
        return LlamaForCausalLM(shape)

    def loss(module: Any, batch: Any) -> torch.Tensor:
        return causal_scores(module, batch).losses.sum()

    return Task(
        model=model,
        data=TaskData(train=Progressions(size)),
        collate=collate,
        units=lambda batch: counted(batch["labels"][:, 1:]),
        loss=loss,
    )


@contextmanager
def without_waiting(device: torch.device) -> Iterator[None]:
    """Make everything in which the host would wait for the GPU an error; elsewhere there is nothing to wait for."""
    if device.type != "cuda":
        yield
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def run(arguments: argparse.Namespace) -> dict[str, Any] | None:
    """Take the steps and return the figures, in the main process."""
    size = SIZES[arguments.size]
    batch = BatchConfig(size=size.batch, micro=size.batch // 2, balance=False)
    total = arguments.steps + CHECKED_STEPS
    config = Config(batch=batch, optim=OptimConfig(lr=3e-4, warmup=3), steps=total, epochs=None)
    runtime = start_runtime(config)
    training = prepare(task(size), config, runtime)
    figures: dict[str, Any] = {"device": name_of(runtime.device), "strategy": runtime.strategy.description}
    figures["parameters"] = sum(parameter.numel() for parameter in training.model.parameters())
    losses: list[float] = []
    seconds: list[float] = []
    norms: list[float] = []
    waits = None
    for step, micro_batches in global_batches(training):
        units = runtime.all_reduce_counts(count_micro_batches(micro_batches)).units
        if step < arguments.steps:
            began = time.perf_counter()
            summed, norm = train_step(training, step, micro_batches, units).read()
            seconds.append(time.perf_counter() - began)
            losses.append(runtime.all_reduce_counts(Counts(earlier_loss=summed)).earlier_loss / units)
            norms.append(norm)
            continue
        if step == arguments.steps:
            figures |= {"peak": peak_bytes(runtime.device), "losses": losses, "norms": norms}
            figures["seconds"] = sorted(seconds[WARM:])[len(seconds[WARM:]) // 2]
            weights = whole_weights(runtime.accelerator.unwrap_model(training.model), runtime)
            if arguments.weights is not None and runtime.is_main:
                torch.save(weights, arguments.weights)
        try:
            with without_waiting(runtime.device):
                train_step(training, step, micro_batches, units)
        except RuntimeError as error:
            if "synchronizing" not in str(error):
                raise
            waits = place_of(error)
            break
    figures["waits"] = waits
    is_main = runtime.is_main
    runtime.close()
    return figures if is_main else None


def name_of(device: torch.device) -> str:
    """Return the name of a device."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device.type)


def peak_bytes(device: torch.device) -> int:
    """Return the most that was allocated on the GPU at once; without one the most that this process had in memory."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def place_of(error: BaseException) -> str:
    """Return where an error came from: the innermost line of the toolkit, and the innermost of all."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "/toolkit/" in frame.filename]
    chosen = [*own[-1:], frames[-1]]
    return " <- ".join(f"{Path(frame.filename).name}:{frame.lineno} {frame.line}" for frame in reversed(chosen))


def main() -> None:
    """Run, and write the figures; a refusal is told as a recipe tells it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--size", choices=SIZES, default="real")
    parser.add_argument("--weights", type=Path, default=None, help="write the weights after the timed steps here")
    arguments = parser.parse_args()
    try:
        figures = run(arguments)
    except UserError as error:
        print("refused: " + "; ".join(error.problems), file=sys.stderr)
        sys.exit(USER_CAN_FIX)
    if figures is not None:
        arguments.output.write_text(json.dumps(figures), encoding="utf-8")


if __name__ == "__main__":
    main()
