"""What `gpu.py` asks of host and GPU together: waits of every recipe, threads, pinned memory, time-outs, memory."""

import argparse
import json
import sys
from dataclasses import replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import psutil
import torch
from gpu_recipes import RECIPES, Samples, as_it_is, made_here, missing
from gpu_worker import SIZES, place_of, without_waiting
from gpu_worker import task as llama

from toolkit import BatchConfig, Config, OptimConfig, Task, TimeoutConfig
from toolkit.checkpoint.state_dict import content_of
from toolkit.checkpoint.writer import Saver
from toolkit.config.schema import CheckpointConfig
from toolkit.distributed.counts import count_micro_batches
from toolkit.distributed.runtime import Runtime
from toolkit.distributed.start_runtime import start_runtime
from toolkit.errors import USER_CAN_FIX, UserError
from toolkit.loop import global_batches, train_step
from toolkit.output.ledger import Ledger, read_ledger
from toolkit.output.run_folder import RunFolder
from toolkit.prepare import prepare
from toolkit.printed_plan import state_bytes
from toolkit.run import run

CONFIG = Config(batch=BatchConfig(size=8, micro=3), steps=6, epochs=None)
WARM = 2
"""Steps in which the host may wait: libraries prepare themselves."""


def recipes(arguments: argparse.Namespace) -> dict[str, Any]:
    """Take some steps of every recipe's loss; return the place of the first wait of each."""
    runtime, absent = start_runtime(CONFIG), missing() or (["asking for more"] if arguments.made_here else [])
    found: dict[str, Any] = {}
    with TemporaryDirectory() as folder:
        for name in RECIPES:
            task = made_here(name) if absent else as_it_is(name, Path(folder))
            found[name] = {"how": f"loss and collation alone, without {', '.join(absent)}" if absent else "as it is"}
            found[name] |= {"waits": first_wait(task, runtime)}
            runtime.accelerator.free_memory()
    runtime.close()
    return found


def first_wait(task: Task, runtime: Runtime) -> str | None:
    """Return where the host first waits in a step after the first ones, if it does."""
    training = prepare(task, CONFIG, runtime)
    for step, micro_batches in global_batches(training):
        units = runtime.all_reduce_counts(count_micro_batches(micro_batches)).units
        if step < WARM:
            train_step(training, step, micro_batches, units)
            continue
        try:
            with without_waiting(runtime.device):
                train_step(training, step, micro_batches, units)
        except RuntimeError as error:
            if "synchronizing" not in str(error):
                raise
            return place_of(error)
    return None


def threads(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return with how many threads the host computes, and how many cores there are."""
    config = replace(CONFIG, threads=arguments.threads)
    runtime = start_runtime(config)
    found = {"threads": torch.get_num_threads(), "said": runtime.threads, "strategy": runtime.strategy.description}
    runtime.close()
    return {**found, "cores": len(psutil.Process().cpu_affinity())}


def pinned(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return whether batches and the copy for a checkpoint are in pinned memory, and how much the copy takes."""
    runtime = start_runtime(CONFIG)
    found: dict[str, Any] = {}
    tiny = llama(SIZES["tiny"])
    for workers in (0, 2):
        training = prepare(replace(tiny, data=replace(tiny.data, workers=workers)), CONFIG, runtime)
        (_, micro_batches, _) = next(global_batches(training))
        tensors = [tensor for micro in micro_batches for tensor in micro.batch.values()]
        found[f"batches, {workers} workers"] = all(tensor.is_pinned() for tensor in tensors)
        runtime.accelerator.free_memory()
    training = prepare(llama(SIZES[arguments.size]), CONFIG, runtime)
    for step, micro_batches in islice(global_batches(training), 1):
        train_step(training, step, micro_batches, runtime.all_reduce_counts(count_micro_batches(micro_batches)).units)
    with TemporaryDirectory() as path:
        saver = Saver(RunFolder(Path(path)), Ledger(Path(path) / "ledger.jsonl"), 1, runtime.has_own_memory)
        module = runtime.accelerator.unwrap_model(training.model)
        # What a thread writes is not of interest.
        with mock.patch.object(saver, "begin"):
            before = psutil.Process().memory_info().rss
            saver.save(1, lambda: content_of(module, training.optimizer.optimizer, 1, 1.0, {}))
            grown = psutil.Process().memory_info().rss - before
        contents = [staging_buffer.content for staging_buffer in saver.staging_buffers.values()]
        found["copy"] = {
            "pinned": all(content.is_pinned() for content in contents),
            "plan": state_bytes(training),
            "taken": sum(content.nbytes for content in contents),
            "grown": grown,
        }
        if runtime.has_own_memory:
            found["refused"] = pinning_refused(saver, training)
    runtime.close()
    return found


class Refusing:
    """CUDA, asked to pin memory that no process has: it refuses, and keeps the error for whoever asks next."""

    def __init__(self) -> None:
        self.cuda: Any = torch.cuda.cudart()

    def cudaHostRegister(self, *_: int) -> int:  # noqa: N802 (CUDA's name)
        return int(self.cuda.cudaHostRegister(1 << 12, 1 << 40, 1))

    def cudaHostUnregister(self, address: int) -> int:  # noqa: N802 (CUDA's name)
        return int(self.cuda.cudaHostUnregister(address))


def pinning_refused(saver: Saver, training: Any) -> bool:
    """Return whether it is told if the system refuses to pin, and training goes on."""
    saver.staging_buffers.clear()
    module = training.runtime.accelerator.unwrap_model(training.model)
    refusing = Refusing()
    with mock.patch("torch.cuda.cudart", return_value=refusing), mock.patch.object(saver, "begin"):
        saver.save(2, lambda: content_of(module, training.optimizer.optimizer, 2, 1.0, {}))
    torch.ones(1, device=training.runtime.device).sum().item()
    return saver.has_warned and not any(staging_buffer.pinned for staging_buffer in saver.staging_buffers.values())


def timeout(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return after how many seconds the process group ends a process that waits, beside timeout.progress."""
    runtime = start_runtime(replace(CONFIG, timeout=TimeoutConfig(progress=5000)))
    group = torch.distributed.distributed_c10d._get_default_group()
    options = group._get_backend(torch.device(runtime.device.type)).options
    found = {"backend": str(torch.distributed.get_backend()), "seconds": options._timeout.total_seconds()}
    runtime.close()
    return found


def memory(arguments: argparse.Namespace) -> dict[str, Any]:
    """Run out of memory in a training or an evaluation, and go on with what the message advises."""
    config = Config(
        batch=BatchConfig(size=8, balance=False),
        optim=OptimConfig(lr=1e-4),
        checkpoint=CheckpointConfig(every=2),
        steps=4,
        epochs=None,
        output=str(arguments.folder),
    )
    if arguments.small:
        config = replace(config, batch=replace(config.batch, micro=2, eval=2))
    run(config, lambda _: asking_too_much(arguments.place), "gpu")
    return {"steps": sum(1 for _ in read_ledger(arguments.folder / "ledger.jsonl"))}


def asking_too_much(place: str) -> Task:
    """Return a task whose loss asks for more memory than the device has where more than two samples run at once."""
    made = made_here("classify")
    calls = 0

    def loss(model: Any, batch: Any) -> torch.Tensor:
        nonlocal calls
        trains = torch.is_grad_enabled()
        calls += trains
        # The first call only tries a batch.
        if len(batch["labels"]) > 2 and (calls > 3 if place == "training" else not trains):
            device = batch["labels"].device
            size = 2 * torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else 1 << 46
            torch.empty(size, dtype=torch.uint8, device=device)
        assert callable(made.loss)
        total: torch.Tensor = made.loss(model, batch)
        return total

    assert isinstance(made.data.train, Samples)
    return replace(made, loss=loss, data=replace(made.data, evaluate=Samples(made.data.train.make, 16)))


def main() -> None:
    """Do what was asked for, and write down what was found; a refusal is told as a recipe tells it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path)
    parser.add_argument("what", choices=["recipes", "threads", "pinned", "timeout", "memory"])
    parser.add_argument("--size", choices=SIZES, default="real")
    parser.add_argument("--steps", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--made-here", action="store_true", help="samples made here, whatever is installed")
    parser.add_argument("--place", choices=["training", "evaluation"], default="training")
    parser.add_argument("--small", action="store_true", help="what the message advises: two samples at once")
    parser.add_argument("--folder", type=Path, default=None, help="the run folder")
    arguments = parser.parse_args()
    try:
        found = globals()[arguments.what](arguments)
    except UserError as error:
        print("refused: " + "; ".join(error.problems), file=sys.stderr)
        sys.exit(USER_CAN_FIX)
    arguments.output.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
