"""What only a GPU can show, on a machine with one: every figure by a real command, each in a process of its own.

    python benchmarks/gpu.py
        all of it; the table on stdout, each row on stderr as it is found; no command takes longer than --limit seconds
    python benchmarks/gpu.py --only precision fsdp2
        a part of it: precision, fsdp2, zero, recipes, host, memory, refused, notebook

    precision   one_gpu.yaml without mixed precision, under bf16, and under fp16: loss beside float32, speed, memory
    fsdp2       fsdp2_one_node.yaml without mixed precision, whose numbers have to be those of one_gpu.yaml; under bf16;
                with offload, also where one process builds the model for all; and with activations checkpointed
    zero        deepspeed_zero2.yaml and deepspeed_zero3.yaml in the same way, and stage 3 with offload; where
                DeepSpeed is installed
    recipes     where a step of each recipe's own loss first makes the host wait: nowhere
    host        threads with and without offload; whether batches and the copy for a checkpoint lie in pinned memory,
                how much that takes beside what the plan says, and what is told where none can be pinned; the time-out
                of process groups
    memory      a training and an evaluation that ask for more memory than the GPU has, and then the same command with
                what the message says
    refused     torch.compile: the message (of exit code 2 the launcher makes 1)
    notebook    notebooks/debug_on_one_gpu.ipynb from top to bottom

Each training goes on for some steps in which every wait of the host for the GPU is an error
(`torch.cuda.set_sync_debug_mode`); the column "waits" names the line of the first one: there must be none, but where
the optimizer is offloaded and under DeepSpeed, which looks at each norm.

One GPU is enough; what takes two (a model that another process builds, the time-out of groups) is said to be not run
where there is one. Needs torch, accelerate, transformers, numpy, safetensors, rich, psutil, pyyaml and filelock, and
the project's folder, which need not be installed. The recipes are run as they are where datasets, evaluate, scikit-
learn and Pillow are installed, or else by their loss and collation alone, and their rows say so. The notebook needs
the whole project (`pip install -e .`) and nbclient, nbformat, ipykernel and matplotlib; where one is missing its row
says so. Exits with 2 where there is no GPU, and with 1 if a command failed that should not, one that should was not
refused, a step waits that should not, a promise about the host does not hold, or FSDP2 or ZeRO in float32 is further
than 1e-4 from one GPU.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent / "shared"))

from machine import machine, table

ROOT = Path(__file__).parents[1]
CONFIGS = ROOT / "accelerate_configs"
NO_GPU, FAILED = 2, 1
BOUND = 1e-4
"""Relative, of all weights together: in float32 a GPU adds in another order where a matrix has another shape."""
NEEDED_BY_NOTEBOOK = (
    "nbclient",
    "nbformat",
    "ipykernel",
    "matplotlib",
    "datasets",
    "evaluate",
    "sklearn",
)
# The twins of the launch files with which the script itself is tried where there is no GPU.
TWINS = {
    "one_gpu": "cpu",
    "fsdp2_one_node": "cpu_fsdp2",
    **{f"deepspeed_zero{n}": f"cpu_deepspeed_zero{n}" for n in (2, 3)},
}
PARTS = ["precision", "fsdp2", "zero", "recipes", "host", "memory", "refused", "notebook"]
COLUMNS = ["command", "last loss", "beside float32", "weights beside float32", "steps/s", "peak GB", "waits"]


@dataclass(frozen=True)
class Run:
    """One training."""

    name: str
    file: str
    precision: str
    more: list[str] = field(default_factory=list)
    """Further words for the launcher."""
    exact: bool = False
    """Whether its numbers have to be those of one process in float32."""
    waits: bool = False
    """Whether something other than the toolkit waits for the GPU in it: the offloaded optimizer."""
    processes: int = 1
    """On so many GPUs; where there are fewer it is not run."""


PRECISION = [
    Run("one GPU, float32", "one_gpu", "no"),
    Run("one GPU, bf16", "one_gpu", "bf16"),
    Run("one GPU, fp16", "one_gpu", "fp16"),
]
FSDP2 = [
    Run("FSDP2, float32", "fsdp2_one_node", "no", exact=True),
    Run("FSDP2, bf16", "fsdp2_one_node", "bf16"),
    Run("FSDP2, float32, offload", "fsdp2_one_node", "no", ["--fsdp_offload_params", "true"], exact=True, waits=True),
    Run(
        "FSDP2, float32, offload, built by one process, two GPUs",
        "fsdp2_one_node",
        "no",
        ["--fsdp_offload_params", "true", "--fsdp_cpu_ram_efficient_loading", "true"],
        exact=True,
        waits=True,
        processes=2,
    ),
    Run(
        "FSDP2, float32, checkpointing", "fsdp2_one_node", "no", ["--fsdp_activation_checkpointing", "true"], exact=True
    ),
    Run("FSDP2, bf16, checkpointing", "fsdp2_one_node", "bf16", ["--fsdp_activation_checkpointing", "true"]),
]
ON_HOST = ["--offload_optimizer_device", "cpu", "--offload_param_device", "cpu"]
ZERO = [
    Run("ZeRO 2, float32", "deepspeed_zero2", "no", exact=True, waits=True),
    Run("ZeRO 2, bf16", "deepspeed_zero2", "bf16", waits=True),
    Run("ZeRO 3, float32", "deepspeed_zero3", "no", exact=True, waits=True),
    Run("ZeRO 3, bf16", "deepspeed_zero3", "bf16", waits=True),
    Run("ZeRO 3, float32, offload", "deepspeed_zero3", "no", ON_HOST, exact=True, waits=True),
]


@dataclass
class Bench:
    """What all commands share."""

    scratch: Path
    on_gpu: bool
    steps: int
    size: str
    limit: float
    """Seconds that a command may take."""
    float32: dict[str, Any] = field(default_factory=dict)
    """The figures of the training that the others are held against."""
    failed: bool = False

    @property
    def gpus(self) -> int:
        """How many processes can be started, each with a GPU of its own."""
        return torch.cuda.device_count() if self.on_gpu else 2

    @property
    def figures(self) -> Any:
        """What the last worker wrote down."""
        return json.loads((self.scratch / "figures.json").read_text(encoding="utf-8"))

    def launch(
        self, file: str, *words: str, worker: str = "gpu_worker.py", processes: int = 1, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a worker by a launch file; a command that takes too long ends with 124."""
        config = CONFIGS / f"{file if self.on_gpu else TWINS[file]}.yaml"
        command = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(config)]
        command += ["--num_processes", str(processes), "--main_process_port", "0"]
        split = words.index("--") if "--" in words else len(words)
        command += [*words[:split], str(ROOT / "benchmarks" / worker), str(self.scratch / "figures.json")]
        command += [*words[split + 1 :], "--steps", str(self.steps), "--size", self.size]
        return self.finished(command, **environment)

    def ask(self, file: str, *words: str, processes: int = 1) -> tuple[Any, str]:
        """Return what the other worker found, or nothing and its last words."""
        done = self.launch(file, *words, worker="gpu_host_worker.py", processes=processes)
        if done.returncode != 0:
            return None, on_exit(done)
        return self.figures, ""

    def finished(self, command: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a command in an environment that finds the project, installed or not."""
        path = os.pathsep.join([str(ROOT), str(ROOT / "benchmarks"), os.environ.get("PYTHONPATH", "")])
        variables = {**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1", **environment}
        try:
            return subprocess.run(
                command, env=variables, capture_output=True, text=True, timeout=self.limit, check=False
            )
        except subprocess.TimeoutExpired as late:
            said = late.stderr.decode(errors="replace") if isinstance(late.stderr, bytes) else ""
            return subprocess.CompletedProcess(command, 124, "", f"{said}\nstopped after {self.limit:g} s")


def main() -> None:
    """Run everything that was asked for and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--steps", type=int, default=20, help="timed steps of each training")
    parser.add_argument("--limit", type=float, default=180.0, help="seconds that one command may take")
    # For trying the script itself: the figures are those of the CPU.
    parser.add_argument("--device", choices=["gpu", "cpu"], default="gpu", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    on_gpu = arguments.device == "gpu"
    if on_gpu and not torch.cuda.is_available():
        print(
            "no GPU here: torch.cuda.is_available() is False, and every figure of this script is one of a GPU",
            file=sys.stderr,
        )
        sys.exit(NO_GPU)
    wanted = arguments.only
    rows: list[list[str]] = []
    with TemporaryDirectory() as scratch:
        bench = Bench(Path(scratch), on_gpu, arguments.steps, "real" if on_gpu else "tiny", arguments.limit)
        found: list[Iterator[list[str]]] = []
        if {"precision", "fsdp2", "zero"} & set(wanted):
            runs = [*(PRECISION if "precision" in wanted else PRECISION[:1]), *(FSDP2 if "fsdp2" in wanted else [])]
            runs += ZERO if "zero" in wanted else []
            found.append(training_row(bench, run) for run in runs)
        if "recipes" in wanted:
            found.append(recipe_rows(bench))
        if "host" in wanted:
            found.append(host_rows(bench))
        if "memory" in wanted:
            found.append(memory_rows(bench))
        if "refused" in wanted:
            found.append(refusals(bench))
        if "notebook" in wanted:
            found.append(notebook_rows(bench))
        for part in found:
            for row in part:
                rows.append(row)
                print(*row, sep=" | ", file=sys.stderr, flush=True)
    print(f"# On {'one GPU' if on_gpu else 'the CPU, to try the script'}\n")
    print(machine() + "\n")
    if bench.float32:
        print(f"{bench.float32['device']}, {bench.float32['parameters']:,} parameters, {arguments.steps} steps.\n")
    print(table(COLUMNS, rows))
    sys.exit(FAILED if bench.failed else 0)


def training_row(bench: Bench, run: Run) -> list[str]:
    """Run one training and return its row; the first one of float32 is what the others are held against."""
    if run.processes > bench.gpus:
        return row_of(run.name, f"not run: it takes {run.processes} GPUs, and here is {bench.gpus}")
    if run in ZERO and importlib.util.find_spec("deepspeed") is None:
        return row_of(run.name, "not run: deepspeed is not installed")
    weights = bench.scratch / ("others.pt" if bench.float32 else "float32.pt")
    words = ["--mixed_precision", run.precision, *run.more, "--", "--weights", str(weights)]
    done = bench.launch(run.file, *words, processes=run.processes)
    if done.returncode != 0:
        # The CPU has no fp16: there a refusal is what has to come.
        refused = not bench.on_gpu and run.precision == "fp16" and "refused: " in done.stderr
        bench.failed = bench.failed or not refused
        return row_of(run.name, on_exit(done))
    figures: dict[str, Any] = bench.figures
    if not bench.float32:
        bench.float32 = figures
    loss, expected = figures["losses"][-1], bench.float32["losses"][-1]
    apart = distance(weights, bench.scratch / "float32.pt")
    # Written so that a figure that is not a number fails as well.
    if (run.exact and not apart <= BOUND) or (figures["waits"] and not run.waits):
        bench.failed = True
    return [
        run.name,
        f"{loss:.5f}",
        f"{loss - expected:+.1e}",
        f"{apart:.1e}",
        f"{1 / figures['seconds']:.2f}",
        f"{figures['peak'] / 1e9:.2f}",
        (figures["waits"] or "none").replace("|", "/") + (" (expected)" if figures["waits"] and run.waits else ""),
    ]


def distance(file: Path, other: Path) -> float:
    """Return ||a - b|| / ||b|| over all weights of two files together."""
    weights, others = torch.load(file), torch.load(other)
    apart = sum(float((weights[name].double() - others[name].double()).square().sum()) for name in others)
    return float((apart / sum(float(tensor.double().square().sum()) for tensor in others.values())) ** 0.5)


def recipe_rows(bench: Bench) -> Iterator[list[str]]:
    """Yield a row on each recipe: where its steps make the host wait."""
    found, words = bench.ask("one_gpu", "--mixed_precision", "no", "--", "recipes")
    if found is None:
        bench.failed = True
        yield row_of("recipes", words)
        return
    for name, one in found.items():
        bench.failed = bench.failed or one["waits"] is not None
        yield [*row_of(f"{name}.py, {one['how']}", "")[:-1], (one["waits"] or "none").replace("|", "/")]


def host_rows(bench: Bench) -> Iterator[list[str]]:
    """Yield a row on each promise about the host."""
    offload = ["--fsdp_offload_params", "true"]
    cases = {
        "threads": ("one_gpu", [], []),
        "threads, --threads 2": ("one_gpu", [], ["--threads", "2"]),
        "threads, offload": ("fsdp2_one_node", offload, []),
        "threads, offload, --threads 2": ("fsdp2_one_node", offload, ["--threads", "2"]),
    }
    for name, (file, more, work) in cases.items():
        found, words = bench.ask(file, "--mixed_precision", "no", *more, "--", "threads", *work)
        if found is not None:
            computes = bool(more) or not bench.on_gpu
            expected = 2 if work else found["cores"] if computes else 1
            bench.failed = bench.failed or not found["threads"] == found["said"] == expected
            words = f"{found['threads']} of {found['cores']} cores ({expected} promised)"
        bench.failed = bench.failed or found is None
        yield row_of(name, words)
    found, words = bench.ask("one_gpu", "--mixed_precision", "no", "--", "pinned")
    if found is not None:
        copy = found["copy"]
        pinned = copy["pinned"] and all(found[f"batches, {workers} workers"] for workers in (0, 2)) and found["refused"]
        bench.failed = bench.failed or (bench.on_gpu and not pinned) or not copy["taken"] < 1.01 * copy["plan"] + 1e5
        words = f"{json.dumps(found)} (of the copy: bytes by the plan, taken, and by which the process grew)"
    bench.failed = bench.failed or found is None
    yield row_of("pinned memory", words)
    if bench.gpus < 2:
        yield row_of("patience of a process group", f"not run: it takes 2 GPUs, and here is {bench.gpus}")
        return
    found, words = bench.ask("fsdp2_one_node", "--mixed_precision", "no", "--", "timeout", processes=2)
    if found is not None:
        words = f"{found['seconds']:g} s ({found['backend']}), with timeout.progress 5000"
    bench.failed = bench.failed or found is None or found["seconds"] < 5000
    yield row_of("patience of a process group", words)


def memory_rows(bench: Bench) -> Iterator[list[str]]:
    """Yield a row on each place where memory runs out: what is told, and what comes of the command with that."""
    for place, setting in (("training", "--batch.micro"), ("evaluation", "--batch.eval")):
        work = ["memory", "--place", place, "--folder", str(bench.scratch / place)]
        done = bench.launch("one_gpu", "--mixed_precision", "no", "--", *work, worker="gpu_host_worker.py")
        said = on_exit(done)
        again, words = bench.ask("one_gpu", "--mixed_precision", "no", "--", *work, "--small")
        goes_on = f"then {again['steps']} steps in the ledger" if again is not None else words
        told = done.returncode != 0 and "ran out" in said and setting in said
        bench.failed = bench.failed or not told or again is None or again["steps"] != 4
        yield row_of(f"memory runs out in the {place}", f"{said}; {goes_on}")


def refusals(bench: Bench) -> Iterator[list[str]]:
    """Yield a row with the message for each thing that is refused by name."""
    cases = {
        "torch.compile": (["--dynamo_backend", "inductor"], {}),
    }
    for name, (words, environment) in cases.items():
        done = bench.launch("one_gpu", *words, **environment)
        # `accelerate launch` makes 1 of every exit code that is not 0.
        if done.returncode == 0 or f"asks for {name}" not in done.stderr:
            bench.failed = True
        yield row_of(name, on_exit(done))


def notebook_rows(bench: Bench) -> Iterator[list[str]]:
    """Yield a row on the notebook, run from top to bottom where what it needs is installed."""
    missing = [name for name in NEEDED_BY_NOTEBOOK if importlib.util.find_spec(name) is None]
    if missing:
        yield row_of("notebook", f"not run: {', '.join(missing)} not installed")
        return
    notebook = ROOT / "notebooks" / "debug_on_one_gpu.ipynb"
    program = (
        "import json, sys; sys.path.insert(0, 'tests/helpers'); from pathlib import Path; "
        "from notebooks_running import run_notebook; "
        f"print(json.dumps(run_notebook(Path({str(notebook)!r}))))"
    )
    hidden = {} if bench.on_gpu else {"CUDA_VISIBLE_DEVICES": ""}
    done = bench.finished([sys.executable, "-c", f"import os; os.chdir({str(ROOT)!r}); {program}"], **hidden)
    bench.failed = bench.failed or done.returncode != 0
    if done.returncode != 0:
        yield row_of("notebook", on_exit(done))
        return
    figures = json.loads(done.stdout)
    numbers = {name: value for name, value in figures.items() if isinstance(value, int | float | str)}
    yield row_of("notebook", f"runs from top to bottom; {json.dumps(numbers)}")


def row_of(name: str, words: str) -> list[str]:
    """Return a row that has words instead of figures."""
    return [name, words.replace("|", "/").replace("\n", " "), *[""] * (len(COLUMNS) - 2)]


def on_exit(done: subprocess.CompletedProcess[str]) -> str:
    """Return the refusal that a command ended with, or else its last line."""
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    refused = [line for line in lines if line.startswith("refused: ")]
    # The launcher has an error of its own for every one of a worker.
    errors = [line for line in lines if ("Error" in line and "ChildFailed" not in line) or "stopped after" in line]
    return f"exit code {done.returncode}: {(refused[:1] or errors[-1:] or lines[-1:] or ['nothing said'])[0]}"


if __name__ == "__main__":
    main()
