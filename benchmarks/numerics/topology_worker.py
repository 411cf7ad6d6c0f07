"""What each process of `topology.py` runs: all layouts of one process count, one after another in one process group.

    accelerate launch --config_file accelerate_configs/cpu.yaml --num_processes 2 \\
        benchmarks/numerics/topology_worker.py toolkit results.pt --micro 3 8
"""

import argparse
import sys
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

import torch
from topology_models import MODELS
from topology_work import GLOBAL_BATCH, SAMPLES, Cut, LayoutResult, cuts, run_layout, work_config

METHODS = ("toolkit", "Trainer", "Accelerate loop", "DeepSpeed loop")
# A layout: the model, the micro-batch, how the global batch is cut.
Key = tuple[str, int, Cut]


def main() -> None:
    """Run the layouts that the command line names and write their results from the main process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("method", choices=METHODS)
    parser.add_argument("output", type=Path)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--micro", nargs="+", type=int, default=[GLOBAL_BATCH])
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--samples", type=int, default=SAMPLES)
    parser.add_argument("--last", action="store_true", help="only the last of a model's cuts, with the toolkit")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--stage", type=int, default=1, help="of ZeRO, for the loop with DeepSpeed")
    arguments = parser.parse_args()
    run = run_with_toolkit if arguments.method == "toolkit" else run_with_others
    is_main, results = run(arguments)
    if is_main:
        torch.save({key: asdict(result) for key, result in results.items()}, arguments.output)


def run_with_toolkit(arguments: argparse.Namespace) -> tuple[bool, dict[Key, LayoutResult]]:
    """Run every layout with every cut that the model can take, unless only the last of them is asked for."""
    from toolkit.distributed.start_runtime import start_runtime

    runtime = start_runtime(replace(work_config(GLOBAL_BATCH), threads=arguments.threads))
    results = {
        (name, micro, cut): run_layout(runtime, name, micro, cut, arguments.epochs, arguments.samples)
        for name in arguments.models
        for micro in arguments.micro
        for cut in (cuts(name)[-1:] if arguments.last else cuts(name))
    }
    is_main = runtime.is_main
    runtime.close()
    return is_main, results


def run_with_others(arguments: argparse.Namespace) -> tuple[bool, dict[Key, LayoutResult]]:
    """Run every layout that multiplies to the global batch."""
    from accelerate import PartialState
    from topology_others import run_plain_loop, run_trainer

    torch.set_num_threads(arguments.threads)
    run = run_trainer if arguments.method == "Trainer" else run_plain_loop
    if arguments.method == "DeepSpeed loop":
        run = partial(run_plain_loop, zero_stage=arguments.stage)
    state = PartialState(cpu=True)
    processes, is_main = state.num_processes, state.is_main_process
    results = {
        (name, micro, "padded"): run(name, processes, micro, arguments.epochs, arguments.samples)
        for name in arguments.models
        for micro in arguments.micro
        if GLOBAL_BATCH % (micro * processes) == 0
    }
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()
    return is_main, results


if __name__ == "__main__":
    main()
