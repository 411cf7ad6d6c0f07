"""A run stopped in the middle of an epoch under each way to spread a model, and resumed under each other.

    python benchmarks/fault_tolerance/every_layout.py
        10 layouts to each of 10 = 100 pairs of a small network in float64
    python benchmarks/fault_tolerance/every_layout.py --layouts "one process" "FSDP2 on 4" "data parallel on 2"
        a part of it

For each pair: the ledger of the resumed run beside that of an undisturbed one in one process (samples of every step,
the largest relative difference of losses and gradient norms), and the final weights. Exits with 1 beyond the bound or
if a sample was seen twice or never. DeepSpeed's ZeRO keeps float32 weights, so a pair with it has another bound, which
counts the roundings of its steps (`benchmarks/numerics/strategies.py`); stage 3 gathers every weight here.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

import torch
from machine import machine, table
from safetensors.torch import load_file
from zero import NOTHING_KEPT, bound_of_zero

ROOT = Path(__file__).parents[2]
TINY = ROOT / "tests" / "helpers" / "tiny_recipe.py"
# Launch file and processes; micro-batches differ too.
LAYOUTS: dict[str, tuple[str | None, int, str]] = {
    "one process": (None, 1, "null"),
    "data parallel on 2": ("cpu", 2, "3"),
    "FSDP2 on 2": ("cpu_fsdp2", 2, "2"),
    "FSDP2 on 4": ("cpu_fsdp2", 4, "1"),
    "hybrid 2 x 2": ("cpu_fsdp2_hybrid", 4, "null"),
    "tensor on 2": ("cpu_tensor", 2, "3"),
    "ZeRO 1 on 2": ("cpu_deepspeed_zero1", 2, "3"),
    "ZeRO 2 on 4": ("cpu_deepspeed_zero2", 4, "null"),
    "ZeRO 3 on 2": ("cpu_deepspeed_zero3", 2, "2"),
    "tensor x data 2 x 2": ("cpu_tensor_and_data", 4, "2"),
}
# 45 samples in batches of 8, five epochs: 30 steps, the last of each epoch with five samples.
SETTINGS = ["--epochs", "5", "--evaluate.every", "10", "--threads", "1", "--checkpoint.every", "100"]
STEPS, STOP_AFTER = 30, 13
BOUNDS = {"float64": 1e-12, "ZeRO": bound_of_zero(STEPS)}


def main() -> None:
    """Run every pair and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layouts", nargs="+", choices=LAYOUTS, default=list(LAYOUTS))
    arguments = parser.parse_args()
    started, worst, wrong = time.monotonic(), dict.fromkeys(BOUNDS, 0.0), []
    with TemporaryDirectory() as scratch:
        whole = Path(scratch) / "whole"
        run("one process", whole, stop=None)
        rows = []
        for before in arguments.layouts:
            stopped = Path(scratch) / "stopped"
            run(before, stopped, stop=STOP_AFTER)
            cells = []
            for after in arguments.layouts:
                resumed = Path(scratch) / "resumed"
                shutil.copytree(stopped, resumed)
                run(after, resumed, stop=None)
                apart, same = compare(resumed, whole)
                kind = "ZeRO" if "ZeRO" in before + after else "float64"
                worst[kind] = max(worst[kind], *apart)
                if not same:
                    wrong.append(f"{before} to {after}")
                cells.append(f"{max(apart):.0e}" if same else "OTHER SAMPLES")
                print(before, "to", after, *apart, same, file=sys.stderr, flush=True)
                shutil.rmtree(resumed)
            rows.append([before, *cells])
            shutil.rmtree(stopped)
    print("# Stopped under one layout, resumed under another\n")
    print(machine() + "\n")
    print(
        f"Stopped after step {STOP_AFTER} of {STEPS}, in the middle of an epoch. The largest relative difference of "
        "final weights, losses and gradient norms from an undisturbed run in one process; the samples of every step "
        f"are the same unless it says otherwise. {len(rows) ** 2} pairs, {time.monotonic() - started:.0f} s in all.\n"
    )
    print(table(["stopped under, resumed under", *arguments.layouts], rows))
    print(
        f"\nThe largest of all: {worst['float64']:.1e} (at most {BOUNDS['float64']:.1e}), and with ZeRO "
        f"{worst['ZeRO']:.1e} (at most {BOUNDS['ZeRO']:.1e})."
    )
    if wrong or any(worst[kind] > bound for kind, bound in BOUNDS.items()):
        sys.exit(f"beyond the bounds {BOUNDS}: {worst}; other samples: {wrong}")


def run(layout: str, folder: Path, stop: int | None) -> None:
    """Run the tiny recipe until it ends or has been asked to stop."""
    file, processes, micro = LAYOUTS[layout]
    words = [sys.executable]
    if file is not None:
        words += [
            "-m",
            "accelerate.commands.launch",
            "--config_file",
            str(ROOT / "accelerate_configs" / f"{file}.yaml"),
        ]
        words += ["--num_processes", str(processes), "--main_process_port", "0"]
        words += NOTHING_KEPT if "zero3" in file else []
    words += [str(TINY), *SETTINGS, "--output", str(folder), "--batch.micro", micro]
    stopping = {} if stop is None else {"TINY_STOP_AFTER": str(stop)}
    done = subprocess.run(words, env={**os.environ, **stopping}, capture_output=True, text=True, check=False)
    record: dict[str, Any] = json.loads((folder / "run.json").read_text())
    if record["status"] != ("finished" if stop is None else "preempted"):
        sys.exit(f"{layout}: {record['status']}\n{done.stdout}\n{done.stderr}")


def compare(found: Path, expected: Path) -> tuple[list[float], bool]:
    """Return how far weights, losses and norms are apart, and whether every step had the same samples."""
    one, other = (load_file(folder / "model" / "model.safetensors") for folder in (found, expected))
    mine, theirs = (torch.cat([tensors[name].flatten() for name in sorted(tensors)]) for tensors in (one, other))
    rows, wanted = (
        [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]
        for folder in (found, expected)
    )
    same = [(r["step"], r["fingerprint"], r["units"]) for r in rows] == [
        (r["step"], r["fingerprint"], r["units"]) for r in wanted
    ]
    apart = [float((mine - theirs).norm() / theirs.norm())]
    for key in ("loss", "gradient_norm"):
        apart.append(max(abs(a[key] / b[key] - 1) for a, b in zip(rows, wanted, strict=False)))
    return apart, same


if __name__ == "__main__":
    main()
