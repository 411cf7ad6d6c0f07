"""Start several processes from a notebook with `accelerate launch`, as in a terminal, not as a fork of the kernel."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

from toolkit.config.yaml import to_yaml
from toolkit.errors import Preempted, UserError
from toolkit.notebook.session import Recipe
from toolkit.output.result import Result
from toolkit.output.run_folder import RunFolder
from toolkit.run_folder_claim import finished_result
from toolkit.verify.recipe_run import without_launcher

SECONDS_TO_END = 40.0


def launch(recipe: Recipe, config_file: str | Path, processes: int = 2, *, fork: bool = False) -> Result:
    """Run a recipe in several processes with `accelerate launch`, show what it prints, and return its result.

    Interrupting the kernel once asks the run to stop with a sealed checkpoint, twice ends it. It is a separate program:
    when the kernel is restarted it goes on (a file STOP in its run folder stops it).

    Args:
        recipe: what `open_recipe` returned.
        config_file: a launch file, such as accelerate_configs/cpu.yaml.
        processes: how many, on this machine.
        fork: always refused, with the reason that holds here; `accelerate.notebook_launcher` would fork.

    Raises:
        UserError: what the command refuses, or a recipe without a file, or `fork`.
        Preempted: the run stopped on request.
        RuntimeError: it failed; its messages are in the output.
    """
    if fork:
        raise UserError(reason_against_fork())
    if recipe.path is None:
        raise UserError(
            f"the recipe {recipe.name} is written in this notebook, and other processes can't see it; save it as a "
            "file and open that with open_recipe"
        )
    if not Path(config_file).is_file():
        raise UserError(f"there is no launch file {config_file}; name one of accelerate_configs/, such as cpu.yaml")
    folder = RunFolder(Path(str(recipe.config.output)))
    with tempfile.TemporaryDirectory() as scratch:
        settings = Path(scratch) / "settings.yaml"
        settings.write_text(to_yaml(recipe.config), encoding="utf-8")
        words = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(config_file)]
        words += ["--num_processes", str(processes), "--main_process_port", "0"]
        code, lines = run_and_show([*words, str(recipe.path), "--config", str(settings)], folder)
    if code == 0 and (result := finished_result(folder)) is not None:
        return result
    if problems := list(problems_in(lines)):
        raise UserError(*problems)
    record = folder.record()
    if record.get("status") == "preempted":
        raise Preempted(record["step"], record["reason"])
    raise RuntimeError(f"{recipe.name} failed in its own processes (exit code {code}); what it said is above")


def reason_against_fork() -> str:
    """Return why the kernel may not be forked in its present state.

    A fork copies the memory of the kernel and one of its threads. If the kernel has used CUDA, the copy can't. And the
    copy has none of the threads that torch computes with on CPU: if the kernel has computed in several threads, the
    copy waits for them for ever when it does.
    """
    remedy = "leave fork out: launch() starts the processes as a program of its own, which inherits nothing"
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return (
            "fork was asked for, but this kernel has used CUDA already (something is or was on the GPU), and CUDA does "
            f"not work in a fork of a process that has used it; {remedy}"
        )
    return (
        "fork was asked for, but a fork of this kernel lacks the threads that torch has started in it, and may wait "
        f"for them for ever; {remedy}"
    )


def run_and_show(words: list[str], folder: RunFolder) -> tuple[int, list[str]]:
    """Run a command, print its output as it comes, and return its exit code and the lines."""
    environment = without_launcher(os.environ)
    # The threads that were set for one process are not those of two.
    environment.pop("OMP_NUM_THREADS", None)
    lines: list[str] = []
    # An interrupt goes to the whole process group of the kernel. In a group of their own, the processes don't get it.
    command = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, process_group=0
    )
    stop_requested = False
    try:
        while True:
            try:
                assert command.stdout is not None
                for line in command.stdout:
                    lines.append(line)
                    print(line, end="", flush=True)
                return command.wait(), lines
            except KeyboardInterrupt:
                if stop_requested:
                    raise
                stop_requested = True
                # The run may not have made its folder yet.
                folder.path.mkdir(parents=True, exist_ok=True)
                folder.stop_file.touch()
                print("asked to stop: it seals a checkpoint and ends; interrupt again to end it now", flush=True)
    finally:
        end(command)
        if stop_requested:
            # Whether it has stopped or not, the next start must not stop for this request.
            folder.stop_file.unlink(missing_ok=True)


def end(command: "subprocess.Popen[str]") -> None:
    """End a command that still runs, at first in a way that lets its processes end too."""
    if command.poll() is not None:
        return
    command.terminate()
    try:
        command.wait(SECONDS_TO_END)
    except subprocess.TimeoutExpired:
        command.kill()
        command.wait()


def problems_in(lines: list[str]) -> Iterator[str]:
    """Yield the problems that a recipe printed when it refused to go on."""
    in_list = False
    for line in lines:
        if line.rstrip().endswith(" can't go on:"):
            in_list = True
        elif in_list and line.startswith("  - "):
            yield line.removeprefix("  - ").rstrip()
        else:
            in_list = False
