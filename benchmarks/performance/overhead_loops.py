"""The loops of `overhead.py`, all on the same tiny model and data, each as its own guide writes it."""

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
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
