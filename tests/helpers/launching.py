"""Starting recipes in processes of their own, as a user does.

In tests these are copies of a process that has loaded what they need (`command_server.py`), which saves each of them
four seconds. Benchmarks, and tests of what is loaded when, start each anew.
"""

import atexit
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from command_server import PROGRAMS, Command, CommandServer

ROOT = Path(__file__).parents[2]
CPU = ROOT / "accelerate_configs" / "cpu.yaml"
TINY = ROOT / "tests" / "helpers" / "tiny_recipe.py"
CLASSIFY = ROOT / "recipes" / "classify.py"

# Whatever the tests' own process was started by, or has set for itself, is not to reach the runs that they start.
OWN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS")

of_copies: dict[str, str] | None = None
"""The environment in which the server is to load what it loads; None for no copies."""
Process = Command | subprocess.Popen[str]


def clean_environment(**more: str) -> dict[str, str]:
    """Return the environment without what a launcher sets."""
    kept = {
        k: v
        for k, v in os.environ.items()
        if k not in OWN and not k.startswith(("ACCELERATE_", "FSDP_", "PARALLELISM_CONFIG_", "TORCHELASTIC"))
    }
    return {**kept, "HF_HUB_OFFLINE": "1", **more}


@cache
def server() -> CommandServer:
    """The server that starts the commands of this process."""
    assert of_copies is not None
    started = CommandServer(of_copies)
    atexit.register(started.close)
    return started


def start_copies() -> None:
    """Have `begin` start copies from now on, in whose environment libraries find what they find in this one.

    Not in that of the first command: the test that starts it may have changed its own.
    """
    global of_copies
    of_copies = clean_environment()


def begin(
    words: Sequence[str | Path], environment: Mapping[str, str], folder: Path | None = None, output: Path | None = None
) -> "Process":
    """Start a command in a session of its own; what it prints is added to a file, or got by `communicate`.

    It is a copy if copies are asked for, unless its environment holds what a library reads when it is loaded.
    """
    command = [str(word) for word in words]
    if of_copies is not None and server().alike(environment):
        streams = {} if output is None else {">>": str(output), "2>": "&1"}
        return server().start(command, folder or Path.cwd(), environment, streams)
    with Path(os.devnull if output is None else output).open("a", encoding="utf-8") as file:
        return subprocess.Popen(
            command,
            env=dict(environment),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if output is None else file,
            stderr=subprocess.PIPE if output is None else file,
            text=True,
            start_new_session=True,
        )


def python(script: Path, *arguments: str, timeout: float = 120, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a recipe under plain python."""
    return finished([sys.executable, str(script), *arguments], timeout, environment)


def launch(
    script: Path, *arguments: str, processes: int = 2, config: Path = CPU, timeout: float = 180, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a recipe under `accelerate launch` with a launch file, by default several processes on the CPU."""
    launcher = [str(PROGRAMS / "accelerate"), "launch", "--config_file", str(config)]
    port = ["--num_processes", str(processes), "--main_process_port", "0"]
    return finished([*launcher, *port, str(script), *arguments], timeout, environment)


def finished(
    command: Sequence[str | Path], timeout: float, environment: Mapping[str, str], folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end and return its exit code and what it printed."""
    process = begin(command, clean_environment(**environment), folder)
    try:
        output, errors = process.communicate(timeout=timeout)
    except BaseException:  # it took too long, or Ctrl-C, which does not reach a session of its own
        process.kill()
        process.wait()
        raise
    return subprocess.CompletedProcess(command, process.wait(), output, errors)
