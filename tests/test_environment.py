"""What libraries read once, when they are loaded, is set before, and what the user has set stays."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from launching import ROOT, clean_environment

from toolkit.environment import prepare_environment

# Ends where torch would be loaded.
UNTIL_TORCH = """
import os, runpy, sys
class Spy:
    def find_spec(self, name, *rest):
        if name == "torch":
            print(os.environ.get("GOMP_SPINCOUNT"), os.environ.get("TORCH_CPP_LOG_LEVEL"))
            sys.exit()
sys.meta_path.insert(0, Spy())
runpy.run_path(sys.argv[1])
"""
WITH_TORCH = [path for path in sorted((ROOT / "recipes").glob("*.py")) if "\nimport torch" in path.read_text("utf-8")]


@pytest.mark.parametrize(
    ("chosen", "spins"),
    [({}, "1000"), ({"GOMP_SPINCOUNT": "5"}, "5"), ({"OMP_WAIT_POLICY": "active"}, None)],
)
def test_threads_that_wait_make_way_unless_the_user_says_otherwise(
    monkeypatch: pytest.MonkeyPatch, chosen: dict[str, str], spins: str | None
) -> None:
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in chosen.items():
        monkeypatch.setenv(name, value)
    prepare_environment()
    assert os.environ.get("GOMP_SPINCOUNT") == spins
    assert os.environ.get("OMP_WAIT_POLICY") == chosen.get("OMP_WAIT_POLICY")


@pytest.mark.parametrize("recipe", WITH_TORCH, ids=lambda recipe: recipe.stem)
def test_a_recipe_loads_the_toolkit_before_torch(recipe: Path) -> None:
    environment = clean_environment()
    for name in ("GOMP_SPINCOUNT", "TORCH_CPP_LOG_LEVEL"):
        environment.pop(name, None)
    command = [sys.executable, "-c", UNTIL_TORCH, str(recipe)]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout == "1000 ERROR\n", done.stderr
