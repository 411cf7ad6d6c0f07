"""The bytes that a step hands to collectives, counted in real processes on CPU.

    python benchmarks/performance/gradient_bytes.py
        distributed data parallel and FSDP2 on two processes, hybrid sharding on four, by the launch files of
        accelerate_configs/, with 1, 4 and 16 micro-batches in a step: the toolkit, the toolkit with batch.reduce_each,
        and a plain loop in which every backward pass sends; ZeRO 1, 2 and 3 on two processes, in the toolkit alone
    python benchmarks/performance/gradient_bytes.py --ways "ZeRO 1" "ZeRO 2" "ZeRO 3" --accumulations 1 4

What is counted is what one process is given to send in a step: DDP's buckets (communication hook), what FSDP2 reduces
and scatters, gathers, and adds up between the copies of hybrid sharding (`set_custom_reduce_scatter`,
`set_custom_all_gather`, `set_all_reduce_hook`), and under ZeRO all that is handed to the collectives of torch. Exits
with 1 if the gradients of a step are not, to the byte, one set of float32 gradients whatever the number of
micro-batches, or, in the two other loops and under ZeRO 2 and 3, one set for each; or if the weights that ZeRO gathers
differ from its formula by more than a hundredth. "Nothing kept" is ZeRO 3 as with a model of more than 1,000 million
weights: a smaller one stays whole from the forward to the backward pass.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

from links_worker import network
from machine import machine, table
from zero import NOTHING_KEPT

CONFIGS = Path(__file__).parents[2] / "accelerate_configs"
FLOAT32 = 4
# Launch file, processes, further words for the launcher, and over how many processes one copy is sharded.
WAYS: dict[str, tuple[str, int, list[str], int]] = {
    "DDP": ("cpu", 2, [], 1),
    "DDP, bf16": ("cpu", 2, ["--mixed_precision", "bf16"], 1),
    "FSDP2": ("cpu_fsdp2", 2, [], 2),
    "FSDP2, bf16": ("cpu_fsdp2", 2, ["--mixed_precision", "bf16"], 2),
    "hybrid, 2 x 2": ("cpu_fsdp2_hybrid", 4, [], 2),
    "ZeRO 1": ("cpu_deepspeed_zero1", 2, [], 2),
    "ZeRO 2": ("cpu_deepspeed_zero2", 2, [], 2),
    "ZeRO 3": ("cpu_deepspeed_zero3", 2, [], 2),
    "ZeRO 3, nothing kept": ("cpu_deepspeed_zero3", 2, NOTHING_KEPT, 2),
    "ZeRO 2, bf16": ("cpu_deepspeed_zero2", 2, ["--mixed_precision", "bf16"], 2),
    "ZeRO 3, bf16": ("cpu_deepspeed_zero3", 2, ["--mixed_precision", "bf16"], 2),
}
LOOPS = ("toolkit", "batch.reduce_each", "plain")
KINDS = ("gradients", "between copies", "weights gathered")


def main() -> None:
    """Count, compare, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--accumulations", nargs="+", type=int, default=[1, 4, 16])
    arguments = parser.parse_args()
    started, numbers = time.monotonic(), arguments.accumulations
    parameters = sum(parameter.numel() for parameter in network().parameters())
    rows, exact = [], True
    for way in arguments.ways:
        found = counted(way, numbers)
        rows += list(rows_of(way, found, parameters, numbers))
        check = zero_holds if "zero" in WAYS[way][0] else holds
        exact = exact and check(found, parameters, numbers, WAYS[way])
    print("# Bytes of a step, as the communication hooks see them\n")
    print(machine() + "\n")
    print(
        f"A network of {parameters:,} float32 parameters: one set of gradients is {FLOAT32 * parameters:,} bytes. "
        f"Bytes per parameter and process in one step of {', '.join(map(str, numbers))} micro-batches; "
        f"{time.monotonic() - started:.0f} s in all.\n"
    )
    print(table(["way, loop", *(f"{kind}: {n}" for kind in KINDS for n in numbers)], rows))
    print("\nSets of gradients as they have to be, to the byte: " + ("yes." if exact else "NO."))
    sys.exit(0 if exact else 1)


def counted(way: str, numbers: list[int]) -> dict[str, dict[str, dict[str, int]]]:
    """Return the bytes of a step by loop, number of micro-batches, and kind."""
    file, processes, more, _ = WAYS[way]
    command = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(CONFIGS / f"{file}.yaml")]
    command += ["--num_processes", str(processes), "--main_process_port", "0", *more]
    if "fsdp2" in file:
        command += ["--fsdp_transformer_layer_cls_to_wrap", "Linear"]
    worker = str(Path(__file__).with_name("gradient_bytes_worker.py"))
    found: dict[str, Any] = {}
    for words in [["--toolkit-alone"]] if "zero" in file else ([], ["--reduce-each"]):
        with TemporaryDirectory() as scratch:
            output = Path(scratch) / "bytes.json"
            whole = [*command, worker, str(output), *words, "--accumulations", *map(str, numbers)]
            done = subprocess.run(whole, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                sys.exit(f"{' '.join(whole)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
            found |= json.loads(output.read_text(encoding="utf-8"))
    return found


def rows_of(way: str, found: dict[str, Any], parameters: int, numbers: list[int]) -> Iterator[list[str]]:
    """Yield a row for each loop, in bytes per parameter."""
    for loop in found:
        cells = [found[loop][str(number)][kind] / parameters for kind in KINDS for number in numbers]
        yield [f"{way}, {loop}", *(f"{cell:.4g}" if cell else "-" for cell in cells)]


def holds(found: dict[str, Any], parameters: int, numbers: list[int], way: tuple[str, int, list[str], int]) -> bool:
    """Return whether all gradients are what they have to be, to the byte."""
    _, processes, _, shard = way
    copies = processes // shard if shard > 1 else 1
    for loop in LOOPS:
        for number in numbers:
            sets = 1 if loop == "toolkit" else number
            whole = sets * FLOAT32 * parameters
            between = whole // shard if copies > 1 else 0
            seen = found[loop][str(number)]
            if (seen["gradients"], seen["between copies"]) != (whole, between):
                return False
    return True


def zero_holds(
    found: dict[str, Any], parameters: int, numbers: list[int], way: tuple[str, int, list[str], int]
) -> bool:
    """Return whether gradients and weights under ZeRO are what the formulas of `parallel_costs.py` count."""
    file, _, more, _ = way
    stage, weight = int(file[-1]), FLOAT32 // 2 if "bf16" in more else FLOAT32
    for number in numbers:
        seen = found["toolkit"][str(number)]
        gathers = 1 if stage < 3 else number * (2 if more == NOTHING_KEPT else 1)
        expected = gathers * weight * parameters
        if seen["gradients"] != (1 if stage == 1 else number) * FLOAT32 * parameters:
            return False
        if abs(seen["weights gathered"] - expected) > expected / 100:
            return False
    return True


if __name__ == "__main__":
    main()
