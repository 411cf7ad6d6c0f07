"""Starting recipes in processes of their own, as a user does."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
CPU = ROOT / "accelerate_configs" / "cpu.yaml"
TINY = ROOT / "tests" / "helpers" / "tiny_recipe.py"
CLASSIFY = ROOT / "recipes" / "classify.py"

# Whatever the tests' own process was started by, or has set for itself, is not to reach the runs that they start.
OWN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS")


def clean_environment(**more: str) -> dict[str, str]:
    """Return the environment without what a launcher sets."""
    kept = {
        k: v
        for k, v in os.environ.items()
        if k not in OWN and not k.startswith(("ACCELERATE_", "FSDP_", "PARALLELISM_CONFIG_", "TORCHELASTIC"))
    }
    return {**kept, "HF_HUB_OFFLINE": "1", **more}


def python(script: Path, *arguments: str, timeout: float = 120, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a recipe under plain python."""
    return finished([sys.executable, str(script), *arguments], timeout, environment)


def launch(
    script: Path, *arguments: str, processes: int = 2, config: Path = CPU, timeout: float = 180, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a recipe under `accelerate launch` with a launch file, by default several processes on the CPU."""
    launcher = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(config)]
    port = ["--num_processes", str(processes), "--main_process_port", "0"]
    return finished([*launcher, *port, str(script), *arguments], timeout, environment)


def finished(command: list[str], timeout: float, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command to its end and return its exit code and what it printed."""
    return subprocess.run(
        command, env=clean_environment(**environment), capture_output=True, text=True, timeout=timeout, check=False
    )
