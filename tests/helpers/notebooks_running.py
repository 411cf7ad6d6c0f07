"""Running the notebooks as a reader does, from top to bottom, and reading what they found.

A notebook collects its figures in a dictionary called `figures`, of plain numbers, texts, lists and dictionaries.
"""

import json
from pathlib import Path
from typing import Any

import nbformat
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from launching import ROOT, clean_environment
from nbclient import NotebookClient

NOTEBOOKS = ROOT / "notebooks"
SECONDS = 300
"""A cell that takes longer hangs."""


def run_notebook(path: Path, executed: Path | None = None, **environment: str) -> dict[str, Any]:
    """Run a notebook in a kernel of this very environment, in the notebook's own folder, and return its `figures`.

    Where `executed` is given, the notebook with its outputs is written there, to be looked at.
    """
    notebook = nbformat.read(path, as_version=4)
    notebook.cells.append(nbformat.v4.new_code_cell("import json\nprint(json.dumps(figures, allow_nan=False))"))
    # No folder is searched, so no kernel that a user has installed stands in for this interpreter.
    kernels = KernelSpecManager(kernel_dirs=[], ensure_native_kernel=True)
    manager = AsyncKernelManager(kernel_name="python3", kernel_spec_manager=kernels)
    client = NotebookClient(notebook, km=manager, timeout=SECONDS, resources={"metadata": {"path": str(path.parent)}})
    # The client ends a kernel whose manager it was given only if it is told to.
    client.execute(cleanup_kc=True, env=clean_environment(**environment))
    printed = notebook.cells.pop().outputs[0].text
    if executed is not None:
        nbformat.write(notebook, executed)
    figures: dict[str, Any] = json.loads(printed)
    return figures


def outputs_in(path: Path) -> int:
    """Return how many cells of a notebook carry outputs or a count of execution: none, as it is committed."""
    cells = nbformat.read(path, as_version=4).cells
    return sum(1 for cell in cells if cell.get("outputs") or cell.get("execution_count"))
