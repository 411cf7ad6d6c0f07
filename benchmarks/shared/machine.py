"""What every benchmark prints beside its figures: the machine, the versions, the date, and Markdown tables.

This folder holds what scripts of several folders share. A script is run by its path, for example
`python benchmarks/numerics/topology.py`, so Python looks for modules in the script's own folder and not here. Each
script that needs this folder therefore adds it to `sys.path`, in the line after its first imports.
"""

import os
import platform
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("torch", "accelerate", "transformers", "numpy")


def machine() -> str:
    """Return a line that names processor, cores, versions and date."""
    packages = ", ".join(f"{name} {version_of(name)}" for name in PACKAGES)
    date = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return (
        f"{processor()}, {len(os.sched_getaffinity(0))} core(s), {platform.system()} {platform.release()}; "
        f"Python {platform.python_version()}, {packages}; {date}"
    )


def version_of(package: str) -> str:
    """Return the installed version of a package, without importing it."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def processor() -> str:
    """Return the name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table: the first column to the left, the others to the right."""
    ruler = ["---", *["---:"] * (len(columns) - 1)]
    return "\n".join("| " + " | ".join(row) + " |" for row in (columns, ruler, *rows))


def accelerate_launch(python: str, processes: int, config: str = "cpu") -> list[str]:
    """Return the words of `accelerate launch` for so many processes on the CPU of this machine, by a launch file."""
    file = Path(__file__).parents[2] / "accelerate_configs" / f"{config}.yaml"
    words = ["-m", "accelerate.commands.launch", "--config_file", str(file), "--num_processes", str(processes)]
    return [python, *words]
