"""How far each recipe's numbers are from those of one process, on other layouts, with small data in float64.

    python benchmarks/numerics/recipe_topology.py
        one process with micro-batches of 8, 3 and 1, two with 8 and 3, four with 8 and 1, and two that shard the model
        (FSDP2, DeepSpeed's ZeRO 2, and 3, which keeps no weight whole) with 8 and 3
    python benchmarks/numerics/recipe_topology.py --layouts cpu_fsdp2 --recipes classify tag-weighted
        a part of it

classify-weighted, classify-several and tag-weighted are recipes with other losses: class weights, given or balanced,
label smoothing, the focal loss, and a weight for each row.

Every figure is the largest over all layouts, relative to one process that takes each global batch whole: final weights
as ||a - b|| / ||b|| over all weights together; loss, gradient norm and evaluation metrics the largest of all steps, or
of all metrics. Samples and units of every step must be the same (sums of weights up to the bound). Layouts under ZeRO,
whose master weights are float32, have rows and a bound of their own. Exits with 1 beyond a bound.
"""

import argparse
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

import torch
from machine import accelerate_launch, machine, table
from zero import NOTHING_KEPT, bound_of_zero

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tests" / "helpers" / "recipe_layouts.py"
# The last ones are recipes with other losses (tests/helpers/recipe_layouts.py).
RECIPES = sorted(path.stem for path in (ROOT / "recipes").glob("*.py"))
RECIPES += ["classify-weighted", "classify-several", "tag-weighted"]
# By name: launch file, processes, micro-batches.
LAYOUTS = {
    "2": ("cpu", 2, "none,3"),
    "4": ("cpu", 4, "none,1"),
    **{name: (name, 2, "none,3") for name in ("cpu_fsdp2", "cpu_deepspeed_zero2", "cpu_deepspeed_zero3")},
}
BOUND = 1e-12
SMALLEST = 1e-9

Numbers = dict[str, Any]


def main() -> None:
    """Run all layouts and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layouts", nargs="+", choices=LAYOUTS, default=list(LAYOUTS))
    parser.add_argument("--recipes", nargs="+", choices=RECIPES, default=RECIPES)
    arguments = parser.parse_args()
    names = arguments.recipes
    found: dict[str, Numbers] = {}
    with TemporaryDirectory() as scratch:
        layouts = {"1": ("", 1, "none,3,1"), **{name: LAYOUTS[name] for name in arguments.layouts}}
        for layout, (file, processes, sizes) in layouts.items():
            place = Path(scratch) / f"{layout}.pt"
            words = [*accelerate_launch(sys.executable, processes, file), "--main_process_port", "0"]
            words = words if processes > 1 else [sys.executable]
            words += NOTHING_KEPT if "zero3" in file else []
            data = str(Path(scratch) / f"data-{layout}")
            subprocess.run([*words, str(SCRIPT), str(place), data, sizes, *names], check=True, stdout=sys.stderr)
            loaded = torch.load(place, weights_only=False)
            found |= {f"{name} on {layout}": numbers for name, numbers in loaded.items()}
    rows, passed = [], True
    for recipe in names:
        expected = found[f"{recipe} None on 1"]
        others = {name: numbers for name, numbers in found.items() if name.startswith(f"{recipe} ")}
        bounds = {"float64": BOUND, "float32, by ZeRO": bound_of_zero(len(expected["rows"]))}
        for kind, bound in bounds.items():
            of_kind = [numbers for name, numbers in others.items() if ("zero" in name) == ("ZeRO" in kind)]
            if not of_kind:
                continue
            apart = [max(values) for values in zip(*(differences(one, expected) for one in of_kind), strict=True)]
            verdict = "pass" if max(apart) <= bound else "FAIL"
            passed = passed and verdict == "pass"
            rows.append([recipe, kind, *(f"{value:.1e}" for value in apart), f"{verdict} (at most {bound:.2g})"])
    print("# Every recipe on other layouts: largest relative difference from one process\n")
    print(machine() + "\n")
    columns = ["recipe", "weights stepped in", "final weights", "loss", "gradient norm", "evaluation metrics", "bound"]
    print(table(columns, rows))
    if not passed:
        sys.exit("beyond a bound")


def differences(found: Numbers, expected: Numbers) -> list[float]:
    """Return how far weights, loss, gradient norm and metrics are apart."""
    weights = float((found["weights"] - expected["weights"]).norm() / expected["weights"].norm())
    loss = norm = 0.0
    for one, other in zip(found["rows"], expected["rows"], strict=True):
        if one["fingerprint"] != other["fingerprint"] or abs(one["units"] - other["units"]) > BOUND * other["units"]:
            sys.exit("other samples or units in a step")
        loss = max(loss, abs(one["loss"] / other["loss"] - 1))
        norm = max(norm, abs(one["gradient_norm"] / other["gradient_norm"] - 1))
    metrics = [
        abs(found["metrics"][name] - value) / max(abs(value), SMALLEST) for name, value in expected["metrics"].items()
    ]
    return [weights, loss, norm, max(metrics)]


if __name__ == "__main__":
    main()
