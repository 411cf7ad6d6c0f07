"""A recipe opened in a notebook: its configuration and its task, and all that one step of it needs, prepared."""

import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from toolkit.command import settings_of
from toolkit.config.schema import Config
from toolkit.errors import UserError
from toolkit.notebook.kernel import start_in_kernel
from toolkit.prepare import prepare
from toolkit.task import Task
from toolkit.train_state import TrainState
from toolkit.verify.recipe_file import load_recipe


@dataclass(frozen=True)
class Recipe:
    """A recipe with its settings. A configuration and a task that are written in the notebook itself make one too."""

    name: str
    """What its messages begin with."""
    config: Config
    task: Callable[[Any], Task]
    """Makes the task from the configuration."""
    path: Path | None = None
    """Its file; None where it is written in the notebook."""

    def into(self, output: str | Path) -> "Recipe":
        """Return the same recipe with another run folder."""
        return replace(self, config=replace(self.config, output=str(output)))


def open_recipe(path: str | Path, settings: str = "") -> Recipe:
    """Return a recipe with its settings, which are written as on the command line.

    Args:
        path: the recipe's file, such as recipes/classify.py.
        settings: such as "--batch.size 16 --epochs 1"; a word with a blank in it stands in quotes.

    Raises:
        UserError: the file is no recipe, or the settings are not what it takes.
    """
    file = Path(path)
    config_class, task = load_recipe(file)
    try:
        config = settings_of(config_class, "", shlex.split(settings), file.stem)
    except SystemExit:
        raise UserError(
            f"the settings {settings!r} only print something and end; take --help and --print_config out to open the recipe"
        ) from None
    except ValueError as error:
        raise UserError(f"the settings {settings!r} can't be cut into words ({error}); close the quotes") from None
    return Recipe(file.stem, config, task, file)


def prepared(recipe: Recipe) -> TrainState:
    """Return model, optimizer and data of a recipe on this machine's CPU or first GPU, before its first step.

    Nothing is written. A run that is started afterwards prepares its own.

    Raises:
        UserError: what the run would refuse too.
    """
    runtime = start_in_kernel(recipe.config)
    return prepare(runtime.together(lambda: recipe.task(recipe.config)), recipe.config, runtime)
