"""Two processes beside a loop written by hand for torch's DistributedDataParallel, on the same cut: samples a second.

    python benchmarks/performance/two_processes.py --data path/to/data --model path/to/all-MiniLM-L6-v2
        Banking77 (--data holds banking77/), batches of 32, two processes of one thread each, three rounds; 10 minutes
    python benchmarks/performance/two_processes.py --data ... --model ... --micro 4 --rounds 2
        in micro-batches of 4: gradients are summed over the processes once a step

The loop by hand knows beforehand which samples each of its micro-batches has: those that the toolkit gives the same
process in the same step, so both compute the same elements. It fetches and collates them as the toolkit does, and
counts, watches, records and draws nothing by sample. Both drop out at the model's own rate. They take turns; a figure
is the median of the rounds. Exits with 1 if the toolkit, padded as the loop by hand is, has less than 0.97 of its rate.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path += [str(Path(__file__).parents[1] / name) for name in ("shared", "accuracy")]
sys.path.append(str(Path(__file__).parents[2] / "tests" / "helpers"))

from machine import accelerate_launch, machine, table

BATCH, STEPS, WARM_UP = 32, 52, 12
"""The toolkit counts the floating-point operations of the first micro-batches, here of at most 12, which makes these
steps longer."""
LEAST = 0.97
METHODS = {"by hand, padded": "never", "toolkit, padded": "never", "toolkit, end to end": "auto"}
"""Each method with its `batch.pack`."""


def main() -> None:
    """Run everything and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--micro", type=int)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        work(*arguments.work.split("="), arguments)
        return
    rates: dict[str, list[float]] = {method: [] for method in METHODS}
    for number in range(arguments.rounds):
        for method in list(METHODS) if number % 2 == 0 else reversed(METHODS):
            rates[method].append(rate(method, arguments))
            print(method, f"{rates[method][-1]:.1f}", file=sys.stderr, flush=True)
    theirs = statistics.median(rates["by hand, padded"])
    print(f"# {arguments.processes} processes beside a loop written by hand\n")
    print(machine() + "\n")
    print(
        f"Banking77, global batches of {BATCH}, micro-batches of at most {arguments.micro or 'all'}, "
        f"{STEPS - WARM_UP} steps after {WARM_UP}, {arguments.rounds} rounds\n"
    )
    rows = []
    for method, found in rates.items():
        middle = statistics.median(found)
        rows.append([method, *(f"{value:.1f}" for value in (middle, min(found), max(found))), f"{middle / theirs:.2f}"])
    print(table(["method", "samples/s", "smallest", "largest", "this / by hand"], rows))
    sys.exit(statistics.median(rates["toolkit, padded"]) < LEAST * theirs)


def rate(method: str, arguments: argparse.Namespace) -> float:
    """Train once, in processes of its own, and return samples a second."""
    with TemporaryDirectory() as folder:
        output = Path(folder) / "seconds.json"
        words = ["--data", str(arguments.data), "--model", str(arguments.model), "--work", f"{method}={output}"]
        words += ["--micro", str(arguments.micro)] if arguments.micro else []
        command = [*accelerate_launch(sys.executable, arguments.processes), __file__, *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(done.stdout + done.stderr)
        return (STEPS - WARM_UP) * BATCH / float(json.loads(output.read_text(encoding="utf-8")))


def work(method: str, output: str, arguments: argparse.Namespace) -> None:
    """Train by one method in this process, and write down the seconds of the steps after the first ones."""
    from against_trainer import data_of_banking77
    from recipe_layouts import config_class, load_recipe

    from toolkit.config.parser import parse
    from toolkit.distributed.start_runtime import start_runtime
    from toolkit.loop import train
    from toolkit.prepare import prepare

    recipe = load_recipe("classify")
    flags = [*data_of_banking77(arguments.data), "--model.name", str(arguments.model), "--optim.lr", "2e-4"]
    flags += ["--epochs", "null", "--steps", str(STEPS), "--batch.size", str(BATCH), "--batch.pack", METHODS[method]]
    flags += ["--batch.micro", str(arguments.micro)] if arguments.micro else []
    config: Any = parse(config_class(recipe), "", [*flags, "--threads", "1", "--output", "runs/not-written"])
    runtime = start_runtime(config)
    task = recipe.task(config)
    task = replace(task, data=replace(task.data, evaluate=None))
    training = prepare(task, config, runtime)
    if method.startswith("by hand"):
        seconds = by_hand(training)
    else:
        training.output.rows = rows = []
        train(training)
        seconds = [row.seconds for row in rows]
    if runtime.is_main:
        Path(output).write_text(json.dumps(sum(seconds[WARM_UP:])), encoding="utf-8")
    runtime.close()


def by_hand(training: Any) -> list[float]:
    """Train the model as it is in Transformers, and return the seconds of each step."""
    import torch
    import torch.nn.functional as F
    from torch.nn.parallel import DistributedDataParallel

    task, config, runtime, sampler = training.task, training.config, training.runtime, training.sampler
    plans = [sampler.of_step(step)[runtime.rank :: runtime.size] for step in range(STEPS)]
    torch.manual_seed(runtime.rank)
    model = DistributedDataParallel(task.model(runtime).train(), gradient_as_bucket_view=True)
    optim, source = config.optim, task.data.train
    groups = [
        {"params": [p for p in model.parameters() if p.ndim >= 2], "weight_decay": optim.weight_decay},
        {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=optim.lr, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / STEPS)
    torch.distributed.barrier()
    seconds, begun = [], time.perf_counter()
    for step in plans:
        for number, plan in enumerate(step, start=1):
            batch = task.collate(source.fetch(list(plan.ids)))
            inputs = {name: batch[name] for name in ("input_ids", "attention_mask", "token_type_ids") if name in batch}
            with nullcontext() if number == len(step) else model.no_sync():
                losses = F.cross_entropy(model(**inputs).logits, batch["labels"], reduction="sum")
                # DDP divides by the number of processes; each batch has the same number of labels.
                (losses * (runtime.size / BATCH)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), optim.clip)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=False)
        seconds.append(time.perf_counter() - begun)
        begun = time.perf_counter()
    return seconds


if __name__ == "__main__":
    main()
