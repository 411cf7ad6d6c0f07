"""Trains recipes with small data in one process group after another layout, and writes down every number.

    accelerate launch ... tests/helpers/recipe_layouts.py OUTPUT DATA MICRO[,MICRO...] RECIPE [RECIPE ...]

The recipes share the processes and their groups: to start them costs more than these trainings.
"""

import importlib
import importlib.util
import os
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parents[2]
RECIPES = sorted(path.stem for path in (ROOT / "recipes").glob("*.py"))
DROPOUT = ("--model.dropout", "0.1")
"""The embedded models have none."""
WEIGHTED = ["classify-weighted", "classify-several", "tag-weighted"]
"""Small runs of recipes with another loss: the recipe, and the function in `small_<recipe>` that gives the flags."""


def load_recipe(name: str) -> ModuleType:
    """Return a recipe as a module, under a name that no package has; one of `WEIGHTED` is the recipe itself."""
    name = name.partition("-")[0]
    spec = importlib.util.spec_from_file_location(f"{name}_recipe", ROOT / "recipes" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and the command line look a class's module up by its name.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def config_class(recipe: ModuleType) -> type:
    """Return the configuration that a recipe defines."""
    from toolkit import Config

    (found,) = (
        value
        for value in vars(recipe).values()
        if isinstance(value, type) and issubclass(value, Config) and value.__module__ == recipe.__name__
    )
    return found


def small_arguments(name: str, folder: Path) -> list[str]:
    """Return the flags of a small run of a recipe, whose data is written into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    recipe, _, variant = name.partition("-")
    arguments: list[str] = getattr(importlib.import_module(f"small_{recipe}"), variant or "arguments")(folder)
    return arguments


def written_once(name: str, data: Path) -> list[str]:
    """Return the flags of a small run of a recipe, whose data the main process writes for all.

    The others write it elsewhere, since they need the flags too: a file must not change that another one is reading.
    """
    shared, rank = data / name, os.environ.get("RANK", "0")
    if rank == "0":
        arguments = small_arguments(name, shared)
        (data / f"{name} is written").touch()
        return arguments
    own = data / rank / name
    arguments = small_arguments(name, own)
    while not (data / f"{name} is written").exists():
        time.sleep(0.05)
    return [word.replace(str(own), str(shared)) for word in arguments]


def run_all(output: Path, data: Path, micro_batches: list[int | None], names: list[str]) -> None:
    """Train every recipe with every size of micro-batch."""
    import torch

    from toolkit.checkpoint.sharded import whole_weights
    from toolkit.config.parser import parse
    from toolkit.distributed.start_runtime import start_runtime
    from toolkit.loop import train
    from toolkit.models.parameters import weights_of
    from toolkit.prepare import prepare
    from toolkit.printed_plan import active_dropout

    results: dict[str, Any] = {}
    runtime = None
    for name in names:
        recipe = load_recipe(name)
        arguments = [*written_once(name, data), *DROPOUT, "--threads", "1", "--output", str(data / "runs")]
        config: Any = parse(config_class(recipe), recipe.__doc__ or "", arguments)
        runtime = runtime or start_runtime(config)
        for micro in micro_batches:
            cut = replace(config, batch=replace(config.batch, micro=micro))
            task = runtime.together(lambda recipe=recipe, cut=cut: recipe.task(cut))  # type: ignore[misc]
            training = prepare(task, cut, runtime)
            training.output.rows = []
            last = train(training)
            module = runtime.accelerator.unwrap_model(training.model)
            trained, found = weights_of(module), whole_weights(module, runtime)
            numbers = [found[name].flatten().double() for name in sorted(trained) if name in found]
            weights = torch.cat(numbers) if numbers else None
            rows = [asdict(row) for row in training.output.rows]
            results[f"{name} {micro}"] = {
                "weights": weights,
                "rows": rows,
                "metrics": last.metrics,
                "examples": last.examples,
                "details": last.details,
                "dropout": active_dropout(training.model),
                "drawn_by_topology": training.drawn_by_topology,
                "packs": training.sampler.packed,
            }
            runtime.accelerator.free_memory()
    assert runtime is not None
    if runtime.is_main:
        torch.save(results, output)
    runtime.close()


if __name__ == "__main__":
    place, folder, sizes, *recipes = sys.argv[1:]
    run_all(Path(place), Path(folder), [int(size) if size != "none" else None for size in sizes.split(",")], recipes)
