"""How many seconds of training Banking77 takes to a test accuracy of 0.92, beside Transformers' Trainer.

    python benchmarks/accuracy/time_to_accuracy.py --data path/to/data --model path/to/all-MiniLM-L6-v2
        three seeds, four epochs each at most, the model's own dropout; half an hour on two cores
    python benchmarks/accuracy/time_to_accuracy.py --data ... --model ... --seeds 0 --wanted 0.9

The Trainer has its batches grouped by length, which is the fastest that it can do. The two run at the same time with a
thread each, so that whatever else the machine does meets both. Settings are those of `banking77.py`. The model is
evaluated every 50 steps in the second half, by the same code for both, and the clock stands still meanwhile. A training
ends where it has the accuracy; the slower one has both cores' memory to itself from then on. Where the first evaluation
has it already, that step is all there is to say.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path += [str(Path(__file__).parents[1] / "shared"), str(Path(__file__).parent)]

from against_trainer import data_of_banking77
from machine import machine, table

METHODS = ("toolkit", "Trainer")
SETTINGS = ["--epochs", "4", "--optim.lr", "2e-4", "--optim.warmup", "100", "--optim.weight_decay", "0"]
EVERY, FROM = 50, 600
Curve = list[tuple[int, float, float]]
"""Steps, seconds of training up to there, and accuracy."""


def main() -> None:
    """Train by both with each seed, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--wanted", type=float, default=0.92)
    parser.add_argument("--work", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        method, seed, output = arguments.work.split("=")
        work(method, int(seed), Path(output), arguments)
        return
    rows, seconds = [], {method: [] for method in METHODS}
    for seed in arguments.seeds:
        for method, curve in both(seed, arguments).items():
            found = next((point for point in curve if point[2] >= arguments.wanted), None)
            seconds[method].append(found[1] if found else float("inf"))
            reached = [f"{found[0]:,}", f"{found[1]:.0f}"] if found else ["never", "never"]
            rows.append([method, str(seed), *reached, f"{curve[-1][2]:.4f}", f"{curve[-1][1] / curve[-1][0]:.3f}"])
            print(*rows[-1], file=sys.stderr, flush=True)
    print(f"# Seconds to a test accuracy of {arguments.wanted} on Banking77\n")
    print(machine() + "\n")
    columns = [
        "method",
        "seed",
        f"step of {arguments.wanted}",
        "seconds to it",
        "accuracy at the end",
        "seconds a step",
    ]
    print(table(columns, sorted(rows)))
    own, theirs = (statistics.median(seconds[method]) for method in METHODS)
    print(f"\nMedian of the seeds: {own:.0f} s, the Trainer {theirs:.0f} s ({theirs / own:.2f} times as long)")


def both(seed: int, arguments: argparse.Namespace) -> dict[str, Curve]:
    """Train by both at the same time and return their curves."""
    with TemporaryDirectory() as folder:
        places = {method: Path(folder) / f"{method}.json" for method in METHODS}
        running = []
        for method, place in places.items():
            words = ["--data", str(arguments.data), "--model", str(arguments.model)]
            command = [sys.executable, __file__, *words, "--work", f"{method}={seed}={place}"]
            running.append(subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=sys.stderr))
        if any(process.wait() for process in running):
            sys.exit("a training failed; see above")
        return {method: json.loads(place.read_text(encoding="utf-8")) for method, place in places.items()}


def work(method: str, seed: int, output: Path, arguments: argparse.Namespace) -> None:
    """Train by one method, and write its curve."""
    from against_trainer_worker import trainer_of
    from recipe_layouts import config_class, load_recipe

    from toolkit.config.parser import parse
    from toolkit.distributed.start_runtime import start_runtime
    from toolkit.errors import Preempted
    from toolkit.evaluation import evaluate_model
    from toolkit.loop import train
    from toolkit.prepare import prepare

    recipe = load_recipe("classify")
    flags = [*data_of_banking77(arguments.data), "--model.name", str(arguments.model), *SETTINGS, "--seed", str(seed)]
    flags += ["--batch.size", "32", "--threads", "1", "--rehearse", "false", "--output", "runs/not-written"]
    config: Any = parse(config_class(recipe), "", flags)
    runtime = start_runtime(config)
    task = recipe.task(config)
    if method == "toolkit":
        training = prepare(task, replace(config, evaluate=replace(config.evaluate, every=EVERY)), runtime)
        # The first half of the run is of no interest.
        is_due = training.is_evaluation_due
        training.is_evaluation_due = lambda step: step >= FROM and is_due(step)  # type: ignore[method-assign]
        training.output.rows = rows = Rows(arguments.wanted, runtime.stop.note)
        with suppress(Preempted):
            train(training)
        taken, curve = 0.0, []
        for row in rows:
            taken += row.seconds
            if row.evaluation:
                curve.append((row.step, taken, row.evaluation["accuracy"]))
    else:
        curve = curve_of_the_trainer(
            trainer_of(task, config, runtime, grouped=True),
            lambda model: evaluate_model(task, config, runtime, model),
            arguments.wanted,
        )
    output.write_text(json.dumps(curve), encoding="utf-8")
    runtime.close()


class Rows(list[Any]):
    """Takes the rows of a training's ledger, and asks it to stop when an evaluation has what is wanted."""

    def __init__(self, wanted: float, ask: Callable[[str], None]) -> None:
        super().__init__()
        self.wanted, self.ask = wanted, ask

    def append(self, row: Any) -> None:
        """Take a row."""
        super().append(row)
        if row.evaluation and row.evaluation["accuracy"] >= self.wanted:
            self.ask("it is as good as wanted")


def curve_of_the_trainer(trainer: Any, evaluate: Callable[[Any], Any], wanted: float) -> Curve:
    """Train with Transformers' Trainer and return its curve."""
    from transformers import TrainerCallback

    curve: Curve = []
    lost = 0.0

    class Clock(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            nonlocal begun
            begun = begun or time.perf_counter()

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            nonlocal lost
            now = time.perf_counter()
            if (state.global_step % EVERY == 0 and state.global_step >= FROM) or state.global_step == state.max_steps:
                accuracy = evaluate(kwargs["model"]).metrics["accuracy"]
                curve.append((state.global_step, now - begun - lost, accuracy))
                lost += time.perf_counter() - now
                control.should_training_stop = control.should_training_stop or accuracy >= wanted

    trainer.add_callback(Clock())
    begun = 0.0
    trainer.train()
    return curve


if __name__ == "__main__":
    main()
