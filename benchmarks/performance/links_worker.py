"""What each process of `links.py` runs: steps of the toolkit and of a plain Accelerate loop in turns, timed."""

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from toolkit import BatchConfig, Config, Task, TaskData
from toolkit.distributed.counts import count_micro_batches
from toolkit.distributed.runtime import Runtime
from toolkit.distributed.start_runtime import start_runtime
from toolkit.loop import global_batches, train_step
from toolkit.prepare import prepare

MICRO, FEATURES, WIDTH = 16, 512, 1024
COMPRESSED = ("bf16", "powersgd")
LEARNING_RATE = 1e-3


class Points:
    """Random points, each of which follows from its number."""

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, number: int) -> torch.Tensor:
        return torch.randn(FEATURES, generator=torch.Generator().manual_seed(number))

    def fetch(self, ids: Sequence[int]) -> list[torch.Tensor]:
        """Return the points with these numbers."""
        return [self[number] for number in ids]

    def lengths(self, ids: np.ndarray) -> None:
        """Points have no length."""

    def digest(self) -> str:
        """Return what the content follows from."""
        return "points"


def collate(points: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    inputs = torch.stack(points)
    return {"inputs": inputs, "labels": (inputs[:, 0] > 0).long()}


def network() -> torch.nn.Module:
    """Return a classifier of a few million parameters, whose gradients take longer to send than to compute."""
    layers: list[torch.nn.Module] = []
    for width in (FEATURES, WIDTH, WIDTH):
        layers += [torch.nn.Linear(width, WIDTH), torch.nn.GELU()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(WIDTH, 2))


def task() -> Task:
    """Return the task for the toolkit."""
    return Task(
        model=lambda runtime: network(),
        data=TaskData(train=Points()),
        collate=collate,
        units=lambda batch: len(batch["labels"]),
        loss=lambda model, batch: F.cross_entropy(model(batch["inputs"]), batch["labels"], reduction="sum"),
    )


def toolkit_steps(runtime: Runtime, accumulation: int, compress: Any = "none") -> Iterator[None]:
    """Take a step of the toolkit's loop each time that it is asked to, the agreement before it included."""
    size = runtime.data_parallel_size * MICRO * accumulation
    batch = BatchConfig(size=size, micro=MICRO, balance=False, compress=compress)
    config = Config(batch=batch, steps=10_000, epochs=None)
    training = prepare(task(), config, runtime)
    for step, micro_batches in global_batches(training):
        agreed = runtime.all_reduce_counts(count_micro_batches(micro_batches, 0.0, False, False))
        train_step(training, step, micro_batches, agreed.units)
        yield


def plain_steps(runtime: Runtime, accumulation: int) -> Iterator[None]:
    """Take a step each time it is asked to, as examples without `accumulate` do: each `backward` sends gradients."""
    accelerator = runtime.accelerator
    module = network()
    model, optimizer, loader = accelerator.prepare(
        module,
        torch.optim.AdamW(module.parameters(), lr=LEARNING_RATE),
        torch.utils.data.DataLoader(Points(), batch_size=MICRO, shuffle=True, collate_fn=collate),
    )
    model.train()
    for number, batch in enumerate(loader, start=1):
        # The toolkit's turn has left its own number behind, by which `backward` would divide.
        runtime.accumulate_over(1)
        loss = F.cross_entropy(model(batch["inputs"]), batch["labels"])
        accelerator.backward(loss / accumulation)
        if number % accumulation == 0:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            yield


def bytes_sent() -> int:
    """Return what all network devices of this machine but its own loop have sent."""
    lines = Path("/proc/self/net/dev").read_text(encoding="utf-8").splitlines()[2:]
    devices = {name.strip(): counts.split() for name, counts in (line.split(":") for line in lines)}
    return sum(int(counts[8]) for name, counts in devices.items() if name != "lo")


def main() -> None:
    """Run all loops in turns, and write medians from the main process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--accumulations", nargs="+", type=int, default=[1, 4, 16])
    arguments = parser.parse_args()
    runtime = start_runtime(Config(threads=1))
    loops: dict[str, Callable[[Runtime, int], Iterator[None]]] = {"toolkit": toolkit_steps, "plain": plain_steps}
    loops |= {compress: partial(toolkit_steps, compress=compress) for compress in COMPRESSED}
    running = {
        (loop, accumulation): steps(runtime, accumulation)
        for accumulation in arguments.accumulations
        for loop, steps in loops.items()
    }
    for steps in running.values():
        next(steps)
    seconds: dict[tuple[str, int], list[float]] = {key: [] for key in running}
    sent: dict[tuple[str, int], list[float]] = {key: [] for key in running}
    for _ in range(arguments.rounds):
        for key, steps in running.items():
            runtime.gather_all(None)
            before = bytes_sent()
            for _ in range(arguments.steps):
                began = time.perf_counter()
                next(steps)
                seconds[key].append(time.perf_counter() - began)
            sent[key].append((bytes_sent() - before) / arguments.steps)
    parameters = sum(p.numel() for p in network().parameters())
    results = {"parameters": parameters, "gradients": 4 * parameters, "micro": MICRO} | {
        loop: {
            str(accumulation): {
                "seconds": median(seconds[loop, accumulation]),
                "bytes": mean(sent[loop, accumulation]),
            }
            for accumulation in arguments.accumulations
        }
        for loop in loops
    }
    if runtime.is_main:
        arguments.output.write_text(json.dumps(results), encoding="utf-8")
    for steps in running.values():
        steps.close()
    running.clear()
    runtime.close()


if __name__ == "__main__":
    main()
