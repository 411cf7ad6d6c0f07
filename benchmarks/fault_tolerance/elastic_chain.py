"""A run that is moved between process counts, stopped in mid-epoch each time, against one that is left alone.

    python benchmarks/fault_tolerance/elastic_chain.py
        2, 1, 4 and 2 processes, a BERT classifier and a Llama in float64 with dropout; 3 minutes on two cores
    python benchmarks/fault_tolerance/elastic_chain.py --models BERT --chain 1 2 --samples 45

Both see the same samples in the same steps; the weights, losses and gradient norms differ by rounding alone; and over
all parts of the chain every sample passes through the model exactly once in each epoch. Exits with 1 if not.
"""

import argparse
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

import torch
from machine import accelerate_launch, machine, table
from safetensors.torch import load_file
from topology_models import MODELS
from topology_work import furthest

from toolkit.data.order import ShuffledOrder
from toolkit.output.ledger import read_ledger
from toolkit.output.run_folder import read_record, sealed_folders

RECIPE = Path(__file__).with_name("elastic_recipe.py")
BATCH, EPOCHS = 16, 2
# The last batch of an epoch has 5 samples: enough for four processes, so that no spare copy runs beside them.
SAMPLES = 213


def main() -> None:
    """Run chain and undisturbed run for each model, and print how far they are apart."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["BERT", "Llama"])
    parser.add_argument("--chain", nargs="+", type=int, default=[2, 1, 4, 2])
    parser.add_argument("--samples", type=int, default=SAMPLES)
    arguments = parser.parse_args()
    rows, failed = [], False
    with TemporaryDirectory() as place:
        for model in arguments.models:
            row, kept = compare(model, arguments.chain, arguments.samples, Path(place) / model)
            rows.append(row)
            failed = failed or not kept
    chain = " -> ".join(map(str, arguments.chain))
    print(f"# One run on {chain} processes, stopped in the middle of an epoch each time\n\n{machine()}\n")
    print("Largest relative difference from the run that one process did without a stop:\n")
    names = ["model", "stopped after steps", "weights", "loss", "gradient norm", "same samples in each step"]
    print(table([*names, "each sample once per epoch", "bound (weights)"], rows))
    if failed:
        sys.exit(1)


def compare(model: str, chain: list[int], samples: int, place: Path) -> tuple[list[str], bool]:
    """Return the row of one model, and whether the promise is kept."""
    place.mkdir()
    seen = place / "seen"
    seen.mkdir()
    order = ShuffledOrder(samples, BATCH, 0)
    total = EPOCHS * order.steps_per_epoch
    alone, moved = place / "alone", place / "moved"
    start(1, model, samples, alone)
    stops = []
    for number, processes in enumerate(chain, start=1):
        stop = total * number // len(chain)
        # Not at the edge of an epoch: in the middle of one.
        stop -= stop % order.steps_per_epoch == 0
        last = number == len(chain)
        start(processes, model, samples, moved, **({} if last else {"STOP_AT": str(stop + 1)}), SEEN=str(seen))
        record = read_record(moved)
        assert record["status"] == ("finished" if last else "preempted"), record
        assert len(record["topology"]) == number
        if not last:
            stops.append(record["step"])
    weights, others = final_weights(moved), final_weights(alone)
    apart = float((weights - others).norm() / others.norm())
    rows, other_rows = list(read_ledger(moved / "ledger.jsonl")), list(read_ledger(alone / "ledger.jsonl"))
    loss, norm = (
        furthest([row[name] for row in rows], [row[name] for row in other_rows]) for name in ("loss", "gradient_norm")
    )
    same = [row["fingerprint"] for row in rows] == [row["fingerprint"] for row in other_rows]
    once = each_once(seen, samples, order.steps_per_epoch)
    mid_epoch = all(stop % order.steps_per_epoch for stop in stops)
    kept = same and once and mid_epoch and max(apart, loss, norm) < MODELS[model].bound
    return (
        [
            model,
            f"{', '.join(map(str, stops))} of {total}",
            f"{apart:.1e}",
            f"{loss:.1e}",
            f"{norm:.1e}",
            "yes" if same else "NO",
            "yes" if once else "NO",
            f"{MODELS[model].bound:.0e}",
        ],
        kept,
    )


def start(processes: int, model: str, samples: int, folder: Path, **environment: str) -> None:
    """Start the run, or go on with it; micro-batches are of another size on each process count."""
    run = [str(RECIPE), "--threads", "1", "--model", model, "--samples", str(samples), "--output", str(folder)]
    run += ["--batch.micro", str(1 + 2 * processes)]
    words = (
        [*accelerate_launch(sys.executable, processes), "--main_process_port", "0"]
        if processes > 1
        else [sys.executable]
    )
    done = subprocess.run(
        [*words, *run], env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    if done.returncode not in (0, 75, 1):
        sys.exit(done.stdout + done.stderr)
    if read_record(folder).get("status") not in ("finished", "preempted"):
        sys.exit(done.stdout + done.stderr)


def final_weights(folder: Path) -> torch.Tensor:
    """Return all weights of the last checkpoint in one row."""
    weights = load_file(sealed_folders(folder / "checkpoints")[0] / "weights.safetensors")
    return torch.cat([weights[name].flatten().double() for name in sorted(weights)])


def each_once(seen: Path, samples: int, steps_per_epoch: int) -> bool:
    """Return whether every sample passed through the model once in each epoch."""
    epochs: dict[int, Counter[int]] = {}
    rows = [json.loads(line) for file in seen.iterdir() for line in file.read_text(encoding="utf-8").splitlines()]
    for row in rows:
        epochs.setdefault((row["step"] - 1) // steps_per_epoch, Counter()).update(row["ids"])
    return len(epochs) == EPOCHS and all(counts == dict.fromkeys(range(samples), 1) for counts in epochs.values())


if __name__ == "__main__":
    main()
