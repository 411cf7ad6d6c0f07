"""A recipe as a module, for tests that run it in their own process."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

RECIPES = Path(__file__).parents[1] / "recipes"


def recipe_module(name: str) -> ModuleType:
    """Return recipes/<name>.py; dataclasses and the command line look its module up by its name."""
    spec = importlib.util.spec_from_file_location(f"{name}_recipe", RECIPES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
