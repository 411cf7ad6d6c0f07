"""What each process of `gradient_bytes.py` runs: steps of one launch file, and the bytes each hands to a collective."""

import argparse
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from links_worker import task
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllGather, DefaultReduceScatter
from torch.nn.parallel import DistributedDataParallel

from toolkit import BatchConfig, Config
from toolkit.data.loader import LoadedMicroBatch
from toolkit.distributed.counts import count_micro_batches
from toolkit.distributed.launch import is_true
from toolkit.distributed.runtime import Runtime
from toolkit.distributed.start_runtime import start_runtime
from toolkit.loop import global_batches, train_step
from toolkit.prepare import prepare
from toolkit.train_state import TrainState

MICRO = 2
# What DeepSpeed calls, and under which kind it counts; the largest tensor of a call is what all processes have
# together.
COLLECTIVES = {
    "all_reduce": "gradients",
    "reduce": "gradients",
    "reduce_scatter_tensor": "gradients",
    "reduce_scatter_single": "gradients",
    "all_gather_into_tensor": "weights gathered",
    "all_gather_single": "weights gathered",
    "all_gather": "weights gathered",
}
LONE = 64
"""Bytes up to which a tensor is a norm or a flag, and no gradient."""
KINDS = ("gradients", "between copies", "weights gathered")
Bytes = dict[str, int]
SENT: Counter[str] = Counter()
"""What this process has handed to collectives since it was last emptied."""
TrainStep = Callable[[TrainState, int, list[LoadedMicroBatch], int], object]


class CountedReduceScatter(DefaultReduceScatter):
    """Sends as FSDP2 does by itself, and counts what it is given: the whole gradients of a unit."""

    def __init__(self, sent: Counter[str]) -> None:
        self.sent = sent

    def __call__(self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, *others: Any, **named: Any) -> Any:
        """Reduce and scatter."""
        self.sent["gradients"] += input_tensor.nbytes
        return super().__call__(output_tensor, input_tensor, *others, **named)


class CountedAllGather(DefaultAllGather):
    """Sends as FSDP2 does by itself, and counts what it returns: the whole weights of a unit."""

    def __init__(self, sent: Counter[str]) -> None:
        self.sent = sent

    def __call__(self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, *others: Any, **named: Any) -> Any:
        """Gather."""
        self.sent["weights gathered"] += output_tensor.nbytes
        return super().__call__(output_tensor, input_tensor, *others, **named)


def count_bytes(model: torch.nn.Module, sent: Counter[str], copies: int) -> None:
    """Count from now on what a prepared model hands to collectives, by kind; `copies` as in hybrid sharding."""
    if isinstance(model, DistributedDataParallel):

        def reduce(_: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
            buffer = bucket.buffer()
            sent["gradients"] += buffer.nbytes
            work = dist.all_reduce(buffer.div_(dist.get_world_size()), async_op=True)
            return work.get_future().then(lambda done: done.value()[0])

        model.register_comm_hook(None, reduce)
    for unit in model.modules():
        if not isinstance(unit, FSDPModule):
            continue
        unit.set_custom_reduce_scatter(CountedReduceScatter(sent))
        unit.set_custom_all_gather(CountedAllGather(sent))
        if copies > 1:
            # Called after each all-reduce over the copies, with what was added up.
            unit.set_all_reduce_hook(lambda reduced: sent.update({"between copies": reduced.nbytes}))


def count_collectives(sent: Counter[str]) -> None:
    """Count from now on the bytes that anything in this process hands to a collective of torch, by kind."""

    def counting(collective: Callable[..., Any], kind: str) -> Callable[..., Any]:
        def called(*given: Any, **named: Any) -> Any:
            largest = max(map(nbytes, (*given, *named.values())))
            sent[kind] += largest if largest > LONE else 0
            return collective(*given, **named)

        return called

    for name, kind in COLLECTIVES.items():
        if hasattr(dist, name):
            setattr(dist, name, counting(getattr(dist, name), kind))


def nbytes(given: Any) -> int:
    """Return the bytes of a tensor or of a list of tensors, 0 for all else."""
    if isinstance(given, torch.Tensor):
        return given.nbytes
    return sum(map(nbytes, given)) if isinstance(given, list) else 0


def plain_step(training: TrainState, step: int, micro_batches: list[LoadedMicroBatch], units: int) -> None:
    """Take a step as examples without `accumulate` do: every `backward` sends the gradients."""
    accelerator, model, optimizer = training.runtime.accelerator, training.model, training.optimizer
    training.runtime.accumulate_over(1)
    for micro in micro_batches:
        batch: Any = micro.batch
        loss = F.cross_entropy(model(batch["inputs"]).float(), batch["labels"])
        accelerator.backward(loss / len(micro_batches))
    accelerator.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()


def count_step(runtime: Runtime, take: TrainStep, accumulation: int) -> Bytes:
    """Return the bytes of one step; the first one, for which DDP has its buckets still to order, is not counted."""
    size = runtime.data_parallel_size * MICRO * accumulation
    batch = BatchConfig(size=size, micro=MICRO, balance=False)
    training = prepare(task(), Config(batch=batch, steps=3, epochs=None), runtime)
    sent = SENT
    if runtime.strategy.zero is None:
        count_bytes(training.model, sent, runtime.strategy.replicate)
    found = []
    for step, micro_batches in global_batches(training):
        assert len(micro_batches) == accumulation
        agreed = runtime.all_reduce_counts(count_micro_batches(micro_batches))
        sent.clear()
        take(training, step, micro_batches, agreed.units)
        found.append({kind: sent[kind] for kind in KINDS})
    assert found[1] == found[2], "no two steps send the same"
    runtime.accelerator.free_memory()
    return found[1]


def count_loops(accumulations: list[int], reduce_each: bool, plain: bool) -> dict[str, dict[int, Bytes]] | None:
    """Return the bytes of a step by loop and number of micro-batches: in the main process, None in the others.

    `reduce_each` is the toolkit's setting; `plain` counts the plain loop too.
    """
    if is_true("ACCELERATE_USE_DEEPSPEED"):
        count_collectives(SENT)
    runtime = start_runtime(Config(batch=BatchConfig(reduce_each=reduce_each), threads=1))
    loops: dict[str, TrainStep] = {"batch.reduce_each" if reduce_each else "toolkit": train_step}
    if plain:
        loops["plain"] = plain_step
    found = {
        name: {number: count_step(runtime, take, number) for number in accumulations} for name, take in loops.items()
    }
    is_main = runtime.is_main
    runtime.close()
    return found if is_main else None


def main() -> None:
    """Count, and write what the main process found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path)
    parser.add_argument("--accumulations", nargs="+", type=int, default=[1, 4, 16])
    parser.add_argument("--reduce-each", action="store_true", help="set batch.reduce_each")
    parser.add_argument("--toolkit-alone", action="store_true", help="leave out the plain loop")
    arguments = parser.parse_args()
    plain = not (arguments.reduce_each or arguments.toolkit_alone)
    found = count_loops(arguments.accumulations, arguments.reduce_each, plain)
    if found is not None:
        arguments.output.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
