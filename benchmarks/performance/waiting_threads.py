"""What threads that wait for each other cost: alone on two cores, and beside another process that is busy.

    python benchmarks/performance/waiting_threads.py
        a small and a middling transformer, trained on two threads, with OpenMP's own setting, with the one that
        importing `toolkit` makes, and with OMP_WAIT_POLICY=passive; each three times in turn; about six minutes
    python benchmarks/performance/waiting_threads.py --repeats 1

Both cores should be free. Exits with 1 if the toolkit's setting takes more than half the time of OpenMP's beside a busy
process, or more than that of OMP_WAIT_POLICY=passive alone.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

from machine import machine, table

from toolkit.environment import SPINS

LIMIT = 45.0
SIZES = {"small": (64, 16, 32, 150), "middling": (128, 32, 48, 40)}
SETTINGS = {
    "OpenMP's own": {},
    f"GOMP_SPINCOUNT={SPINS} (the toolkit's)": {"GOMP_SPINCOUNT": SPINS},
    "OMP_WAIT_POLICY=passive": {"OMP_WAIT_POLICY": "passive"},
}
TRAINING = """
import sys, time, torch
width, batch, length, steps = map(int, sys.argv[1:])
torch.set_num_threads(2)
layer = torch.nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True, dropout=0.0)
model = torch.nn.TransformerEncoder(layer, 3)
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
samples = torch.randn(batch, length, width)
for step in range(-5, steps):
    if step == 0:
        begun = time.perf_counter()
    model(samples).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()
print(time.perf_counter() - begun)
"""


def main() -> None:
    """Train alone and beside a busy process, each setting in turn, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    repeats = parser.parse_args().repeats
    rows, passed = [], True
    for neighbour in ("alone", "beside a busy process"):
        busy = None if neighbour == "alone" else subprocess.Popen([sys.executable, "-c", "while True: pass"])
        try:
            for size in SIZES:
                seconds: dict[str, list[float]] = {name: [] for name in SETTINGS}
                for _ in range(repeats):
                    for name in SETTINGS:
                        seconds[name].append(trained(size, SETTINGS[name]))
                own, ours, passive = (median(times) for times in seconds.values())
                passed = passed and (ours <= passive if busy is None else ours <= own / 2)
                rows.append([f"{size}, {neighbour}", *map(shown, (own, ours, passive)), f"{ours / own:.2f}"])
        finally:
            if busy is not None:
                busy.kill()
                busy.wait()
    print("# Threads that wait\n")
    print(machine() + "\n")
    print(f"Seconds, the median of {repeats}, in turn; at {LIMIT:g} s a training is ended.\n")
    print(table(["training", *SETTINGS, "the toolkit's, of OpenMP's own"], rows))
    print(
        "\nAt most half of OpenMP's own beside a busy process, and at most the time of passive alone: "
        f"{'pass' if passed else 'FAIL'}"
    )
    if not passed:
        sys.exit(1)


def trained(size: str, setting: dict[str, str]) -> float:
    """Return the seconds of a training in a process of its own."""
    environment = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")} | setting
    words = [sys.executable, "-c", TRAINING, *map(str, SIZES[size])]
    try:
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return LIMIT
    return float(done.stdout)


def shown(seconds: float) -> str:
    """Return seconds in words for the table."""
    return f"more than {LIMIT:g}" if seconds >= LIMIT else f"{seconds:.2f}"


if __name__ == "__main__":
    main()
