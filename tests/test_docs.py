"""What the documentation shows runs, and what it names exists."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from launching import ROOT, launch

from toolkit.output.ledger import read_ledger

PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "benchmarks" / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
]


def test_the_recipe_of_the_docs_runs_on_two_processes_and_keeps_its_claim(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "write-a-recipe.md").read_text(encoding="utf-8")
    recipe = tmp_path / "waves.py"
    recipe.write_text(re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)[0], encoding="utf-8")
    result = launch(recipe, "--output", str(tmp_path / "run"))
    assert result.returncode == 0, result.stderr
    assert json.loads((tmp_path / "run" / "run.json").read_text())["metrics"]["accuracy"] > 0.9
    assert len(list(read_ledger(tmp_path / "run" / "ledger.jsonl"))) == 10 * 19


@pytest.mark.parametrize("recipe", sorted((ROOT / "recipes").glob("*.py")), ids=lambda recipe: recipe.stem)
def test_every_recipe_is_short_and_has_a_page_that_names_it(recipe: Path) -> None:
    assert len(recipe.read_text(encoding="utf-8").splitlines()) <= 120
    page = (ROOT / "docs" / f"{recipe.stem}.md").read_text(encoding="utf-8")
    assert f"accelerate launch recipes/{recipe.name}" in page
    assert f"docs/{recipe.stem}.md" in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = set(re.findall(r"\b((?:recipes|toolkit|tests|docs|benchmarks|accelerate_configs)/[\w/.-]*\w)", text))
    linked = {target for target in re.findall(r"\]\(([^)#]+)", text) if "://" not in target}
    missing = {name for name in named if not (ROOT / name).exists()}
    missing |= {name for name in linked if not (page.parent / name).exists()}
    # Written by a run, not shipped.
    assert not {name for name in missing if not name.startswith("runs/")}


def test_the_picture_of_the_house_is_that_of_the_folders() -> None:
    drawn = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "draw_house.py")], capture_output=True, text=True, check=True
    ).stdout
    message = "draw it again: python docs/draw_house.py > docs/house.svg"
    assert (ROOT / "docs" / "house.svg").read_text(encoding="utf-8") == drawn, message
