"""What `model.compile` is worth: seconds per step before and after, and how far apart losses and weights come to be.

    python benchmarks/performance/compiled.py --data path/to/data --model path/to/all-MiniLM-L6-v2
        Banking77 with and without padding, with the model's dropout and without; a quarter of an hour on one thread

Both runs are in one process and take their steps in turns, each on the same samples. The first steps, in which kinds of
micro-batches are compiled, are not counted; how long they take in all is said beside.
"""

import argparse
import importlib.util
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

import torch
from machine import machine, table
from torch._dynamo.utils import counters

from toolkit.config.parser import parse
from toolkit.distributed.counts import count_micro_batches
from toolkit.distributed.runtime import Runtime
from toolkit.distributed.start_runtime import start_runtime
from toolkit.loop import global_batches, train_step
from toolkit.prepare import prepare

RECIPE = Path(__file__).parents[2] / "recipes" / "classify.py"
WAYS = {"packed": ("auto", None), "packed, no dropout": ("auto", 0.0), "padded": ("never", None)}


def main() -> None:
    """Measure each way and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--left-out", type=int, default=10)
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32")
    arguments = parser.parse_args()
    print("# Compiled layers\n\n" + machine() + "\n")
    print(
        f"Banking77, all-MiniLM-L6-v2 in {arguments.dtype}, batch 32, one thread; {arguments.steps} steps of each in "
        f"turns, the first {arguments.left_out} not counted. Weights and losses are compared after the last.\n"
    )
    columns = ["way", "as written, s per step", "compiled, s per step", "compiled / as written", "graphs"]
    columns += ["seconds of the first steps", "loss apart", "weights apart"]
    print(table(columns, [measure(way, arguments) for way in arguments.ways]))


def measure(way: str, arguments: argparse.Namespace) -> list[str]:
    """Return a row of the table."""
    torch._dynamo.reset()
    graphs = counters["stats"]["unique_graphs"]
    seconds: tuple[list[float], list[float]] = ([], [])
    models: list[torch.nn.Module] = []
    runs = [steps(way, compiled, arguments, seconds[compiled], models) for compiled in (False, True)]
    losses = [(next(runs[0]), next(runs[1])) for _ in range(arguments.steps)]
    begun = arguments.left_out
    medians = [median(times[begun:]) for times in seconds]
    one, other = (torch.cat([p.detach().flatten().double() for p in model.parameters()]) for model in models)
    return [
        way,
        *(f"{value:.3f}" for value in medians),
        f"{medians[1] / medians[0]:.2f}",
        str(counters["stats"]["unique_graphs"] - graphs),
        f"{sum(seconds[1][:begun]):.0f}",
        f"{max(abs(a - b) / abs(a) for a, b in losses):.1e}",
        f"{float((one - other).norm() / one.norm()):.1e}",
    ]


def steps(
    way: str, compiled: bool, arguments: argparse.Namespace, seconds: list[float], models: list[torch.nn.Module]
) -> Iterator[float]:
    """Take a step each time that it is asked to, note how long it took, and yield its loss."""
    pack, dropout = WAYS[way]
    words = ["--data.train", str(arguments.data / "banking77" / "train.csv"), "--model.name", str(arguments.model)]
    words += ["--data.text", "text", "--data.label", "category", "--batch.size", "32", "--batch.pack", pack]
    words += ["--model.dtype", arguments.dtype, "--threads", "1", "--model.compile", str(compiled).lower()]
    words += [] if dropout is None else ["--model.dropout", str(dropout)]
    recipe = recipe_module()
    config: Any = parse(recipe.Classify, "", words)
    runtime: Runtime = start_runtime(config)
    state = prepare(recipe.task(config), config, runtime)
    models.append(state.model)
    for step, micro_batches in global_batches(state):
        units = runtime.all_reduce_counts(count_micro_batches(micro_batches)).units
        began = time.perf_counter()
        values = train_step(state, step, micro_batches, units)
        loss = values.read()[0]
        seconds.append(time.perf_counter() - began)
        yield loss / units


def recipe_module() -> Any:
    """Return the recipe, loaded once."""
    if RECIPE.stem not in sys.modules:
        spec = importlib.util.spec_from_file_location(RECIPE.stem, RECIPE)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[RECIPE.stem] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[RECIPE.stem])
    return sys.modules[RECIPE.stem]


if __name__ == "__main__":
    main()
