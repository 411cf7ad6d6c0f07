"""How many of many two-process trainings end as they should: exit code 0, and a run folder that says finished.

    python benchmarks/fault_tolerance/clean_exits.py
        100 trainings through `accelerate launch`, about 5 s each on two cores
    python benchmarks/fault_tolerance/clean_exits.py --runs 5

A process that leaves while a thread of gloo still serves another one aborts ("terminate called without an active
exception", SIGABRT), after the work is done; the launcher then reports a failed run. It happens now and then: only many
runs show that it does not. The output of each run that did not end well is printed. Exits with 1 if there is one.
"""

import argparse
import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

from machine import accelerate_launch, machine, table


def main() -> None:
    """Run the trainings one after another and print the count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    endings: Counter[str] = Counter()
    seconds = []
    for number in range(1, arguments.runs + 1):
        started = time.monotonic()
        ending, output = train_once(arguments.processes)
        seconds.append(time.monotonic() - started)
        endings[ending] += 1
        if ending != CLEAN:
            print(f"run {number}: {ending}\n{output}", file=sys.stderr)
        if number % 10 == 0:
            print(f"{number} of {arguments.runs}: {dict(endings)}", file=sys.stderr)
    print(f"# {arguments.runs} trainings in {arguments.processes} processes: how they ended\n")
    print(machine() + "\n")
    print(f"Median of {median(seconds):.1f} s for one training, from the start of the launcher to its exit.\n")
    print(table(["ending", "trainings"], [[ending, str(count)] for ending, count in endings.most_common()]))
    if set(endings) != {CLEAN}:
        sys.exit(1)


CLEAN = "exit code 0, run finished by all processes"


def train_once(processes: int) -> tuple[str, str]:
    """Run one training in a folder of its own; return how it ended and what it printed."""
    with TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        recipe = Path(__file__).with_name("tiny.py")
        command = [*accelerate_launch(sys.executable, processes), str(recipe), "--output", str(run)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        record = run / "run.json"
        said = json.loads(record.read_text(encoding="utf-8")) if record.is_file() else {}
    trained_by = [start["processes"] for start in said.get("topology", [])]
    output = done.stdout + done.stderr
    if done.returncode == 0 and said.get("status") == "finished" and trained_by == [processes]:
        return CLEAN, output
    return f"exit code {done.returncode}, status {said.get('status')}, trained by {trained_by} process(es)", output


if __name__ == "__main__":
    main()
