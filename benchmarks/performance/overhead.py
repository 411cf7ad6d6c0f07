"""What a loop costs beside the training itself: the toolkit with everything on, beside five others, on a tiny model.

    python benchmarks/performance/overhead.py
        40 rounds of 200 steps by each loop; two minutes
    python benchmarks/performance/overhead.py --profile toolkit
        where the time of one loop goes, by cProfile

The model is a perceptron of three layers, so small that a step takes a fraction of a millisecond: what is left is the
loop. All take the same data from a `DataLoader` without workers, the same batch size, the fused AdamW over two groups
(biases do not decay), a clipped gradient, a linear schedule and one thread, on the CPU:

- by hand: the loop that one writes in PyTorch;
- Fabric, and Lightning's Trainer, where `lightning` is installed (it is no dependency of this project), and
  Transformers' Trainer: without logging, checkpoints, progress bars and callbacks of theirs;
- plain Accelerate loop: `prepare`, `accumulate`, `backward`, `clip_grad_norm_`, a prepared scheduler;
- toolkit: a run as a user starts it, with run folder, ledger, fingerprint, display and requests to stop. One process
  has no other to watch over it, so there is no watchdog.

Each loop runs in a process of its own and stands still while another one runs. The model itself keeps the time, in the
same way for all: from the first forward pass of a round to that of the step after its last. A loop's overhead is what
its step takes beyond that of the loop by hand in the same round. Exits with 1 if the median of the toolkit's is above
that of the plain Accelerate loop.
"""

import argparse
import cProfile
import os
import pstats
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

import numpy as np
import torch
import torch.nn.functional as F
from machine import machine, table, version_of
from torch.utils.data import DataLoader, Dataset

SAMPLES, FEATURES, WIDTH, CLASSES, BATCH = 100_000, 64, 64, 10, 16
RATE, CLIP = 1e-3, 1.0
# More than any of the loops comes to: the benchmark ends them.
STEPS = 1_000_000
WARM_UP = 100


class Digits(Dataset[Any]):
    """Random features and classes; a source of the toolkit too."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.features = torch.randn(SAMPLES, FEATURES, generator=generator)
        self.classes = torch.randint(CLASSES, (SAMPLES,), generator=generator)

    def __len__(self) -> int:
        return SAMPLES

    def __getitems__(self, ids: Sequence[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return the samples with these ids, as torch's loader asks for them."""
        return [(self.features[number], self.classes[number]) for number in ids]

    fetch = __getitems__

    def lengths(self, ids: np.ndarray) -> None:
        """All are of one length."""

    def digest(self) -> str:
        """Return what the content follows from."""
        return "digits"


def collated(samples: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Return a batch."""
    features, classes = zip(*samples, strict=True)
    return {"features": torch.stack(features), "labels": torch.stack(classes)}


class Pace:
    """Lets a loop run for a round when the parent process says so, and tells it how long that took."""

    def __init__(self, warm_up: int) -> None:
        self.left = warm_up
        self.begun = self.now()
        # The loops print on their own standard output.
        self.answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)

    def __call__(self) -> None:
        """Note a step; called by the model."""
        if self.left == 0:
            print(
                *(end - begun for begun, end in zip(self.begun, self.now(), strict=True)), file=self.answers, flush=True
            )
            self.left = int(sys.stdin.readline() or 0)
            if self.left == 0:
                os._exit(0)
            self.begun = self.now()
        self.left -= 1

    def now(self) -> tuple[float, float]:
        """Return the seconds that a clock shows, and those that all threads of this process have computed."""
        return time.perf_counter(), time.process_time()


class Perceptron(torch.nn.Module):
    """Three layers, and the pace."""

    def __init__(self, pace: Callable[[], None]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = torch.nn.Linear(FEATURES, WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        self.last = torch.nn.Linear(WIDTH, CLASSES)
        self.pace = pace

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        self.pace()
        return self.last(F.relu(self.second(F.relu(self.first(features)))))


def loader() -> DataLoader[Any]:
    """Return the loader of all loops but the toolkit's, which has its own order."""
    return DataLoader(Digits(), batch_size=BATCH, shuffle=True, collate_fn=collated)


def optimizer_of(model: torch.nn.Module) -> tuple[torch.optim.AdamW, torch.optim.lr_scheduler.LambdaLR]:
    """Return optimizer and schedule: biases do not decay, as in the toolkit and in Transformers' Trainer."""
    groups = [
        {"params": [p for p in model.parameters() if p.ndim >= 2], "weight_decay": 0.01},
        {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=RATE, fused=True)
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / STEPS))


def endless(batches: Any) -> Iterator[Any]:
    """Yield the batches of one epoch after another."""
    while True:
        yield from batches


def by_hand(pace: Callable[[], None]) -> None:
    """Train by PyTorch alone."""
    model = Perceptron(pace)
    optimizer, schedule = optimizer_of(model)
    for batch in endless(loader()):
        loss = F.cross_entropy(model(batch["features"]), batch["labels"])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()


def fabric(pace: Callable[[], None]) -> None:
    """Train by Lightning Fabric."""
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=1)
    model = Perceptron(pace)
    optimizer, schedule = optimizer_of(model)
    model, optimizer = fabric.setup(model, optimizer)
    batches = fabric.setup_dataloaders(loader())
    for batch in endless(batches):
        loss = F.cross_entropy(model(batch["features"]), batch["labels"])
        fabric.backward(loss)
        fabric.clip_gradients(model, optimizer, max_norm=CLIP)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()


def plain_accelerate(pace: Callable[[], None]) -> None:
    """Train by the loop of Accelerate's guides."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=1)
    model = Perceptron(pace)
    model, optimizer, schedule, batches = accelerator.prepare(model, *optimizer_of(model), loader())
    for batch in endless(batches):
        with accelerator.accumulate(model):
            loss = F.cross_entropy(model(batch["features"]), batch["labels"])
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()


def lightning(pace: Callable[[], None]) -> None:
    """Train by Lightning's Trainer."""
    from lightning import LightningModule, Trainer

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = Perceptron(pace)

        def training_step(self, batch: dict[str, torch.Tensor], number: int) -> torch.Tensor:
            return F.cross_entropy(self.model(batch["features"]), batch["labels"])

        def configure_optimizers(self) -> Any:
            optimizer, schedule = optimizer_of(self)
            return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    trainer = Trainer(
        accelerator="cpu",
        devices=1,
        max_steps=STEPS,
        gradient_clip_val=CLIP,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(), loader())


def transformers_trainer(pace: Callable[[], None]) -> None:
    """Train by Transformers' Trainer."""
    from transformers import Trainer, TrainingArguments

    with TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            per_device_train_batch_size=BATCH,
            max_steps=STEPS,
            learning_rate=RATE,
            max_grad_norm=CLIP,
            lr_scheduler_type="linear",
            optim="adamw_torch_fused",
            logging_strategy="no",
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
            remove_unused_columns=False,
        )
        Trainer(
            Perceptron(pace),
            arguments,
            data_collator=collated,
            train_dataset=Digits(),
            compute_loss_func=lambda logits, labels, num_items_in_batch=None: F.cross_entropy(logits, labels),
        ).train()


def toolkit(pace: Callable[[], None]) -> None:
    """Train by this project's loop, as a recipe does."""
    from toolkit import BatchConfig, CheckpointConfig, Config, OptimConfig, Task, TaskData
    from toolkit.run import run

    task = Task(
        model=lambda runtime: Perceptron(pace),
        data=TaskData(train=Digits()),
        collate=collated,
        units=lambda batch: len(batch["labels"]),
        loss=lambda model, batch: F.cross_entropy(model(batch["features"]), batch["labels"], reduction="sum"),
    )
    with TemporaryDirectory() as folder:
        config = Config(
            batch=BatchConfig(size=BATCH),
            optim=OptimConfig(lr=RATE, clip=CLIP, schedule="linear"),
            # None within the time of this benchmark: what one costs, blocked_time.py shows.
            checkpoint=CheckpointConfig(every=STEPS),
            epochs=None,
            steps=STEPS,
            threads=1,
            output=str(Path(folder) / "run"),
        )
        run(config, lambda config: task, "overhead")


BY_HAND, ACCELERATE, TOOLKIT = "by hand", "plain Accelerate loop", "toolkit, everything on"
LOOPS: dict[str, tuple[str, str, Callable[[Callable[[], None]], None]]] = {
    "hand": (BY_HAND, "torch", by_hand),
    "fabric": ("Fabric", "lightning", fabric),
    "accelerate": (ACCELERATE, "accelerate", plain_accelerate),
    "lightning": ("Lightning's Trainer", "lightning", lightning),
    "trainer": ("Transformers' Trainer", "transformers", transformers_trainer),
    "toolkit": (TOOLKIT, "accelerate", toolkit),
}
"""Each loop under its short name: what the table calls it, the package it needs, and what runs it."""


class Worker:
    """A loop in a process of its own, which runs when it is told to."""

    def __init__(self, name: str) -> None:
        command = [sys.executable, __file__, "--work", name]
        log = None if name == os.environ.get("SHOW") else subprocess.DEVNULL
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=environment
        )
        self.answer()  # the steps to warm up are done

    def answer(self) -> list[float]:
        """Return the seconds of the round that was begun, and those of the processor."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"{' '.join(self.process.args)} ended with {self.process.wait()}; run it to see why")  # type: ignore[arg-type]
        return [float(word) for word in line.split()]

    def round(self, steps: int) -> list[float]:
        """Run so many steps and return the microseconds of one, and those of the processor."""
        assert self.process.stdin is not None
        print(steps, file=self.process.stdin, flush=True)
        return [1e6 * seconds / steps for seconds in self.answer()]

    def end(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--steps", type=int, default=200, help="steps of one round")
    parser.add_argument("--loops", nargs="+", choices=list(LOOPS), default=list(LOOPS))
    parser.add_argument("--profile", choices=list(LOOPS), help="profile 3,000 steps of this loop and measure nothing")
    parser.add_argument("--work", choices=list(LOOPS), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work or arguments.profile:
        torch.set_num_threads(1)
        work = LOOPS[arguments.work or arguments.profile][2]
        work(Pace(WARM_UP)) if arguments.work else profile(work)
        return
    loops = [name for name in dict.fromkeys(["hand", *arguments.loops]) if find_spec(LOOPS[name][1])]
    missing = [LOOPS[name][0] for name in arguments.loops if name not in loops]
    workers = {name: Worker(name) for name in loops}
    rounds: dict[str, list[list[float]]] = {name: [] for name in loops}
    for number in range(arguments.rounds):
        # Every other round backwards, so that no loop always follows the same one.
        for name in loops if number % 2 == 0 else reversed(loops):
            rounds[name].append(workers[name].round(arguments.steps))
    for worker in workers.values():
        worker.end()
    times, processor = ({name: [both[clock] for both in rounds[name]] for name in loops} for clock in (0, 1))
    over, computed = (
        {name: [own - raw for own, raw in zip(taken[name], taken["hand"], strict=True)] for name in loops}
        for taken in (times, processor)
    )
    print("# What a loop costs beside the training itself\n")
    print(machine() + (f"; lightning {version_of('lightning')}" if "fabric" in loops else "") + "\n")
    print(
        f"{sum(p.numel() for p in Perceptron(lambda: None).parameters()):,} parameters, batches of {BATCH}, one "
        f"thread; {arguments.rounds} rounds of {arguments.steps} steps by each loop in turn. Microseconds per step: "
        "median (quartiles) over the rounds; beyond the loop by hand, of the same round. Processor: what all threads "
        "of the process computed, which other work on the machine disturbs less.\n"
    )
    rows = []
    for name in sorted(loops, key=lambda name: median(times[name])):
        beyond = ["", ""] if name == "hand" else [spread(over[name]), spread(computed[name])]
        rows.append([LOOPS[name][0], spread(times[name]), *beyond])
    print(table(["loop", "one step, us", "beyond the loop by hand, us", "processor, beyond that by hand, us"], rows))
    if missing:
        print(f"\nNot installed here: {', '.join(missing)}.")
    if {"toolkit", "accelerate"} <= set(loops):
        toolkit_costs, plain_costs = median(over["toolkit"]), median(over["accelerate"])
        held = toolkit_costs <= plain_costs
        print(
            f"\nThe toolkit's overhead is at most that of the plain Accelerate loop: {toolkit_costs / plain_costs:.2f} "
            f"of it, {'pass' if held else 'FAIL'}"
        )
        sys.exit(not held)


def profile(work: Callable[[Callable[[], None]], None]) -> None:
    """Print where the time of 3,000 steps goes."""
    steps, profiler = 0, cProfile.Profile()

    def pace() -> None:
        nonlocal steps
        steps += 1
        if steps == WARM_UP:
            profiler.enable()
        if steps == WARM_UP + 3000:
            profiler.disable()
            for order in ("tottime", "cumtime"):
                pstats.Stats(profiler).sort_stats(order).print_stats(60)
            os._exit(0)

    work(pace)


def spread(values: Sequence[float]) -> str:
    """Return the median and the quartiles."""
    if len(values) < 2:
        return f"{values[0]:,.0f}"
    low, middle, high = quantiles(values, n=4)
    return f"{middle:,.0f} ({low:,.0f} to {high:,.0f})"


if __name__ == "__main__":
    main()
