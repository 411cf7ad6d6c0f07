"""Fifty steps without padding against fifty steps with it: seven tasks, in float64, with dropout.

    python benchmarks/numerics/packed.py
        texts put into classes, tagged, answered from, continued, replied to, preferred and embedded; 5 minutes
    python benchmarks/numerics/packed.py --recipes classify chat --steps 10
        a part of it

Each recipe trains the data of its test (`tests/helpers/small_*.py`), from the same seed, with `batch.pack` always and
never. The figures are the largest relative differences of all steps; of the weights, ||a - b|| / ||b|| at the end.
Exits with 1 if one is above 1e-12.
"""

import argparse
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "helpers"))

import torch
from changed_flags import changed
from machine import machine, table
from recipe_layouts import DROPOUT, config_class, load_recipe, small_arguments
from topology_work import furthest

from toolkit.config.parser import parse
from toolkit.distributed.runtime import Runtime
from toolkit.distributed.start_runtime import start_runtime
from toolkit.loop import train
from toolkit.prepare import prepare

RECIPES = ("classify", "tag", "answer", "language", "chat", "prefer", "embed")
BOUND = 1e-12


@dataclass(frozen=True)
class Numbers:
    """What a training came to."""

    weights: torch.Tensor
    losses: list[float]
    norms: list[float]


def main() -> None:
    """Train everything twice, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", nargs="+", choices=RECIPES, default=list(RECIPES))
    parser.add_argument("--steps", type=int, default=50)
    arguments = parser.parse_args()
    rows, passed = [], True
    with TemporaryDirectory() as scratch:
        for name in arguments.recipes:
            packed, padded = both(name, Path(scratch) / name, arguments.steps)
            apart = [
                float((packed.weights - padded.weights).norm() / padded.weights.norm()),
                furthest(packed.losses, padded.losses),
                furthest(packed.norms, padded.norms),
            ]
            passed = passed and max(apart) <= BOUND
            learnt = f"{padded.losses[0]:.2f} to {padded.losses[-1]:.2f}"
            rows.append([name, learnt, *(f"{value:.1e}" for value in apart)])
            print(*rows[-1], file=sys.stderr, flush=True)
    print(f"# {arguments.steps} steps without padding against as many with it\n")
    print(machine() + "\n")
    print(table(["recipe", "loss, first to last step", "final weights", "loss", "gradient norm"], rows))
    print(f"\nAt most {BOUND:g}: {'pass' if passed else 'FAIL'}")
    if not passed:
        sys.exit(1)


def both(name: str, folder: Path, steps: int) -> tuple[Numbers, Numbers]:
    """Train a recipe without padding and with it."""
    recipe = load_recipe(name)
    flags = changed(small_arguments(name, folder), *DROPOUT, "--steps", str(steps), "--evaluate.every", str(steps))
    words = [*flags, "--threads", "1", "--output", str(folder / "run")]
    config: Any = parse(config_class(recipe), recipe.__doc__ or "", words)
    runtime = start_runtime(config)
    packed, padded = (
        trained(recipe, replace(config, batch=replace(config.batch, pack=pack)), runtime)
        for pack in ("always", "never")
    )
    return packed, padded


def trained(recipe: Any, config: Any, runtime: Runtime) -> Numbers:
    """Train a recipe."""
    training = prepare(recipe.task(config), config, runtime)
    assert training.sampler.packed == (config.batch.pack == "always")
    assert not training.drawn_by_topology
    training.output.rows = rows = []
    train(training)
    module = runtime.accelerator.unwrap_model(training.model)
    weights = torch.cat([parameter.detach().flatten().double() for parameter in module.parameters()])
    runtime.accelerator.free_memory()
    return Numbers(weights, [row.loss for row in rows if row.loss is not None], [row.gradient_norm for row in rows])


if __name__ == "__main__":
    main()
