"""The tour is walked: its commands one after another, in a folder of its own, and what it says of them holds."""

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from doc_pages import blocks, commands
from launching import ROOT
from recipe_layouts import config_class, load_recipe
from resuming import rows_of
from trial import Outcome, command_here, run_here

TOUR = ROOT / "docs" / "tour.md"


@pytest.fixture(scope="module")
def walked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, Outcome]]]:
    """The folder in which the tour was walked, and what each command came to.

    Recipes run in this process, as one process whatever the launcher is asked for: that two have the same numbers is
    held by test_recipes.py.
    """
    folder, outcomes = tmp_path_factory.mktemp("tour"), {}
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.chdir(folder)
        for block in blocks(TOUR):
            if block.language == "python":
                exec(block.text, {})
            elif block.language == "bash":
                (command,) = commands(block.text)
                outcomes[command] = outcome_of(command)
        yield folder, outcomes


def outcome_of(command: str) -> Outcome:
    """Run a command of the tour in this process."""
    words = shlex.split(command)
    if words[0] == "toolkit":
        return command_here(*words[1:])
    place = words.index("recipes/classify.py")
    recipe = load_recipe("classify")
    arguments = [*words[place + 1 :], "--threads", "1"]
    folder = Path(words[words.index("--output") + 1] if "--output" in words else "runs/classify")
    return run_here(config_class(recipe), recipe.task, arguments, folder, named=False)


def test_every_command_ends_well_but_the_mistake(walked: tuple[Path, dict[str, Outcome]]) -> None:
    _, outcomes = walked
    assert len(outcomes) >= 9
    codes = {command: outcome.code for command, outcome in outcomes.items()}
    assert {command for command, code in codes.items() if code} == {command for command in codes if "trian" in command}


def test_the_mistakes_are_answered_as_the_page_says(walked: tuple[Path, dict[str, Outcome]]) -> None:
    _, outcomes = walked
    answered = next(outcome for command, outcome in outcomes.items() if "trian" in command)
    shown = [block.text for block in blocks(TOUR) if "can't go on" in block.text]
    assert answered.code == 2
    assert shown == [answered.errors.lstrip("\n")]


def test_what_the_page_shows_of_the_end_of_a_run_is_what_stands_there(walked: tuple[Path, dict[str, Outcome]]) -> None:
    folder, outcomes = walked
    trained = next(outcome for command, outcome in outcomes.items() if command.endswith("--output runs/reviews"))
    (shown,) = [block.text for block in blocks(TOUR) if block.text.startswith("trained ")]
    first, *lines = [line.split() for line in shown.splitlines() if line.strip()]
    assert f"trained {first[1]} steps" in trained.output
    for words in lines:
        # Its figures are of one machine; what they are called and where files lie is the same everywhere.
        assert any(line.split()[:1] == words[:1] for line in trained.output.splitlines())
        assert not words[1].startswith("runs/") or (folder / words[1]).exists()
    metrics = json.loads((folder / "runs" / "reviews" / "run.json").read_text())["metrics"]
    assert metrics["accuracy"] > 0.7


def test_two_runs_of_the_page_have_the_same_numbers(walked: tuple[Path, dict[str, Outcome]]) -> None:
    folder, outcomes = walked
    compared = next(outcome for command, outcome in outcomes.items() if command.startswith("toolkit compare"))
    (shown,) = [block.text for block in blocks(TOUR) if "relative difference" in block.text]
    for line in shown.splitlines():
        assert any(other.split()[:3] == line.split()[:3] for other in compared.output.splitlines())
    one, two = (rows_of(folder / "runs" / name / "ledger.jsonl") for name in ("reviews", "two"))
    assert one == two


def test_every_row_of_the_file_is_answered(walked: tuple[Path, dict[str, Outcome]]) -> None:
    folder, _ = walked
    rows = (folder / "answered.csv").read_text(encoding="utf-8").splitlines()
    assert rows[0] == "review,stars,prediction,score"
    assert len(rows) == 1 + 60
