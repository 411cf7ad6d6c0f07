"""docs/features.md: each row says yes, partly or no, and each flag that it names is one."""

import re
from pathlib import Path

import pytest
from recipe_layouts import load_recipe

from toolkit.config.fields import leaves
from toolkit.config.schema import Config

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "features.md").read_text(encoding="utf-8")
OF_COMMANDS = {"help", "config", "print_config"}


def known() -> set[str]:
    """Return the settings of all recipes."""
    found: set[str] = set()
    for path in (ROOT / "recipes").glob("*.py"):
        classes = [value for value in vars(load_recipe(path.stem)).values() if isinstance(value, type)]
        for one in classes:
            if issubclass(one, Config) and one is not Config:
                found |= {name for name, _, _ in leaves(one())}
    return found


def test_each_flag_that_is_named_exists() -> None:
    named = set(re.findall(r"`--([\w.]+)", PAGE)) | set(re.findall(r" --([\w.]+)", PAGE))
    assert len(named) > 40
    assert named - OF_COMMANDS - {"resume"} <= known()


@pytest.mark.parametrize("project", ["Accelerate", "The Trainer of Transformers", "Lightning"])
def test_each_row_has_an_answer_and_a_reason(project: str) -> None:
    section = PAGE.split(f"\n## {project}\n")[1].split("\n## ")[0]
    rows = [line.strip("|").split(" | ") for line in section.splitlines() if line.startswith("| ")]
    rows = [[cell.strip() for cell in row] for row in rows if row[0].strip() not in ("feature", "---")]
    assert len(rows) > 40
    for row in rows:
        assert len(row) == 3, row
        assert row[1] in ("yes", "partly", "no"), row
        assert row[2], row
