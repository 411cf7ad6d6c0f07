"""Two pieces of usual training code under Accelerate, and the same two mended. The notebook runs them on two
processes."""

from collections.abc import Iterator

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from one_batch_model import SENTENCES, batch_of, build_model, summed_loss, units_of
from torch import Tensor
from torch.utils.data import DataLoader

GLOBAL_BATCH = 8
STEPS = 10
Numbered = tuple[int, bool]
"""The number of a sentence, and whether it counts."""


def usual_loader(processes: int) -> DataLoader[Numbered]:
    """Return a loader as most scripts build it; Accelerate then deals its batches to the processes."""
    numbers = [(number, True) for number in range(len(SENTENCES))]
    return DataLoader(numbers, batch_size=GLOBAL_BATCH // processes, collate_fn=list)  # type: ignore[arg-type]


class WholeNumberOfBatches:
    """Deals nine sentences to the processes without repeating one: where a process would have none, a stand-in does not
    count."""

    def __init__(self, processes: int) -> None:
        self.processes, self.size = processes, GLOBAL_BATCH // processes

    def __iter__(self) -> Iterator[list[int]]:
        """Yield one list for each process in turn; -1 is the stand-in."""
        for start in range(0, len(SENTENCES), GLOBAL_BATCH):
            numbers = list(range(start, min(start + GLOBAL_BATCH, len(SENTENCES))))
            for process in range(self.processes):
                yield numbers[process * self.size : (process + 1) * self.size] or [-1]

    def __len__(self) -> int:
        return self.processes * -(-len(SENTENCES) // GLOBAL_BATCH)


class Numbers:
    """A data set of numbered sentences; -1 is the first sentence, not to be counted."""

    def __len__(self) -> int:
        return len(SENTENCES)

    def __getitem__(self, number: int) -> Numbered:
        return max(number, 0), number >= 0


def mended_loader(processes: int) -> DataLoader[Numbered]:
    """Return a loader that gives every process the same number of batches, and every sentence once."""
    batches = WholeNumberOfBatches(processes)
    return DataLoader(Numbers(), batch_sampler=batches, collate_fn=list)  # type: ignore[arg-type]


def one_epoch(mended: bool) -> tuple[list[int], dict[str, Tensor]]:
    """Train over the nine sentences once, and return the sentences that this process learned from, and the final
    weights.

    The loss is the right one in both cases, a sum over the tokens of all processes divided once: only the loader
    differs.
    """
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(even_batches=not mended))
    model = build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = (mended_loader if mended else usual_loader)(accelerator.num_processes)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    learned_from = []
    for samples in loader:
        learned_from += [number for number, counts in samples if counts]
        batch = batch_of([SENTENCES[number] for number, _ in samples])
        counts = float(samples[0][1])
        units = accelerator.reduce(torch.tensor(units_of(batch) * counts))
        loss = summed_loss(model(batch["tokens"]), batch["labels"]) * counts
        accelerator.backward(loss * accelerator.num_processes / units)
        optimizer.step()
        optimizer.zero_grad()
    weights = {name: weight.detach().clone() for name, weight in accelerator.unwrap_model(model).named_parameters()}
    accelerator.free_memory()
    return learned_from, weights


def learning_rates(mended: bool) -> list[float]:
    """Take ten steps under a schedule that is to fall from 1 to 0, and return the learning rate of each step."""
    accelerator = Accelerator(cpu=True, step_scheduler_with_optimizer=not mended)
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / STEPS))
    optimizer, schedule = accelerator.prepare(optimizer, schedule)
    rates = []
    for _ in range(STEPS):
        rates.append(optimizer.param_groups[0]["lr"])
        accelerator.backward(weight.sum())
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    accelerator.free_memory()
    return rates
