"""Mistakes as people make them, started as they start them: one clear message, exit code 2, nothing touched, and what
the message offers works.

The tables are beside this file; CONTRIBUTING.md says how to add a row.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import mistakes_in_commands
import mistakes_in_data
import mistakes_in_environments
import mistakes_in_models
import mistakes_in_settings
import pytest
from launching import ROOT, clean_environment, server
from mistake import Mistake, check_untouched, state_of
from users_folder import RUNS, SHORT, STOPPED

TABLES = (
    mistakes_in_settings,
    mistakes_in_data,
    mistakes_in_models,
    mistakes_in_commands,
    mistakes_in_environments,
)
MISTAKES: list[Mistake] = [row for table in TABLES for row in table.MISTAKES]


def environment() -> dict[str, str]:
    """Return what a user's shell has, and one thread."""
    path = os.pathsep.join(map(str, (ROOT, ROOT / "tests" / "helpers", ROOT / "tests")))
    return clean_environment(PYTHONPATH=path, OMP_NUM_THREADS="1")


class Folder:
    """The folder in which mistakes are made; runs remember its path, so it is always the same one."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.kept = place.with_name("kept")
        shutil.copytree(place, self.kept, symlinks=True)
        self.state = state_of(place)

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Have the folder be what it was, after this block."""
        try:
            yield
        finally:
            subprocess.run(["chmod", "-R", "u+rwX", self.place], check=True)
            if state_of(self.place) != self.state or names_in(self.place) != names_in(self.kept):
                shutil.rmtree(self.place)
                shutil.copytree(self.kept, self.place, symlinks=True)


def names_in(folder: Path) -> set[str]:
    """Return the names in a folder: of empty folders and of links too."""
    return {path.name for path in folder.iterdir()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """The folder in which mistakes are made, as it is before."""
    place = tmp_path_factory.mktemp("user") / "work"
    maker = ROOT / "tests" / "helpers" / "users_folder.py"
    commands = [
        *(f"python recipes/{command} {' '.join(SHORT)} --output runs/{name}" for name, command in RUNS.items()),
        f"python {maker} stop recipes/{STOPPED} --output runs/stopped",
    ]
    made = server().run(f"python {maker} {place}", place.parent, environment())
    assert made.code == 0, made.errors
    for command in commands:
        ended = server().run(command, place, environment())
        assert ended.code == (75 if " stop " in command else 0), ended.errors
    return Folder(place)


@pytest.mark.parametrize("mistake", MISTAKES, ids=[f"{row.before} {row.command}".strip() for row in MISTAKES])
def test_mistake(mistake: Mistake, folder: Folder) -> None:
    place = folder.place
    with folder.restored():
        mistake.prepare(place)
        before = state_of(place)
        ended = server().run(mistake.command, place, environment())
        mistake.check_message(ended)
        check_untouched(before, place)
        if mistake.mended is not None:
            then = server().run(mistake.mended, place, environment())
            assert then.code == mistake.outcome, (mistake.mended, then.errors or then.output)


def test_they_are_many_and_over_all_recipes_and_commands() -> None:
    commands = {(row.before, row.command) for row in MISTAKES}
    assert len(commands) == len(MISTAKES)
    assert len(MISTAKES) >= 150
    typed = " ".join(row.command for row in MISTAKES)
    for recipe in (ROOT / "recipes").glob("*.py"):
        assert typed.count(f"recipes/{recipe.name} ") >= 5, recipe
    for command in ("status", "verify", "compare", "report", "export", "track", "predict", "chat"):
        assert typed.count(f"toolkit {command}") >= 5, command
