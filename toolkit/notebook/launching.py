"""Several processes started from a notebook: a command of its own, as in a terminal, not a fork of the kernel."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

from toolkit.claim import finished_result
from toolkit.config.yaml import to_yaml
from toolkit.errors import Preempted, UserError
from toolkit.notebook.kernel import SET_BY_A_LAUNCHER
from toolkit.notebook.opening import Recipe
from toolkit.output.result import Result
from toolkit.output.run_folder import RunFolder

SECONDS_TO_END = 40.0


def launch(recipe: Recipe, config_file: str | Path, processes: int = 2, *, fork: bool = False) -> Result:
    """Run a recipe in several processes with `accelerate launch`, show what it prints, and return its result.

    Interrupting the kernel once asks the run to stop with a sealed checkpoint, twice ends it. It is a program of its own: when the
    kernel is restarted it goes on (a file STOP in its run folder stops it).

    Args:
        recipe: what `open_recipe` returned.
        config_file: a launch file, such as accelerate_configs/cpu.yaml.
        processes: how many, on this machine.
        fork: refused, always with the reason that holds here; `accelerate.notebook_launcher` would fork.

    Raises:
        UserError: what the command refuses, or a recipe without a file, or `fork`.
        Preempted: the run stopped on request.
        RuntimeError: it failed; what it said is in the output.
    """
    if fork:
        raise UserError(*reasons_against_fork())
    if recipe.path is None:
        raise UserError(
            f"the recipe {recipe.name} is written in this notebook, and other processes can't see it; save it as a file and open that "
            "with open_recipe"
        )
    if not Path(config_file).is_file():
        raise UserError(f"there is no launch file {config_file}; name one of accelerate_configs/, such as cpu.yaml")
    folder = RunFolder(Path(str(recipe.config.output)))
    with tempfile.TemporaryDirectory() as scratch:
        settings = Path(scratch) / "settings.yaml"
        settings.write_text(to_yaml(recipe.config), encoding="utf-8")
        words = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(config_file)]
        words += ["--num_processes", str(processes), "--main_process_port", "0"]
        code, said = followed([*words, str(recipe.path), "--config", str(settings)], folder)
    problems = list(problems_in(said))
    result = finished_result(folder) if code == 0 else None
    if result is not None:
        return result
    if problems:
        raise UserError(*problems)
    record = folder.record()
    if record.get("status") == "preempted":
        raise Preempted(record["step"], record["reason"])
    raise RuntimeError(f"{recipe.name} failed in its own processes (exit code {code}); what it said is above")


def reasons_against_fork() -> list[str]:
    """Return why the kernel may not be forked, as it stands now.

    A fork copies the memory of the kernel and one of its threads. CUDA can't be used in the copy once it was used in the original;
    and the threads that torch computes with on CPU are not in the copy: one that computes in several threads, after the kernel
    did, waits for them for ever.
    """
    way = "leave fork out: launch() starts the processes as a program of its own, which inherits nothing"
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return [
            "fork was asked for, but this kernel has used CUDA already (something is or was on the GPU), and CUDA does not work in a "
            f"fork of a process that has used it; {way}"
        ]
    return [
        "fork was asked for, but a fork of this kernel lacks the threads that torch has started in it, and may wait for them for "
        f"ever; {way}"
    ]


def followed(words: list[str], folder: RunFolder) -> tuple[int, list[str]]:
    """Run a command, print what it prints as it comes, and return its exit code and its lines."""
    kept = {
        name: value
        for name, value in os.environ.items()
        # A kernel is no process of a launcher, and the threads that were set for one process are not those of two.
        if name not in (*SET_BY_A_LAUNCHER, "OMP_NUM_THREADS") and not name.startswith("TORCHELASTIC_")
    }
    said: list[str] = []
    # A group of its own: an interrupt of the kernel goes to the kernel's whole group, and would come to the processes twice.
    command = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=kept, process_group=0
    )
    asked = False
    try:
        while True:
            try:
                assert command.stdout is not None
                for line in command.stdout:
                    said.append(line)
                    print(line, end="", flush=True)
                return command.wait(), said
            except KeyboardInterrupt:
                if asked:
                    raise
                asked = True
                # It may not have come to make its folder.
                folder.path.mkdir(parents=True, exist_ok=True)
                folder.stop_file.touch()
                print("asked to stop: it seals a checkpoint and ends; interrupt again to end it now", flush=True)
    finally:
        end(command)
        if asked:
            # What has been asked for was done, or will not be: the next start is not to stop for it.
            folder.stop_file.unlink(missing_ok=True)


def end(command: "subprocess.Popen[str]") -> None:
    """End a command that still runs, first in the way that lets its processes end too."""
    if command.poll() is not None:
        return
    command.terminate()
    try:
        command.wait(SECONDS_TO_END)
    except subprocess.TimeoutExpired:
        command.kill()
        command.wait()


def problems_in(said: list[str]) -> Iterator[str]:
    """Yield the sentences with which a recipe refused to go on."""
    telling = False
    for line in said:
        if line.rstrip().endswith(" can't go on:"):
            telling = True
        elif telling and line.startswith("  - "):
            yield line.removeprefix("  - ").rstrip()
        else:
            telling = False
