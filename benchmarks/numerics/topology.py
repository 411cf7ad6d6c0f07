"""How far a training on one layout is from the same training on another, with real processes, in float64.

    python benchmarks/numerics/topology.py
        1, 2 and 4 processes x micro-batches of 1, 2, 3, 4, 8 and 16 x as the samples come and cut by length = 36
        layouts of one global batch of 16, and 18 more without padding where the model can; seven models with dropout of
        0.1 everywhere; beside them Transformers' Trainer and the plain Accelerate loop on the layouts that they can do
    python benchmarks/numerics/topology.py --processes 1 2 --micro 3 16 --models BERT --methods toolkit
        a part of it, in a minute

Every figure is the largest over all layouts, relative to the first layout (one process, the largest micro-batch): final
weights as ||a - b|| / ||b|| over all weights together; loss, gradient norm and metrics the largest of all steps or
evaluations. The fingerprints of the samples of every step must be the same. Exits with 1 if the toolkit is beyond its
bound anywhere.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

import torch
from machine import accelerate_launch, machine, table
from topology_models import DROPOUT, LONGEST, MODELS, SHORTEST
from topology_work import GLOBAL_BATCH, SAMPLES, Cut, Difference, LayoutResult, cuts, difference
from topology_worker import METHODS

# Processes, micro-batch, how the global batch is cut.
ShardMap = tuple[int, int, Cut]
# The figures of a `Difference` and what they are called in the tables.
FIGURES = {"weights": "final weights", "loss": "loss", "norm": "gradient norm", "metrics": "evaluation metrics"}


def main() -> None:
    """Run everything and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", nargs="+", type=int, default=[1, 2, 4])
    parser.add_argument("--micro", nargs="+", type=int, default=[16, 8, 4, 3, 2, 1])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--samples", type=int, default=SAMPLES)
    parser.add_argument("--threads", type=int, default=1, help="of each process; small models gain nothing by more")
    parser.add_argument("--layouts", action="store_true", help="also print the differences of every single layout")
    arguments = parser.parse_args()
    started = time.monotonic()
    results = {method: run_method(method, arguments) for method in arguments.methods}
    comparisons = [compare(name, method, results[method]) for name in arguments.models for method in arguments.methods]
    print("# The same training on other layouts: largest relative difference from the first\n")
    print(machine() + "\n")
    steps = arguments.epochs * -(-arguments.samples // GLOBAL_BATCH)
    print(
        f"{arguments.samples} samples of {SHORTEST} to {LONGEST} tokens, global batch {GLOBAL_BATCH}, "
        f"{arguments.epochs} epochs = {steps} steps, AdamW, clipping at 1, float64, dropout {DROPOUT} everywhere, "
        f"evaluation after each epoch; processes {arguments.processes}, micro-batch {arguments.micro}, "
        f"{arguments.threads} thread(s) each. Each method is compared with its own first layout. "
        f"{time.monotonic() - started:.0f} s in all.\n"
    )
    learnt = "loss, first to last step"
    columns = ["model", "method", "layouts", learnt, *FIGURES.values(), "same samples in every step", "bound"]
    print(table(columns, [comparison.row() for comparison in comparisons]))
    if arguments.layouts:
        columns = ["model", "method", "processes", "micro", "cut", *FIGURES.values()]
        print("\n" + table(columns, [row for comparison in comparisons for row in comparison.layout_rows()]))
    if not all(comparison.passed for comparison in comparisons):
        sys.exit(1)


def run_method(method: str, arguments: argparse.Namespace) -> dict[tuple[str, ShardMap], LayoutResult]:
    """Run all layouts of one method: one launch for each process count."""
    results = {}
    for processes in arguments.processes:
        for (name, micro, cut), result in launch(method, processes, arguments).items():
            results[name, (processes, micro, cut)] = LayoutResult(**result)
    return results


def launch(method: str, processes: int, arguments: argparse.Namespace) -> dict[Any, dict[str, Any]]:
    """Start `topology_worker.py` in so many processes and return what it wrote."""
    with TemporaryDirectory() as folder:
        output = Path(folder) / "results.pt"
        command = [
            *accelerate_launch(sys.executable, processes),
            str(Path(__file__).with_name("topology_worker.py")),
            *(method, str(output)),
            *("--models", *arguments.models),
            *("--micro", *map(str, arguments.micro)),
            *("--epochs", str(arguments.epochs), "--samples", str(arguments.samples)),
            *("--threads", str(arguments.threads)),
        ]
        started = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        print(f"{method}, {processes} process(es): {time.monotonic() - started:.0f} s", file=sys.stderr)
        if done.returncode != 0:
            sys.exit(
                f"{method} with {processes} process(es) ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
            )
        found: dict[Any, dict[str, Any]] = torch.load(output)
        return found


@dataclass(frozen=True)
class Comparison:
    """One model trained by one method: every layout against the first."""

    model: str
    method: str
    apart: dict[ShardMap, Difference]
    losses: list[float]
    """Of the steps of the first layout."""

    @property
    def same_samples(self) -> bool:
        """Whether every step of every layout had the same samples."""
        return all(difference.same_samples for difference in self.apart.values())

    @property
    def passed(self) -> bool:
        """Whether the toolkit kept its bound; nothing is asked of the others."""
        worst = max(difference.largest for difference in self.apart.values())
        return self.method != "toolkit" or (worst <= MODELS[self.model].bound and self.same_samples)

    def row(self) -> list[str]:
        """Return the largest differences, and the verdict on the toolkit."""
        largest = [figure(max(getattr(apart, key) for apart in self.apart.values())) for key in FIGURES]
        verdict = ["not recorded", "-"]
        if self.method == "toolkit":
            verdict = ["yes" if self.same_samples else "NO", "pass" if self.passed else "FAIL"]
            verdict[1] += f" (at most {MODELS[self.model].bound:g})"
        learnt = f"{self.losses[0]:.2f} to {self.losses[-1]:.2f}"
        return [self.model, self.method, str(len(self.apart)), learnt, *largest, *verdict]

    def layout_rows(self) -> Iterator[list[str]]:
        """Yield the differences of every single layout."""
        for (processes, micro, cut), apart in sorted(self.apart.items()):
            layout = [str(processes), str(micro), cut]
            yield [self.model, self.method, *layout, *(figure(getattr(apart, key)) for key in FIGURES)]


def compare(name: str, method: str, results: dict[tuple[str, ShardMap], LayoutResult]) -> Comparison:
    """Compare the layouts of one model with the first: one process, the largest micro-batch, padded."""
    found = {layout: result for (model, layout), result in results.items() if model == name}
    first = min(found, key=lambda layout: (layout[0], -layout[1], cuts(name).index(layout[2])))
    apart = {layout: difference(result, found[first]) for layout, result in found.items()}
    return Comparison(name, method, apart, found[first].losses)


def figure(value: float) -> str:
    """Return a relative difference; steps that do not even agree in number are said in words."""
    return "other number of steps" if value == float("inf") else f"{value:.1e}"


if __name__ == "__main__":
    main()
