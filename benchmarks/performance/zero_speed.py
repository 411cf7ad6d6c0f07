"""Seconds of a step under DeepSpeed's ZeRO beside FSDP2 and DDP, two processes on the CPU of this machine.

    python benchmarks/performance/zero_speed.py
        each way by its launch file, one after the other and that three times, so that what else the machine does falls
        on all of them; steps of one and of four micro-batches

The network has a few million parameters and micro-batches of two samples, so that a step is mostly what the way itself
costs: collectives over gloo, hooks, and the optimizer. Says nothing of a GPU.
"""

import argparse
import json
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

from machine import accelerate_launch, machine, table

WAYS = {
    "DDP": "cpu",
    "FSDP2": "cpu_fsdp2",
    "ZeRO 1": "cpu_deepspeed_zero1",
    "ZeRO 2": "cpu_deepspeed_zero2",
    "ZeRO 3": "cpu_deepspeed_zero3",
}
ACCUMULATIONS = (1, 4)
WARM, STEPS = 4, 20
MICRO = 2


def main() -> None:
    """Time all ways, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--worker", type=Path, help="be one of the processes, and write here what a step took")
    arguments = parser.parse_args()
    if arguments.worker is not None:
        time_steps(arguments.worker)
        return
    found: dict[tuple[str, int], list[float]] = defaultdict(list)
    with TemporaryDirectory() as scratch:
        for _ in range(arguments.rounds):
            for way, config in WAYS.items():
                output = Path(scratch) / "seconds.json"
                more = ["--fsdp_transformer_layer_cls_to_wrap", "Linear"] if way == "FSDP2" else []
                command = [*accelerate_launch(sys.executable, 2, config), "--main_process_port", "0", *more]
                subprocess.run([*command, __file__, "--worker", str(output)], check=True, capture_output=True)
                for number, seconds in json.loads(output.read_text(encoding="utf-8")).items():
                    found[way, int(number)].append(seconds)
    print("# Seconds of a step under ZeRO, FSDP2 and DDP\n")
    print(machine() + "\n")
    print(
        f"Median of {STEPS} steps, and of {arguments.rounds} rounds in which the ways take turns; two processes, "
        "float32.\n"
    )
    rows = []
    for way in WAYS:
        cells = []
        for number in ACCUMULATIONS:
            times = found[way, number]
            # Each round by itself: what else the machine does is much the same within one.
            ratios = [mine / other for mine, other in zip(times, found["DDP", number], strict=True)]
            cells += [
                f"{1000 * median(times):.0f} ms",
                f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
            ]
        rows.append([way, *cells])
    columns = [text for number in ACCUMULATIONS for text in (f"{number} micro-batch(es)", "over DDP")]
    print(table(["way", *columns], rows))


def time_steps(output: Path) -> None:
    """Write the median seconds of a step, by the number of its micro-batches."""
    from links_worker import task

    from toolkit import BatchConfig, Config
    from toolkit.data.loader import LoadedMicroBatch
    from toolkit.distributed.counts import count_micro_batches
    from toolkit.distributed.start_runtime import start_runtime
    from toolkit.loop import global_batches, train_step
    from toolkit.prepare import prepare
    from toolkit.train_state import TrainState

    runtime = start_runtime(Config(threads=1))

    def seconds(training: TrainState, step: int, micro_batches: list[LoadedMicroBatch]) -> float:
        began = time.perf_counter()
        agreed = runtime.all_reduce_counts(count_micro_batches(micro_batches))
        train_step(training, step, micro_batches, agreed.units)
        return time.perf_counter() - began

    found = {}
    for number in ACCUMULATIONS:
        batch = BatchConfig(size=runtime.data_parallel_size * MICRO * number, micro=MICRO, balance=False)
        training = prepare(task(), Config(batch=batch, steps=WARM + STEPS, epochs=None), runtime)
        times = [seconds(training, step, micro_batches) for step, micro_batches in global_batches(training)]
        found[number] = median(times[WARM:])
        runtime.accelerator.free_memory()
    if runtime.is_main:
        output.write_text(json.dumps(found), encoding="utf-8")
    runtime.close()


if __name__ == "__main__":
    main()
