"""What it costs to know the next micro-batch of one process among a thousand, for a billion samples and for few.

    python benchmarks/performance/order_scale.py
        10^5 and 10^9 samples, global batch 8,192, process 1,023 of 1,024, lengths known and unknown; half a minute
    python benchmarks/performance/order_scale.py --steps 3

Timed is what a run does: the toolkit's sampler behind the shard that `Accelerator.prepare` makes of it, up to the
micro-batch of the last process. "First" is a run's first micro-batch, right after the imports; "any step" a sampler
that starts at a random step of the first ten epochs, which is what a resume does; "next step" what a training loop
waits for, if no worker computes it ahead. Each case runs in a process of its own. Memory is the peak of what Python and
numpy allocate (tracemalloc), and by how much the process grew (resident set). Lengths, where they are known, are a
function of the id, so that the source itself takes no memory.
"""

import argparse
import json
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

import numpy as np
import psutil
from accelerate.data_loader import BatchSamplerShard
from machine import machine, table

from toolkit.data.loader import MicroBatchSampler
from toolkit.data.micro_batches import MicroBatch
from toolkit.data.order import ShuffledOrder, mix64

EPOCHS = 10
SHORTEST, LONGEST = 16, 2048


class Imagined:
    """So many samples, of which only the lengths are asked for."""

    def __init__(self, samples: int, lengths_known: bool) -> None:
        self.samples = samples
        self.lengths_known = lengths_known

    def __len__(self) -> int:
        return self.samples

    def fetch(self, ids: Sequence[int]) -> list[Any]:
        """Is never called."""
        raise NotImplementedError

    def lengths(self, ids: np.ndarray) -> np.ndarray | None:
        """Return lengths that follow from the ids."""
        if not self.lengths_known:
            return None
        return (SHORTEST + mix64(ids.astype(np.uint64)) % np.uint64(LONGEST - SHORTEST)).astype(np.int64)

    def digest(self) -> str:
        """Return what the content follows from."""
        return f"imagined-{self.samples}"


def main() -> None:
    """Measure each case in a fresh process and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", nargs="+", type=int, default=[10**5, 10**9])
    parser.add_argument("--batch", type=int, default=8192, help="global batch")
    parser.add_argument("--processes", type=int, default=1024)
    parser.add_argument("--micro", type=int, default=4, help="samples that a process runs at once")
    parser.add_argument("--steps", type=int, default=50, help="random steps that are tried")
    parser.add_argument("--repeats", type=int, default=5, help="fresh processes per case, for the first micro-batch")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case is not None:
        print(json.dumps(measure(arguments, **json.loads(arguments.case))))
        return
    rows = []
    for lengths_known in (False, True):
        for samples in arguments.samples:
            case = json.dumps({"samples": samples, "lengths_known": lengths_known})
            command = [sys.executable, *sys.argv, "--case", case]
            runs = [
                json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
                for _ in range(arguments.repeats)
            ]
            middle = {name: median(run[name] for run in runs) for name in runs[0]}
            rows.append(
                [
                    f"{samples:,}",
                    "known, cut by length" if lengths_known else "unknown",
                    *(f"{middle[name]:.1f}" for name in COLUMNS),
                ]
            )
    print("# The order at scale\n")
    print(machine() + "\n")
    print(
        f"Global batch {arguments.batch:,}, process {arguments.processes - 1:,} of {arguments.processes:,}, "
        f"batch.micro {arguments.micro}; median of {arguments.repeats} fresh processes, in each the median of "
        f"{arguments.steps} random steps of {EPOCHS} epochs (and the slowest).\n"
    )
    print(table(["samples", "lengths", *COLUMNS.values()], rows))


COLUMNS = {
    "first": "first micro-batch, ms",
    "seek": "any step, ms",
    "slowest": "slowest of these, ms",
    "next": "next step, ms",
    "allocated": "peak allocated, MiB",
    "grown": "process grew by, MiB",
}


def measure(arguments: argparse.Namespace, samples: int, lengths_known: bool) -> dict[str, float]:
    """Return the figures of one case, in milliseconds and MiB."""
    source = Imagined(samples, lengths_known)
    order = ShuffledOrder(samples, arguments.batch, seed=0)
    total = EPOCHS * order.steps_per_epoch

    def shard(first: int) -> Iterator[MicroBatch]:
        sampler = MicroBatchSampler(
            order, source, arguments.processes, total, first=first, micro=arguments.micro, balance=True
        )
        return iter(BatchSamplerShard(sampler, arguments.processes, arguments.processes - 1, even_batches=False))

    def timed(micro_batches: Iterator[MicroBatch], count: int = 1) -> tuple[float, list[MicroBatch]]:
        started = time.perf_counter()
        taken = list(islice(micro_batches, count))
        return 1000 * (time.perf_counter() - started), taken

    before = resident()
    first, taken = timed(shard(0))
    assert taken[0].step == 0
    # Evenly spread, with a stride that meets no period of the epoch: the same steps in every process.
    steps = [int(number) for number in mix64(np.arange(arguments.steps, dtype=np.uint64)) % np.uint64(total - 1)]
    seeks, following = [], []
    for step in steps:
        micro_batches = shard(step)
        seconds, taken = timed(micro_batches)
        seeks.append(seconds)
        assert taken[0].step == step
        # The rest of this step, so that the one after it begins.
        list(islice(micro_batches, taken[0].accumulation - 1))
        seconds, taken = timed(micro_batches)
        following.append(seconds)
        assert taken[0].step == step + 1
    grown = resident() - before
    tracemalloc.start()
    for step in steps[:3]:
        timed(shard(step))
    allocated = tracemalloc.get_traced_memory()[1] / 2**20
    return {
        "first": first,
        "seek": median(seeks),
        "slowest": max(seeks),
        "next": median(following),
        "allocated": allocated,
        "grown": grown,
    }


def resident() -> float:
    """Return the resident set of this process in MiB."""
    return float(psutil.Process().memory_info().rss) / 2**20


if __name__ == "__main__":
    main()
