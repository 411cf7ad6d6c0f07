"""Fine-tuning on Hugging Face Accelerate: the same numbers on any number of processes.

The names below are all that a recipe needs to begin with; they are imported when they are first used, so that `--help`
answers before torch is loaded. A recipe imports from here before it imports torch (`toolkit/environment.py` says why).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from toolkit.environment import prepare_environment

if TYPE_CHECKING:
    from toolkit.config.batch import BatchConfig
    from toolkit.config.optim import OptimConfig, Rates
    from toolkit.config.schema import CheckpointConfig, Config, EvaluateConfig, TimeoutConfig
    from toolkit.errors import UserError
    from toolkit.recipe_command import fine_tune
    from toolkit.task import Batch, Source, Task, TaskData

prepare_environment()

HOMES = {
    "Batch": "toolkit.task",
    "BatchConfig": "toolkit.config.batch",
    "CheckpointConfig": "toolkit.config.schema",
    "Config": "toolkit.config.schema",
    "EvaluateConfig": "toolkit.config.schema",
    "OptimConfig": "toolkit.config.optim",
    "Rates": "toolkit.config.optim",
    "Source": "toolkit.task",
    "Task": "toolkit.task",
    "TaskData": "toolkit.task",
    "TimeoutConfig": "toolkit.config.schema",
    "UserError": "toolkit.errors",
    "fine_tune": "toolkit.recipe_command",
}

__all__ = [
    "Batch",
    "BatchConfig",
    "CheckpointConfig",
    "Config",
    "EvaluateConfig",
    "OptimConfig",
    "Rates",
    "Source",
    "Task",
    "TaskData",
    "TimeoutConfig",
    "UserError",
    "fine_tune",
]


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module 'toolkit' has no attribute {name!r}")
    return getattr(import_module(HOMES[name]), name)
