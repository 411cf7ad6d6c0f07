"""How much memory training and evaluation take against the number of samples: 10^4, 10^5 and 10^6.

    python benchmarks/performance/sample_memory.py
        a classifier of texts on files of so many rows; a quarter of an hour on two cores
    python benchmarks/performance/sample_memory.py --rows 10000 100000

Each run is a recipe as a user starts it, on a csv file written here: "training" takes 50 steps with so many rows to
draw from and few to evaluate, "evaluation" the other way round. Counted is the most memory of the process that is its
own (RssAnon, read 20 times a second): what it maps from files on the disk, which the system gives back whenever it is
needed elsewhere, is not. "reading" is the most before the first step, when texts become tokens.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

from machine import machine, table

ROOT = Path(__file__).parents[2]
FEW, STEPS, CLASSES = 1000, 50, 8
SECONDS_BETWEEN_LOOKS = 0.05


def main() -> None:
    """Run everything and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", type=int, default=[10**4, 10**5, 10**6])
    arguments = parser.parse_args()
    rows = []
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write(folder / "few.csv", FEW)
        for count in arguments.rows:
            write(folder / "many.csv", count)
            for part, train, evaluate in (("training", "many", "few"), ("evaluation", "few", "many")):
                reading, working, seconds = peaks(folder, train, evaluate)
                rows.append((part, count, f"{reading / 1e6:.0f}", f"{working / 1e6:.0f}", f"{seconds:.0f}"))
                print(*rows[-1], file=sys.stderr, flush=True)
    print("# Memory against the number of samples\n")
    print(machine() + "\n")
    columns = ["of", "rows", "reading, MB", f"{STEPS} steps and evaluation, MB", "seconds"]
    print(table(columns, [[part, f"{count:,}", *figures] for part, count, *figures in sorted(rows)]))


def write(path: Path, rows: int) -> None:
    """Write so many texts of 3 to 30 words with a class each, from a fixed seed."""
    draw = random.Random(0)
    words = [f"{a}{b}" for a in "bdfgklmnprst" for b in ("a", "e", "i", "o", "u", "an", "er", "il")]
    with path.open("w", encoding="utf-8") as file:
        file.write("text,label\n")
        for _ in range(rows):
            file.write(f"{' '.join(draw.choices(words, k=draw.randint(3, 30)))},class {draw.randrange(CLASSES)}\n")


def peaks(folder: Path, train: str, evaluate: str) -> tuple[int, int, float]:
    """Return the most bytes before the first step and after it, and the seconds of the whole run."""
    output = folder / f"{train}-{evaluate}-{os.urandom(4).hex()}"
    data = ["--data.train", str(folder / f"{train}.csv"), "--data.eval", str(folder / f"{evaluate}.csv")]
    settings = ["--epochs", "null", "--steps", str(STEPS), "--threads", "1", "--batch.eval", "256"]
    command = [sys.executable, str(ROOT / "recipes" / "classify.py"), *data, *settings, "--output", str(output)]
    # Texts become tokens in each run anew.
    cache = {**os.environ, "OMP_NUM_THREADS": "1", "FINETUNE_TOOLKIT_CACHE": str(output) + "-cache"}
    begun = time.monotonic()
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=cache)
    before = after = 0
    while process.poll() is None:
        has_begun = (output / "ledger.jsonl").exists() and (output / "ledger.jsonl").stat().st_size > 0
        if has_begun:
            after = max(after, own_memory(process.pid))
        else:
            before = max(before, own_memory(process.pid))
        time.sleep(SECONDS_BETWEEN_LOOKS)
    if process.returncode:
        sys.exit((folder / "log").read_text(encoding="utf-8"))
    assert json.loads((output / "run.json").read_text(encoding="utf-8"))["status"] == "finished"
    return before, after, time.monotonic() - begun


def own_memory(process: int) -> int:
    """Return the bytes that a process has in memory and that come from no file."""
    try:
        lines = Path(f"/proc/{process}/status").read_text(encoding="ascii").splitlines()
        return 1024 * int(next(line for line in lines if line.startswith("RssAnon:")).split()[1])
    except (OSError, StopIteration):  # it has just ended
        return 0


if __name__ == "__main__":
    main()
