"""What distributed data parallel does in a run of the tiny recipe, as each process sees it; started by a launcher.

Writes to the file that it is given: whether buffers are sent before each forward pass, by model; the bytes of gradients
and of the buffers that they are sent from, and of both where they share memory; the gradients of the first step,
rounded to bf16 and not.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from tiny_recipe import Tiny, TinyModel, task
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_pre_hook

from toolkit import BatchConfig, OptimConfig
from toolkit.distributed.counts import count_micro_batches
from toolkit.distributed.runtime import Runtime
from toolkit.distributed.start_runtime import start_runtime
from toolkit.loop import global_batches, train_step
from toolkit.prepare import prepare
from toolkit.train_state import TrainState


def prepared(runtime: Runtime, **changes: Any) -> TrainState:
    """Return a run of the tiny recipe before its first step, of several micro-batches in each step."""
    config = Tiny(optim=OptimConfig(lr=0.05, warmup=0, clip=None), **{"batch": BatchConfig(size=8, micro=2), **changes})
    return prepare(task(config), config, runtime)


def take_steps(state: TrainState, count: int) -> None:
    """Take so many steps."""
    for step, micro_batches in global_batches(state):
        if step == count:
            break
        units = state.runtime.all_reduce_counts(count_micro_batches(micro_batches)).units
        train_step(state, step, micro_batches, units)


def memory(state: TrainState) -> dict[str, int]:
    """Return the bytes of the gradients, of the buffers that are sent, and of both together, after some steps."""
    buffers: dict[int, int] = {}

    def send(_: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        storage = bucket.buffer().untyped_storage()
        buffers[storage.data_ptr()] = storage.nbytes()
        work = dist.all_reduce(bucket.buffer().div_(dist.get_world_size()), async_op=True)
        return work.get_future().then(lambda done: done.value()[0])

    assert isinstance(state.model, DistributedDataParallel)
    state.model.register_comm_hook(None, send)
    take_steps(state, 2)
    buffers.clear()  # After the first step they are made anew, in the order in which gradients came.
    take_steps(state, 2)
    gradients = [p.grad.untyped_storage() for p in state.model.parameters() if p.grad is not None]
    held = {storage.data_ptr(): storage.nbytes() for storage in gradients}
    return {"gradients": sum(held.values()), "sent": sum(buffers.values()), "both": sum((held | buffers).values())}


def first_gradients(state: TrainState) -> list[float]:
    """Return the gradients of the first step, as the optimizer gets them."""
    found: list[float] = []

    def note(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                found.extend(parameter.grad.flatten().tolist())

    handle = register_optimizer_step_pre_hook(note)
    take_steps(state, 1)
    handle.remove()
    return found


def main() -> None:
    """Look, and write what the main process found."""
    runtime = start_runtime(Tiny(threads=1))
    models = {flaw: prepared(runtime, model=TinyModel(flaw=flaw)) for flaw in ("none", "batch_norm")}
    rounded = prepared(runtime, batch=BatchConfig(size=8, micro=2, compress="bf16"))
    found = {
        "sends buffers": {flaw: state.model.broadcast_buffers for flaw, state in models.items()},
        "memory": memory(prepared(runtime)),
        "gradients": {"none": first_gradients(models["none"]), "bf16": first_gradients(rounded)},
    }
    if runtime.is_main:
        Path(sys.argv[1]).write_text(json.dumps(found), encoding="utf-8")
    del models, rounded
    runtime.close()


if __name__ == "__main__":
    main()
