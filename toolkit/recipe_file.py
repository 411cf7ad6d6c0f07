"""Load a recipe's file: its configuration and its task, without starting its run."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, get_type_hints

from toolkit.config.schema import Config
from toolkit.errors import UserError


def load_recipe(path: Path) -> tuple[type[Config], Callable[[Any], Any]]:
    """Return the configuration and the task of a recipe, without starting its run.

    Raises:
        UserError: the file can't be loaded, or defines no recipe.
    """
    name = f"recipe_{path.stem}"
    spec = spec_from_file_location(name, path) if path.is_file() and path.suffix == ".py" else None
    if spec is None or spec.loader is None:
        around = [file.name for file in path.parent.glob("*.py")] if path.parent.is_dir() else []
        near = get_close_matches(path.name, around, 1)
        hint = f"did you mean {path.with_name(near[0])}?" if near else "name the recipe's, such as recipes/classify.py"
        what = "is no Python file" if path.exists() else "does not exist"
        raise UserError(f"the recipe {path} {what}; {hint}")
    module = module_from_spec(spec)
    # Dataclasses and the command line look up the module of a class by its name.
    sys.modules[name] = module
    with first_on_path(path.resolve().parent):
        try:
            spec.loader.exec_module(module)
        except SystemExit:
            raise UserError(
                f'the recipe {path} starts its run when it is loaded; put fine_tune under `if __name__ == "__main__":`'
            ) from None
        except Exception as error:
            raise UserError(f"the recipe {path} can't be loaded: {type(error).__name__}: {error}") from error
    classes = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Config) and value.__module__ == name
    ]
    task = getattr(module, "task", None)
    if len(classes) > 1 and callable(task):
        # The one that is annotated in the signature of `task`.
        classes = [value for value in classes if value in get_type_hints(task).values()] or classes
    if len(classes) != 1 or not callable(task):
        raise UserError(
            f"{path} is no recipe that can be read: it has to define one class that is a Config (it defines "
            f"{len(classes)}) and a function `task` ({'it does' if callable(task) else 'it does not'})"
        )

    def build(config: Any) -> Any:
        with first_on_path(path.resolve().parent):
            return task(config)

    return classes[0], build


@contextmanager
def first_on_path(folder: Path) -> Iterator[None]:
    """Let imports look in a folder first, as they do for a script in this folder."""
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
