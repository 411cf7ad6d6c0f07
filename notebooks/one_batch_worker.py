"""One of two processes that share one batch. The notebook starts both:

    torchrun --nproc-per-node 2 one_batch_worker.py RESULTS

Every way leaves its gradients in RESULTS/<way>.safetensors; the main process writes what was counted to
RESULTS/counted.json.
"""

import gc
import json
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator
from one_batch_model import SENTENCES, batch_of, build_model, gradients_of, mean_loss, summed_loss, units_of
from one_batch_usual import learning_rates, one_epoch
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllGather, DefaultReduceScatter
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

MICRO_BATCHES = 4
WHOLE = batch_of(SENTENCES[:8])
UNITS = units_of(WHOLE)


class Counted:
    """Bytes that this process sends in a ring, and how often it was asked to."""

    def __init__(self) -> None:
        self.bytes = {"weights": 0, "gradients": 0}
        self.calls = {"weights": 0, "gradients": 0}

    def add(self, what: str, tensor: Tensor, rounds: int = 1) -> None:
        """Count a tensor that goes round the ring: each round a process sends all of it but its own part."""
        processes = dist.get_world_size()
        self.bytes[what] += rounds * tensor.nbytes * (processes - 1) // processes
        self.calls[what] += 1


def my_share(micro_batches: int) -> list[dict[str, Tensor]]:
    """Return this process's rows of the batch, every second one, as so many micro-batches."""
    mine = {name: rows[dist.get_rank() :: dist.get_world_size()] for name, rows in WHOLE.items()}
    parts = {name: rows.chunk(micro_batches) for name, rows in mine.items()}
    return [dict(zip(parts, rows, strict=True)) for rows in zip(*parts.values(), strict=True)]


def distributed(micro_batches: int, wait: bool = True, mean: bool = False) -> tuple[dict[str, Tensor], Counted]:
    """DDP: each process holds the whole model; an all-reduce averages the gradients.

    `wait` keeps all but the last micro-batch from sending (`no_sync`). `mean` takes the mean of the process's own
    tokens.
    """
    counted = Counted()
    model = DistributedDataParallel(build_model())

    def count_and_reduce(_: None, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        # An all-reduce is two rounds: one adds the parts up, one hands the sums out.
        counted.add("gradients", bucket.buffer(), rounds=2)
        return allreduce_hook(None, bucket)

    model.register_comm_hook(None, count_and_reduce)
    for number, micro in enumerate(my_share(micro_batches)):
        is_last = number == micro_batches - 1
        with model.no_sync() if wait and not is_last else nullcontext():
            logits = model(micro["tokens"])
            # DDP divides by the number of processes: undone in the sum, which is divided by the tokens of all.
            summed = summed_loss(logits, micro["labels"]) * dist.get_world_size() / UNITS
            (mean_loss(logits, micro["labels"]) if mean else summed).backward()
    return gradients_of(model.module), counted


class CountedGather(DefaultAllGather):
    """FSDP2's all-gather of weights, counted."""

    def __init__(self, counted: Counted) -> None:
        self.counted = counted

    def __call__(self, output_tensor: Tensor, *others: Any, **options: Any) -> Any:
        self.counted.add("weights", output_tensor)
        return super().__call__(output_tensor, *others, **options)


class CountedReduceScatter(DefaultReduceScatter):
    """FSDP2's reduce-scatter of gradients, counted."""

    def __init__(self, counted: Counted) -> None:
        self.counted = counted

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, *others: Any, **options: Any) -> Any:
        self.counted.add("gradients", input_tensor)
        return super().__call__(output_tensor, input_tensor, *others, **options)


def sharded(micro_batches: int) -> tuple[dict[str, Tensor], Counted]:
    """FSDP2: each process keeps half of every weight; weights are gathered to be used, gradients are added up and
    scattered."""
    counted = Counted()
    model: Any = build_model()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for module in (*model.blocks, model):
        fully_shard(module, mesh=mesh)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_custom_all_gather(CountedGather(counted))
            module.set_custom_reduce_scatter(CountedReduceScatter(counted))
    for number, micro in enumerate(my_share(micro_batches)):
        model.set_requires_gradient_sync(number == micro_batches - 1)
        loss = summed_loss(model(micro["tokens"]), micro["labels"])
        (loss * dist.get_world_size() / UNITS).backward()
    return {name: whole_of(gradient) for name, gradient in gradients_of(model).items()}, counted


def whole_of(gradient: Tensor) -> Tensor:
    """Return a gradient put together from the parts of all processes."""
    assert isinstance(gradient, DTensor)
    return gradient.full_tensor()


WAYS: dict[str, Callable[[], tuple[dict[str, Tensor], Counted]]] = {
    "ddp": lambda: distributed(1),
    "ddp, accumulated with no_sync": lambda: distributed(MICRO_BATCHES),
    "ddp, accumulated without no_sync": lambda: distributed(MICRO_BATCHES, wait=False),
    "ddp, mean of means": lambda: distributed(1, mean=True),
    "fsdp": lambda: sharded(1),
    "fsdp, accumulated": lambda: sharded(MICRO_BATCHES),
}


def main(results: Path) -> None:
    """Go every way, and run the usual code and the mended one."""
    torch.set_num_threads(1)
    # Under torchrun this, and not the launch file, makes the two processes one training.
    accelerator = Accelerator(cpu=True)
    assert accelerator.num_processes == 2
    facts: dict[str, Any] = {"bytes": {}, "calls": {}, "learned_from": {}, "learning_rates": {}}
    tensors = {}
    for way, run in WAYS.items():
        tensors[way], counted = run()
        facts["bytes"][way], facts["calls"][way] = counted.bytes, counted.calls
    for name, mended in {"usual": False, "mended": True}.items():
        learned_from, tensors[f"weights, {name}"] = one_epoch(mended)
        everyone: list[Any] = [None, None]
        dist.all_gather_object(everyone, learned_from)
        facts["learned_from"][name] = everyone
        facts["learning_rates"][name] = learning_rates(mended)
    if accelerator.is_main_process:
        for name, content in tensors.items():
            save_file(content, results / f"{name}.safetensors")
        (results / "counted.json").write_text(json.dumps(facts), encoding="utf-8")
    # All meet, then what holds the group goes, then the group: a process that left earlier would make the other one
    # abort.
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
