"""How many samples a second the recipes train on real data, beside Transformers' Trainer and a loop written by hand.

    python benchmarks/performance/throughput.py --data path/to/data --model path/to/all-MiniLM-L6-v2
        five tasks, on one thread and on two; about an hour and a half on two cores, with nothing else running
    python benchmarks/performance/throughput.py --data ... --model ... --tasks classify --threads 1 --rounds 2
        a part of it
    python benchmarks/performance/throughput.py ... --before path/to/another/checkout
        the toolkit of another commit too

Every method trains the same model for the same number of steps; they take turns, so that what else the machine does
meets all of them. A figure is the median of the rounds, with the smallest and the largest, over the training steps
after the first 12. Dropout is the model's own. "by hand" is `packed_by_hand.py`: samples end to end, in a loop that can
do nothing else, on the samples of the toolkit's steps. The Trainer draws others; where it groups them by length, it
goes from long ones to short ones in each 50 steps, or fewer where there are fewer samples, and whole rounds of that are
timed. So that nobody's samples are shorter by chance, a rate is tokens a second (without padding) over the tokens that
a sample of the data has on average. "Trainer, default" has random batches.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path += [str(Path(__file__).parents[1] / name) for name in ("shared", "accuracy")]

from against_trainer import JOBS
from machine import machine, table

ROOT = Path(__file__).parents[2]
TASKS = {"classify": 32, "tag": 32, "answer": 16, "chat": 32, "language": 32}
"""Samples of a step, for each task."""
STEPS = {"classify": 62, "tag": 64, "answer": 29, "chat": 62, "language": 75}
WARM_UP = 12
"""Steps at the beginning that are not timed, in all methods: caches fill, and the toolkit counts the floating-point
operations of the first micro-batches, on these tasks of at most 12, which makes these steps up to a quarter longer."""
METHODS = ("toolkit", "by hand", "Trainer", "Trainer, default")
BEFORE = "toolkit before"


def main() -> None:
    """Run everything and print a table for each number of threads."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--before", type=Path, help="a checkout of another commit")
    arguments = parser.parse_args()
    methods = [*arguments.methods, *([BEFORE] if arguments.before else [])]
    print("# Samples a second, beside others\n")
    print(machine() + "\n")
    for threads in arguments.threads:
        rows = []
        for task in arguments.tasks:
            rates: dict[str, list[float]] = {method: [] for method in methods}
            for number in range(arguments.rounds):
                # In another order each time: whoever comes first finds a cooler machine.
                for method in methods[number % len(methods) :] + methods[: number % len(methods)]:
                    root = arguments.before if method == BEFORE else ROOT
                    rates[method].append(rate(root, task, method.removesuffix(" before"), threads, arguments))
            own = statistics.median(rates["toolkit"])
            rows += [
                [task, method, *spread(found), f"{own / statistics.median(found):.2f}"]
                for method, found in rates.items()
            ]
            print(*(f"{row[0]} {row[1]}: {row[2]}" for row in rows[-len(methods) :]), sep="; ", file=sys.stderr)
        print(f"{threads} thread(s), {arguments.rounds} rounds\n")
        print(table(["task", "method", "samples/s", "smallest", "largest", "toolkit / this"], rows) + "\n", flush=True)


def spread(found: list[float]) -> list[str]:
    """Return median, smallest and largest."""
    return [f"{value:.1f}" for value in (statistics.median(found), min(found), max(found))]


def rate(root: Path, task: str, method: str, threads: int, arguments: argparse.Namespace) -> float:
    """Train once in a process of its own and return samples a second."""
    with TemporaryDirectory() as folder:
        output = Path(folder) / "figures.json"
        job = JOBS[task]
        flags = job.flags(arguments.data, arguments.model, Path(folder))
        # The model's own dropout, so many steps, and no evaluation to speak of.
        left_out = {"--model.dropout", "--epochs", "--batch.size"}
        flags = [word for pair in zip(flags[::2], flags[1::2], strict=True) if pair[0] not in left_out for word in pair]
        flags += ["--epochs", "null", "--steps", str(STEPS[task]), "--batch.size", str(TASKS[task])]
        flags += ["--threads", str(threads), "--rehearse", "false"]
        worker = root / "benchmarks" / "accuracy" / "against_trainer_worker.py"
        environment = {
            **os.environ,
            "PYTHONPATH": str(root),
            "OMP_NUM_THREADS": str(threads),
            "SKIP_EVALUATION": "1",
        }  # read by the worker
        command = [sys.executable, str(worker), str(output), job.recipe, method, *flags]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
        figures = json.loads(output.read_text(encoding="utf-8"))
    if "seconds of steps" not in figures:  # an earlier commit: all steps count, the first ones too
        return figures["steps"] * TASKS[task] / figures["seconds"]
    seconds, tokens = (figures[name][WARM_UP:] for name in ("seconds of steps", "tokens of steps"))
    return sum(tokens) / sum(seconds) / figures["tokens of a sample"]


if __name__ == "__main__":
    main()
