"""What the launcher was asked for, so that a run never silently gets something else.

`accelerate launch` does not hand its request down: with `--cpu --num_processes 2` it starts one process, and a launch
file with `use_cpu: true` does not reach the processes of a multi-process launch. So the request is read where it was
made, in the command line of the parent process, with Accelerate's own parser.
"""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from socket import gethostname
from typing import Any

import psutil

TORCHRUN = ("torch.distributed.run", "torch.distributed.launch")
"""As `python -m` takes it."""
SAME_COMMAND = "start the same command, with the same number of machines and processes, on each machine"


FROM_DEEPSPEED = (
    "DeepSpeed's own launcher started this process, which tells nothing of what it is to do; start it with `accelerate "
    "launch --config_file accelerate_configs/deepspeed_zero2.yaml`, and on several machines, in place of a hostfile, "
    "with the same command on each machine and deepspeed_multinode_launcher: standard in the launch file"
)


@dataclass(frozen=True)
class Launch:
    """The request, as far as it can be known; None stands for "not given"."""

    file: str | None = None
    """The launch file in use, Accelerate's own remembered default included."""
    remembered: bool = False
    """Whether that file is the default that `accelerate config` wrote."""
    processes: int | None = None
    """Processes over all machines."""
    use_cpu: bool | None = None
    """True: CPU was asked for; False: an accelerator was."""
    accumulation: int | None = None
    """`gradient_accumulation_steps`, which the toolkit derives by itself."""

    @property
    def description(self) -> str:
        """Where the launch configuration comes from, for the plan."""
        if self.file is None:
            return "none"
        return f"{self.file} (remembered by `accelerate config`)" if self.remembered else self.file


def read_launch() -> Launch:
    """Return what the launcher of this process was asked for."""
    arguments = launcher_arguments()
    accumulation = os.environ.get("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "")
    from_environment = int(accumulation) if accumulation.isdigit() else None
    use_cpu = True if is_true("ACCELERATE_USE_CPU") else None
    if arguments is None:
        return Launch(use_cpu=use_cpu, accumulation=from_environment)
    return launch_of(arguments, use_cpu, from_environment)


def launcher_arguments() -> list[str] | None:
    """Return the arguments of `accelerate launch` if that is what started this process."""
    words = parent_command()
    for index, word in enumerate(words[:4]):
        name = Path(word).name
        if name in ("accelerate-launch", "launch.py") or word == "accelerate.commands.launch":
            return words[index + 1 :]
        if name in ("accelerate", "accelerate_cli.py") and words[index + 1 : index + 2] == ["launch"]:
            return words[index + 2 :]
    return None


def parent_command() -> list[str]:
    """Return the command line of the parent process, as far as it can be read."""
    try:
        return psutil.Process(os.getppid()).cmdline()
    except psutil.Error:
        return []


def is_torchrun(command: list[str]) -> bool:
    """Return whether this command line is that of torch's own launcher."""
    return any(Path(word).name == "torchrun" or word in TORCHRUN for word in command[:4])


def launch_of(arguments: list[str], use_cpu: bool | None, accumulation: int | None) -> Launch:
    """Return the request that these arguments of `accelerate launch` make, together with the file they name."""
    from accelerate.commands.config.config_args import default_config_file, load_config_from_file
    from accelerate.commands.launch import launch_command_parser

    asked, _ = launch_command_parser().parse_known_args(arguments)
    remembered = asked.config_file is None and not asked.cpu and Path(default_config_file).is_file()
    file = default_config_file if remembered else asked.config_file
    processes = asked.num_processes
    if asked.multi_gpu or asked.use_fsdp or asked.gpu_ids not in (None, "all"):
        use_cpu = use_cpu or False
    if file is not None:
        settings: Any = load_config_from_file(file)
        if processes is None:
            processes = settings.num_processes
        use_cpu = use_cpu or bool(asked.cpu or settings.use_cpu)
        from_file = (getattr(settings, "deepspeed_config", None) or {}).get("gradient_accumulation_steps")
        accumulation = accumulation or (from_file if isinstance(from_file, int) else None)
    return Launch(file, remembered, processes, use_cpu, accumulation)


def prints_trace() -> bool:
    """Return whether the parent of this process is a launcher that prints a trace when this process fails."""
    arguments = launcher_arguments()
    if "TORCHELASTIC_RUN_ID" in os.environ:
        # An agent that has restarts left starts the processes again.
        last = os.environ.get("TORCHELASTIC_RESTART_COUNT") == os.environ.get("TORCHELASTIC_MAX_RESTARTS")
        return last and (arguments is not None or is_torchrun(parent_command()))
    # `-q` of `accelerate launch`, which the agent does not know.
    own = arguments[: arguments.index(sys.argv[0])] if arguments and sys.argv[0] in arguments else arguments
    return own is not None and not {"-q", "--quiet"} & set(own)


def several_machines() -> bool:
    """Return whether the launcher says that processes of this run are on other machines too."""
    size = os.environ.get("WORLD_SIZE", "1")
    return os.environ.get("LOCAL_WORLD_SIZE", size) != size


def launched() -> bool:
    """Return whether a launcher is the parent of this process, so that its death is a request to stop."""
    return "TORCHELASTIC_RUN_ID" in os.environ or launcher_arguments() is not None


def orphaned() -> bool:
    """Return whether `accelerate launch` started this process and ended before it could ask for a signal on that."""
    # Only the launcher sets this variable; what has lost its parent is given to the first process.
    return "ACCELERATE_DYNAMO_MODE" in os.environ and os.getppid() == 1 and launcher_arguments() is None


def agent() -> str | None:
    """Return an identity of the agent that restarts this process; None where there is none."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return None
    return f"{os.getppid()}/{started_at(os.getppid())}"


def started_at(process: int) -> str:
    """Return when a process was started, by a clock that nobody sets: in ticks since the machine was."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "?"
    # Behind the name, which may hold blanks and brackets: the 22nd field of the line.
    return stat.rpartition(")")[2].split()[19]


def unsupported() -> list[str]:
    """Return a sentence for everything that the launch configuration asks for and the toolkit does not train."""
    precision = os.environ.get("ACCELERATE_MIXED_PRECISION", "no").lower()
    if is_deepspeed_launcher(parent_command()):
        return [FROM_DEEPSPEED]
    asked = []
    if is_true("ACCELERATE_USE_MEGATRON_LM"):
        asked.append("Megatron-LM")
    if is_true("ACCELERATE_USE_FSDP") and os.environ.get("FSDP_VERSION", "1") != "2":
        asked.append("FSDP1 (fsdp_version 1)")
    problems = [
        f"the launch configuration asks for {name}, which this toolkit does not train; use one of accelerate_configs/, "
        "of which fsdp2_one_node.yaml shards a model that is too large for one GPU"
        for name in asked
    ]
    compiler = os.environ.get("ACCELERATE_DYNAMO_BACKEND", "no").lower()
    if compiler != "no":
        # With inductor on CPU numbers and resumes agree, and the exported weights have other names (_orig_mod.).
        problems.append(
            f"the launch configuration asks for torch.compile (dynamo_backend {compiler}), which this toolkit does not "
            "train with; leave dynamo_backend and dynamo_config out"
        )
    if precision not in ("no", "bf16", "fp16"):
        problems.append(
            f"the launch configuration asks for mixed precision {precision}, which this toolkit does not train; use "
            "bf16, fp16 or no"
        )
    return problems


def is_deepspeed_launcher(command: list[str]) -> bool:
    """Return whether this command line is that of DeepSpeed's own launcher on a machine."""
    return any(word == "deepspeed.launcher.launch" or "deepspeed/launcher/" in word for word in command[:5])


def is_true(variable: str) -> bool:
    """Return whether an environment variable is true, in the spellings that Accelerate writes."""
    return os.environ.get(variable, "").lower() in ("1", "true", "yes", "y", "t", "on")


def contradictions(launch: Launch, on_cpu: bool, world_size: int) -> list[str]:
    """Return a sentence for everything that was asked of the launcher and is not so."""
    import torch

    problems = []
    precision = os.environ.get("ACCELERATE_MIXED_PRECISION", "no").lower()
    # There torch finds no GPU any more: the run would go on, on the CPU.
    if launch.use_cpu is not True and torch.cuda._is_in_bad_fork():
        problems.append(
            "this process was forked from one that had used CUDA already, such as a notebook, and CUDA does not work "
            "in such a copy; start the processes from the notebook with toolkit.notebook.launch, or in a terminal "
            "with `accelerate launch`"
        )
    local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    kind = None if on_cpu else torch.accelerator.current_accelerator()
    if kind is not None and kind.type != "cuda":
        problems.append(
            f"torch finds an accelerator of the type {kind.type} here, on which this toolkit was never tried; train on "
            "a GPU that torch calls cuda (NVIDIA, AMD), or on this CPU: set ACCELERATE_USE_CPU=true in the environment"
        )
    if launch.use_cpu is False and on_cpu:
        file = "cpu_several_nodes.yaml on all machines" if several_machines() else "cpu.yaml"
        if is_true("ACCELERATE_USE_FSDP") or is_true("ACCELERATE_USE_PARALLELISM_CONFIG"):
            file = "cpu_fsdp2.yaml or another cpu_*.yaml that spreads the model"
        problems.append(
            f"the launch configuration ({launch.description}) asks for an accelerator, but torch finds none on this "
            f"machine; use accelerate_configs/{file}, or repair the driver"
        )
    if not on_cpu and local > torch.accelerator.device_count():
        problems.append(
            f"{local} processes were started on this machine, which has {torch.accelerator.device_count()} "
            "accelerator(s); start at most one for each"
        )
    if precision == "fp16" and on_cpu:
        problems.append(
            "the launch configuration asks for mixed precision fp16, which needs an accelerator; on CPU use bf16 or no"
        )
    if world_size > 1 and "MASTER_ADDR" not in os.environ:
        problems.append(
            f"WORLD_SIZE is {world_size}, but MASTER_ADDR, where the processes meet, is not set: no launcher started "
            "this one. Start them with `accelerate launch` and a file of accelerate_configs/, or unset WORLD_SIZE and "
            "RANK"
        )
    # 0 and -1 are Accelerate's "as many as there are" and "to be given later".
    unmet = launch.processes not in (None, 0, -1, world_size)
    if unmet and several_machines():
        problems.append(
            f"`accelerate launch` on this machine ({gethostname()}) was asked for {launch.processes} processes, but "
            f"all machines together started {world_size}; {SAME_COMMAND}"
        )
    elif unmet:
        problems.append(
            f"`accelerate launch` was asked for {launch.processes} processes, but started {world_size}; on CPU use "
            f"`accelerate launch --config_file accelerate_configs/cpu.yaml --num_processes {launch.processes}`"
        )
    return problems
