"""A recipe inside of a notebook: looked at, tried out, and run, with the same loop as on the command line.

A notebook opens a recipe with `open_recipe` and prepares it with `prepared`; what takes a prepared training leaves it, and the
random generators, exactly as they were. See `docs/notebooks.md`.
"""

import os
import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toolkit.notebook.batches import first_batch
    from toolkit.notebook.launching import launch
    from toolkit.notebook.learning import gradient_norms, learning_rate_range, overfit
    from toolkit.notebook.live import curves, run_with_plot
    from toolkit.notebook.opening import Recipe, open_recipe, prepared
    from toolkit.notebook.profiling import profile_step
    from toolkit.notebook.running import run
    from toolkit.notebook.token_losses import loss_per_token

# Else torch's profiler tells stderr that it starts and that it stops.
os.environ.setdefault("KINETO_LOG_LEVEL", "6")
# Their bars are off, so that nothing is lost without the widgets.
warnings.filterwarnings("ignore", message="IProgress not found")

HOMES = {
    "Recipe": "toolkit.notebook.opening",
    "curves": "toolkit.notebook.live",
    "first_batch": "toolkit.notebook.batches",
    "gradient_norms": "toolkit.notebook.learning",
    "launch": "toolkit.notebook.launching",
    "learning_rate_range": "toolkit.notebook.learning",
    "loss_per_token": "toolkit.notebook.token_losses",
    "open_recipe": "toolkit.notebook.opening",
    "overfit": "toolkit.notebook.learning",
    "prepared": "toolkit.notebook.opening",
    "profile_step": "toolkit.notebook.profiling",
    "run": "toolkit.notebook.running",
    "run_with_plot": "toolkit.notebook.live",
}

__all__ = [
    "Recipe",
    "curves",
    "first_batch",
    "gradient_norms",
    "launch",
    "learning_rate_range",
    "loss_per_token",
    "open_recipe",
    "overfit",
    "prepared",
    "profile_step",
    "run",
    "run_with_plot",
]


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module 'toolkit.notebook' has no attribute {name!r}")
    return getattr(import_module(HOMES[name]), name)
