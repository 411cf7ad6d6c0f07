"""How far a training on a sharded or split model is from the same training in one process, with real processes on CPU.

    python benchmarks/numerics/strategies.py
        one process; distributed data parallel, FSDP2, hybrid sharding, DeepSpeed's ZeRO, tensor parallel, and tensor
        times data parallel on one, two and four processes, by the launch files of accelerate_configs/; seven models in
        float64; beside them the plain loop of Accelerate's DeepSpeed guide
    python benchmarks/numerics/strategies.py --strategies "FSDP2 on 2" --models BERT --samples 45
        a part of it

Every figure is the largest over the micro-batch sizes, relative to one process that takes each global batch whole:
final weights as ||a - b|| / ||b|| over all weights together; loss, gradient norm and metrics the largest of all steps
or evaluations. The last batch of an epoch is smaller. Exits with 1 if a bound is broken or a step had other samples.
The plain loop, which is compared with itself in one process, promises nothing and has no bound.
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

import torch
from machine import machine, table
from topology_models import DROPOUT, MODELS
from topology_work import GLOBAL_BATCH, SAMPLES, Cut, Difference, LayoutResult, difference
from zero import NOTHING_KEPT, bound_of_zero

CONFIGS = Path(__file__).parents[2] / "accelerate_configs"
# Launch file, processes, and further words for the launcher.
STRATEGIES: dict[str, tuple[str, int, list[str]]] = {
    "distributed data parallel on 2": ("cpu", 2, []),
    "distributed data parallel on 4": ("cpu", 4, []),
    "FSDP2 on 1": ("cpu_fsdp2", 1, []),
    "FSDP2 on 2": ("cpu_fsdp2", 2, []),
    "FSDP2 on 4": ("cpu_fsdp2", 4, []),
    "FSDP2 on 2, offloaded": ("cpu_fsdp2", 2, ["--fsdp_offload_params", "true"]),
    "FSDP2 on 2, activations checkpointed": ("cpu_fsdp2", 2, ["--fsdp_activation_checkpointing", "true"]),
    "FSDP2 on 2, layers kept whole": ("cpu_fsdp2", 2, ["--fsdp_reshard_after_forward", "false"]),
    "FSDP2 on 2, built by one": ("cpu_fsdp2", 2, ["--fsdp_cpu_ram_efficient_loading", "true"]),
    "hybrid sharding, 2 x 2": ("cpu_fsdp2_hybrid", 4, []),
    "tensor parallel on 2": ("cpu_tensor", 2, []),
    **{
        f"ZeRO {stage} on {processes}": (f"cpu_deepspeed_zero{stage}", processes, [])
        for stage in (1, 2, 3)
        for processes in (1, 2, 4)
    },
    **{
        f"ZeRO 3 on {processes}, no weight kept whole": (
            "cpu_deepspeed_zero3",
            processes,
            NOTHING_KEPT,
        )
        for processes in (2, 4)
    },
    "ZeRO 2 on 2, offloaded": ("cpu_deepspeed_zero2", 2, ["--offload_optimizer_device", "cpu"]),
    "ZeRO 3 on 2, offloaded": (
        "cpu_deepspeed_zero3",
        2,
        ["--offload_optimizer_device", "cpu", "--offload_param_device", "cpu"],
    ),
    "tensor x data parallel, 2 x 2": ("cpu_tensor_and_data", 4, []),
}
# The stage and the processes of Accelerate's own loop under DeepSpeed.
LOOPS = {
    f"the plain loop, ZeRO {stage} on {processes}": (stage, processes) for stage in (1, 2, 3) for processes in (2, 4)
}
# These bring no plan for tensor parallel, or drop out of the parts of a layer; and a plain module can't compute its
# activations again.
LEFT_OUT = {
    "tensor": ("plain transformer", "BERT", "ViT", "DINOv2", "T5", "Llama, LoRA"),
    "checkpointed": ("plain transformer",),
    "plain loop": ("plain transformer", "ViT", "DINOv2", "Llama"),
}
FIGURES = {"weights": "final weights", "loss": "loss", "norm": "gradient norm", "metrics": "evaluation metrics"}


def main() -> None:
    """Run everything and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strategies", nargs="+", choices=[*STRATEGIES, *LOOPS], default=[*STRATEGIES, *LOOPS])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--micro", nargs="+", type=int, default=[GLOBAL_BATCH, 3])
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--samples", type=int, default=SAMPLES)
    arguments = parser.parse_args()
    started, steps = time.monotonic(), arguments.epochs * -(-arguments.samples // GLOBAL_BATCH)
    with TemporaryDirectory() as scratch:
        output = Path(scratch) / "results.pt"
        expected = run([sys.executable], output, arguments, arguments.models, [GLOBAL_BATCH])
        of_loop: dict[tuple[str, int], LayoutResult] = {}
        rows, passed = [], True
        for strategy in arguments.strategies:
            models = [name for name in arguments.models if name not in left_out(strategy)]
            if strategy in LOOPS:
                first = of_loop = of_loop or run(launcher("cpu", 1), output, arguments, models, [GLOBAL_BATCH], stage=1)
                stage, processes = LOOPS[strategy]
                sizes = sorted({GLOBAL_BATCH // processes, 2})
                results = run(launcher("cpu", processes), output, arguments, models, sizes, stage)
            else:
                file, processes, more = STRATEGIES[strategy]
                first, results = (
                    expected,
                    run(launcher(file, processes, *more), output, arguments, models, arguments.micro),
                )
            for name in models:
                one = first[name, GLOBAL_BATCH]
                apart = [difference(result, one) for (model, _), result in results.items() if model == name]
                rows.append(row(strategy, apart, name, steps))
                print(*rows[-1], file=sys.stderr, flush=True)
                passed = passed and not rows[-1][-1].startswith("FAIL")
    print("# Spread models against one process: largest relative difference\n")
    print(machine() + "\n")
    print(
        f"{arguments.samples} samples, global batch {GLOBAL_BATCH}, {steps} steps, micro-batches {arguments.micro} "
        f"(of the plain loop {[GLOBAL_BATCH // 2, GLOBAL_BATCH // 4, 2]}), AdamW, clipping at 1, float64, dropout "
        f"{DROPOUT} everywhere; {time.monotonic() - started:.0f} s in all.\n"
    )
    print(table(["strategy", "model", *FIGURES.values(), "same samples", "bound"], rows))
    if not passed:
        sys.exit(1)


def left_out(strategy: str) -> set[str]:
    """Return the models with which a strategy is not tried."""
    return {name for word, names in LEFT_OUT.items() if word in strategy for name in names}


def launcher(file: str, processes: int, *more: str) -> list[str]:
    """Return the words that start a script by a launch file."""
    words = ["-m", "accelerate.commands.launch", "--config_file", str(CONFIGS / f"{file}.yaml")]
    return [sys.executable, *words, "--num_processes", str(processes), "--main_process_port", "0", *more]


def run(
    start: list[str],
    output: Path,
    arguments: argparse.Namespace,
    models: list[str],
    micro: list[int],
    stage: int | None = None,
) -> dict[tuple[str, int], LayoutResult]:
    """Start `topology_worker.py`; return the layouts, packed or else cut by length, by model and micro-batch.

    With a stage of ZeRO it runs the plain loop."""
    method = "toolkit" if stage is None else "DeepSpeed loop"
    command = [*start, str(Path(__file__).with_name("topology_worker.py")), method, str(output)]
    command += ["--models", *models, "--micro", *map(str, micro), "--last", "--threads", "1"]
    command += ["--epochs", str(arguments.epochs), "--samples", str(arguments.samples), "--stage", str(stage or 1)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    found: dict[tuple[str, int, Cut], dict[str, Any]] = torch.load(output)
    return {(name, size): LayoutResult(**result) for (name, size, _), result in found.items()}


def row(strategy: str, apart: list[Difference], name: str, steps: int) -> list[str]:
    """Return the largest differences of a strategy after so many steps."""
    bound = MODELS[name].bound
    if strategy.startswith("ZeRO"):
        bound = bound_of_zero(steps)
    largest = [max(getattr(one, key) for one in apart) for key in FIGURES]
    if strategy in LOOPS:  # it has no fingerprints
        return [strategy, name, *(f"{value:.1e}" for value in largest), "not known", "none"]
    same = all(one.same_samples for one in apart)
    verdict = "pass" if max(largest) <= bound and same else "FAIL"
    return [
        strategy,
        name,
        *(f"{value:.1e}" for value in largest),
        "yes" if same else "NO",
        f"{verdict} (at most {bound:.2g})",
    ]


if __name__ == "__main__":
    main()
