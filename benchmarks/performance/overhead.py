"""What a loop costs beside the training itself: the toolkit with everything on, beside five others, on a tiny model.

    python benchmarks/performance/overhead.py
        40 rounds of 200 steps by each loop; two minutes
    python benchmarks/performance/overhead.py --profile toolkit
        where the time of one loop goes, by cProfile

The model is a perceptron of three layers, so small that a step takes a fraction of a millisecond: what is left is the
loop. All take the same data from a `DataLoader` without workers, the same batch size, the fused AdamW over two groups
(biases do not decay), a clipped gradient, a linear schedule and one thread, on the CPU:

- by hand: the loop that one writes in PyTorch;
- Fabric, and Lightning's Trainer, where `lightning` is installed (it is no dependency of this project), and
  Transformers' Trainer: without logging, checkpoints, progress bars and callbacks of theirs;
- plain Accelerate loop: `prepare`, `accumulate`, `backward`, `clip_grad_norm_`, a prepared scheduler;
- toolkit: a run as a user starts it, with run folder, ledger, fingerprint, display and requests to stop. One process
  has no other to watch over it, so there is no watchdog.

Each loop runs in a process of its own and stands still while another one runs. The model itself keeps the time, in the
same way for all: from the first forward pass of a round to that of the step after its last. A loop's overhead is what
its step takes beyond that of the loop by hand in the same round. Exits with 1 if the median of the toolkit's is above
that of the plain Accelerate loop.
"""

import argparse
import cProfile
import os
import pstats
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from statistics import median, quantiles

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

import torch
from machine import machine, table, version_of
from overhead_loops import BATCH, LOOPS, WARM_UP, Pace, Perceptron


class Worker:
    """A loop in a process of its own, which runs when it is told to."""

    def __init__(self, name: str) -> None:
        command = [sys.executable, __file__, "--work", name]
        log = None if name == os.environ.get("SHOW") else subprocess.DEVNULL
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=environment
        )
        self.answer()  # the steps to warm up are done

    def answer(self) -> list[float]:
        """Return the seconds of the round that was begun, and those of the processor."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"{' '.join(self.process.args)} ended with {self.process.wait()}; run it to see why")  # type: ignore[arg-type]
        return [float(word) for word in line.split()]

    def round(self, steps: int) -> list[float]:
        """Run so many steps and return the microseconds of one, and those of the processor."""
        assert self.process.stdin is not None
        print(steps, file=self.process.stdin, flush=True)
        return [1e6 * seconds / steps for seconds in self.answer()]

    def end(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--steps", type=int, default=200, help="steps of one round")
    parser.add_argument("--loops", nargs="+", choices=list(LOOPS), default=list(LOOPS))
    parser.add_argument("--profile", choices=list(LOOPS), help="profile 3,000 steps of this loop and measure nothing")
    parser.add_argument("--work", choices=list(LOOPS), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work or arguments.profile:
        torch.set_num_threads(1)
        work = LOOPS[arguments.work or arguments.profile][2]
        work(Pace(WARM_UP)) if arguments.work else profile(work)
        return
    loops = [name for name in dict.fromkeys(["hand", *arguments.loops]) if find_spec(LOOPS[name][1])]
    missing = [LOOPS[name][0] for name in arguments.loops if name not in loops]
    workers = {name: Worker(name) for name in loops}
    rounds: dict[str, list[list[float]]] = {name: [] for name in loops}
    for number in range(arguments.rounds):
        # Every other round backwards, so that no loop always follows the same one.
        for name in loops if number % 2 == 0 else reversed(loops):
            rounds[name].append(workers[name].round(arguments.steps))
    for worker in workers.values():
        worker.end()
    times, processor = ({name: [both[clock] for both in rounds[name]] for name in loops} for clock in (0, 1))
    over, computed = (
        {name: [own - raw for own, raw in zip(taken[name], taken["hand"], strict=True)] for name in loops}
        for taken in (times, processor)
    )
    print("# What a loop costs beside the training itself\n")
    print(machine() + (f"; lightning {version_of('lightning')}" if "fabric" in loops else "") + "\n")
    print(
        f"{sum(p.numel() for p in Perceptron(lambda: None).parameters()):,} parameters, batches of {BATCH}, one "
        f"thread; {arguments.rounds} rounds of {arguments.steps} steps by each loop in turn. Microseconds per step: "
        "median (quartiles) over the rounds; beyond the loop by hand, of the same round. Processor: what all threads "
        "of the process computed, which other work on the machine disturbs less.\n"
    )
    rows = []
    for name in sorted(loops, key=lambda name: median(times[name])):
        beyond = ["", ""] if name == "hand" else [spread(over[name]), spread(computed[name])]
        rows.append([LOOPS[name][0], spread(times[name]), *beyond])
    print(table(["loop", "one step, us", "beyond the loop by hand, us", "processor, beyond that by hand, us"], rows))
    if missing:
        print(f"\nNot installed here: {', '.join(missing)}.")
    if {"toolkit", "accelerate"} <= set(loops):
        toolkit_costs, plain_costs = median(over["toolkit"]), median(over["accelerate"])
        held = toolkit_costs <= plain_costs
        print(
            f"\nThe toolkit's overhead is at most that of the plain Accelerate loop: {toolkit_costs / plain_costs:.2f} "
            f"of it, {'pass' if held else 'FAIL'}"
        )
        sys.exit(not held)


def profile(work: Callable[[Callable[[], None]], None]) -> None:
    """Print where the time of 3,000 steps goes."""
    steps, profiler = 0, cProfile.Profile()

    def pace() -> None:
        nonlocal steps
        steps += 1
        if steps == WARM_UP:
            profiler.enable()
        if steps == WARM_UP + 3000:
            profiler.disable()
            for order in ("tottime", "cumtime"):
                pstats.Stats(profiler).sort_stats(order).print_stats(60)
            os._exit(0)

    work(pace)


def spread(values: Sequence[float]) -> str:
    """Return the median and the quartiles."""
    if len(values) < 2:
        return f"{values[0]:,.0f}"
    low, middle, high = quantiles(values, n=4)
    return f"{middle:,.0f} ({low:,.0f} to {high:,.0f})"


if __name__ == "__main__":
    main()
