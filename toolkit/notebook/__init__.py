"""A recipe in a notebook: looked at, tried out, and run, with the same loop as on the command line.

`open_recipe` opens a recipe and `prepared` prepares its training. What takes a prepared training leaves it, and the
random generators, exactly as they were. See `docs/notebooks.md`.
"""

import os
import warnings

# Before torch is imported, whose profiler would print when it starts and stops.
os.environ.setdefault("KINETO_LOG_LEVEL", "6")
# Progress bars are off, so nothing is lost without the widgets.
warnings.filterwarnings("ignore", message="IProgress not found")

from toolkit.notebook.batches import first_batch  # noqa: E402
from toolkit.notebook.launching import launch  # noqa: E402
from toolkit.notebook.learning import gradient_norms, learning_rate_range, overfit  # noqa: E402
from toolkit.notebook.plots import curves, run_with_plot  # noqa: E402
from toolkit.notebook.profiling import profile_step  # noqa: E402
from toolkit.notebook.session import Recipe, open_recipe, prepared, run  # noqa: E402
from toolkit.notebook.token_losses import loss_per_token  # noqa: E402

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
