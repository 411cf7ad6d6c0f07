"""What synchronising once per step is worth, and compressing: time and bytes of a step over slow links.

    python benchmarks/performance/links.py
        two machines, four links, 6 minutes on two cores; needs root and iproute2 (see `tests/helpers/machines.py`)
    python benchmarks/performance/links.py --links "1 Gbit/s" --accumulations 1 4
        a part of it

Each machine is a network namespace with one process; `accelerate launch` with the shipped file starts it. The toolkit's
step runs beside a plain Accelerate loop as examples have it: the loss divided by the accumulation, `backward` for every
micro-batch, `optimizer.step` after every k-th. Both train the same model in turns, in the same processes. The
micro-batch stays the same and the global batch grows with the accumulation (1, 4 and 16): that is what one does on a
slow network. Two more runs of the toolkit send their gradients compressed (batch.compress bf16 and powersgd).
Exits with 1 if the toolkit sends more than one set of gradients per step, whatever the accumulation.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "helpers"))

from links_worker import COMPRESSED
from machine import machine, table
from machines import machines, possible

LINKS: dict[str, dict[str, Any]] = {
    "as fast as this machine": {},
    "1 Gbit/s": {"rate": "1gbit"},
    "1 Gbit/s, 20 ms delay": {"rate": "1gbit", "delay": 0.020},
    "100 Mbit/s": {"rate": "100mbit"},
}
# Headers, acknowledgements, signs of life, and the one small sum per step that the processes agree on.
OVERHEAD = 1.05
SECONDS = 600.0


def main() -> None:
    """Measure over every link and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--links", nargs="+", choices=LINKS, default=list(LINKS))
    parser.add_argument("--accumulations", nargs="+", type=int, default=[1, 4, 16])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=2, help="of each loop in a row, in each round")
    arguments = parser.parse_args()
    if reason := possible():
        sys.exit(reason)
    began = time.monotonic()
    found = {link: measure(link, arguments) for link in arguments.links}
    first = next(iter(found.values()))
    size = first["gradients"]
    print("# What synchronising once per step is worth on a slow link\n")
    print(machine() + "\n")
    print(
        f"Two machines with one process each over gloo; {first['parameters']:,} float32 parameters, so "
        f"{size / 1e6:.1f} MB of gradients; micro-batches of {first['micro']} samples; medians of "
        f"{arguments.rounds * arguments.steps} steps after one that is not counted, the two loops in turns. With a "
        f"delay every frame arrives so much later, in each direction. Bytes are those that one machine's network "
        f"device counts. {time.monotonic() - began:.0f} s in all.\n"
    )
    columns = ["link", "accumulation", "toolkit, s per step", "plain loop, s per step", "plain / toolkit"]
    columns += ["toolkit, MB sent per step", "plain loop, MB sent per step"]
    rows, kept = [], True
    compressed_columns = ["link", "accumulation", *(f"{name}, s per step" for name in ("none", *COMPRESSED))]
    compressed_columns += [f"{name}, MB sent per step" for name in ("none", *COMPRESSED)]
    compressed_rows = []
    for link, result in found.items():
        for accumulation in arguments.accumulations:
            mine, plain = (result[loop][str(accumulation)] for loop in ("toolkit", "plain"))
            kept = kept and mine["bytes"] <= OVERHEAD * size
            times = [f"{mine['seconds']:.3f}", f"{plain['seconds']:.3f}", f"{plain['seconds'] / mine['seconds']:.1f}"]
            sent = [f"{loop['bytes'] / 1e6:.1f}" for loop in (mine, plain)]
            rows.append([link, str(accumulation), *times, *sent])
            ways = [result[loop][str(accumulation)] for loop in ("toolkit", *COMPRESSED)]
            seconds, sizes = [f"{way['seconds']:.3f}" for way in ways], [f"{way['bytes'] / 1e6:.2f}" for way in ways]
            compressed_rows.append([link, str(accumulation), *seconds, *sizes])
    print(table(columns, rows))
    print("\nThe toolkit with batch.compress (powersgd of rank 4), in turns with the others:\n")
    print(table(compressed_columns, compressed_rows))
    if not kept:
        sys.exit("the toolkit sent more than one set of gradients in a step")


def measure(link: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what `links_worker.py` found on two machines over a link."""
    with TemporaryDirectory() as folder, machines(2) as network:
        network.shape(1, **LINKS[link])
        output = Path(folder) / "results.json"
        settings = [
            "--rounds",
            arguments.rounds,
            "--steps",
            arguments.steps,
            "--accumulations",
            *arguments.accumulations,
        ]
        began = time.monotonic()
        processes = network.start_all(Path(__file__).with_name("links_worker.py"), output, *map(str, settings))
        codes = network.wait(*processes, timeout=SECONDS)
        print(f"{link}: {time.monotonic() - began:.0f} s", file=sys.stderr)
        if codes != [0, 0]:
            sys.exit(f"{link}: ended with {codes}\n" + "\n".join(process.error_output for process in processes))
        found: dict[str, Any] = json.loads(output.read_text(encoding="utf-8"))
        return found


if __name__ == "__main__":
    main()
