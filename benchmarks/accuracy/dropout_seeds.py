"""How good the models are that dropout by samples trains, and those that torch's own trains: accuracy over ten seeds.

    python benchmarks/accuracy/dropout_seeds.py
        the classifier on the embedded corpus with dropout of 0.1, two times ten runs; ten minutes on two cores
    python benchmarks/accuracy/dropout_seeds.py --seeds 0 1 2 --flags --steps 100

The two differ in the dropout alone: the same seeds, samples and steps. They run beside each other with a thread each.
Exits with 1 if the means are further apart than two standard errors of their difference.
"""

import argparse
import subprocess
import sys
from math import sqrt
from pathlib import Path
from statistics import mean, stdev
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

from machine import machine, table

from toolkit.output.run_folder import read_record

ROOT = Path(__file__).parents[2]
METHODS = {"this dropout": False, "torch's": True}
# Torch's is what a run draws where it does not know the samples.
WITHOUT_SAMPLES = """
import runpy, sys
from toolkit.distributed.runtime import Runtime
drawing_from = Runtime.drawing_from
Runtime.drawing_from = lambda runtime, keys: drawing_from(runtime, None)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def main() -> None:
    """Run everything and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="classify")
    parser.add_argument("--seeds", nargs="+", type=int, default=list(range(10)))
    parser.add_argument("--metric", default="accuracy")
    parser.add_argument("--flags", nargs=argparse.REMAINDER, default=[])
    arguments = parser.parse_args()
    found: dict[str, list[float]] = {method: [] for method in METHODS}
    with TemporaryDirectory() as scratch:
        for seed in arguments.seeds:
            running = {}
            for method, without in METHODS.items():
                folder = Path(scratch) / f"{seed}-{without}"
                recipe = [str(ROOT / "recipes" / f"{arguments.recipe}.py"), "--model.dropout", "0.1", "--threads", "1"]
                words = [*recipe, "--seed", str(seed), "--output", str(folder), *arguments.flags]
                command = [sys.executable, *(["-c", WITHOUT_SAMPLES] if without else []), *words]
                running[method] = folder, subprocess.Popen(command, stdout=sys.stderr)
            for method, (folder, process) in running.items():
                if process.wait():
                    sys.exit(f"seed {seed} with {method} failed, see above")
                found[method].append(read_record(folder)["metrics"][arguments.metric])
                print(seed, method, found[method][-1], file=sys.stderr, flush=True)
    own, theirs = found.values()
    error = sqrt((stdev(own) ** 2 + stdev(theirs) ** 2) / len(own))
    apart = mean(own) - mean(theirs)
    print(f"# {arguments.metric} over {len(own)} seeds, with dropout by samples and with torch's\n")
    print(f"{machine()}\n\n`recipes/{arguments.recipe}.py --model.dropout 0.1 {' '.join(arguments.flags)}`\n")
    rows = [
        [name, f"{mean(values):.4f}", f"{stdev(values):.4f}", f"{min(values):.4f}", f"{max(values):.4f}"]
        for name, values in found.items()
    ]
    print(table(["dropout", "mean", "standard deviation", "least", "most"], rows))
    passed = abs(apart) <= 2 * error
    print(f"\nThe means are {apart:+.4f} apart; at most two standard errors of that, {2 * error:.4f}: ", end="")
    print("pass" if passed else "FAIL")
    if not passed:
        sys.exit(1)


if __name__ == "__main__":
    main()
