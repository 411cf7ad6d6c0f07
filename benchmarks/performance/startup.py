"""How long a recipe takes to answer `--help` and a mistyped flag, beside the import of a Transformers model class.

    python benchmarks/performance/startup.py
        each command ten times, in turn; a minute or two
    python benchmarks/performance/startup.py --repeats 3

Exits with 1 if an answer takes longer than 1.0 times the import, or is not the one expected.
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

from machine import machine, table

BOUND = 1.0
RECIPE = str(Path(__file__).parents[2] / "recipes" / "classify.py")
IMPORT = "from transformers import AutoModelForSequenceClassification"
# What is run, its exit code, and a word of its answer.
COMMANDS: dict[str, tuple[list[str], int, str]] = {
    f'python -c "{IMPORT}"': (["-c", IMPORT], 0, ""),
    "python recipes/classify.py --help": ([RECIPE, "--help"], 0, "--optim.lr"),
    "python recipes/classify.py --optim.lrr 1": ([RECIPE, "--optim.lrr", "1"], 2, "optim.lr"),
}


def main() -> None:
    """Time the commands in turn, so that a change of the machine's speed meets all of them, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=10)
    arguments = parser.parse_args()
    seconds: dict[str, list[float]] = {name: [] for name in COMMANDS}
    # Once without a clock: the first import reads from the disk.
    for number in range(arguments.repeats + 1):
        for name, (words, code, answer) in COMMANDS.items():
            started = time.perf_counter()
            done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
            if number > 0:
                seconds[name].append(time.perf_counter() - started)
            if done.returncode != code or answer not in done.stdout + done.stderr:
                sys.exit(f"{name} ended with {done.returncode}, not {code}:\n{done.stdout}\n{done.stderr}")
    medians = {name: median(values) for name, values in seconds.items()}
    reference, *answers = medians.values()
    rows = [
        [
            f"`{name}`",
            f"{value:.2f}",
            f"{min(seconds[name]):.2f}",
            f"{max(seconds[name]):.2f}",
            f"{value / reference:.2f}",
        ]
        for name, value in medians.items()
    ]
    passed = max(answers) <= BOUND * reference
    print("# The time to an answer\n")
    print(machine() + "\n")
    print(f"Each command {arguments.repeats} times in turn, after one that is not counted.\n")
    print(table(["command", "median, s", "fastest, s", "slowest, s", "of the import"], rows))
    print(f"\nAt most {BOUND} times the import: {'pass' if passed else 'FAIL'}")
    if not passed:
        sys.exit(1)


if __name__ == "__main__":
    main()
