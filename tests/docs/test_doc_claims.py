"""What pages say of names, defaults, messages and figures is what the code, the libraries and the benchmarks say."""

import ast
import dataclasses
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from doc_pages import headings, rows
from launching import ROOT

from toolkit.config.fields import leaves
from toolkit.config.suggestions import show, suggestion
from toolkit.config.yaml import as_mapping
from toolkit.recipe_file import load_recipe
from toolkit.task import Task

DOCS = ROOT / "docs"
NAME = re.compile(r"`(?:--)?([\w.*]+)`(?: \(([^():;]+)[):;])?")


@cache
def defaults() -> dict[str, set[str]]:
    """Return the defaults of every setting in the recipes, as the help shows them."""
    found: dict[str, set[str]] = {}
    for recipe in (ROOT / "recipes").glob("*.py"):
        config = load_recipe(recipe)[0]()
        for key, _, _ in leaves(config):
            value: Any = config
            for part in key.split("."):
                value = getattr(value, part)
            found.setdefault(key, set()).add(show(as_mapping(value)))
    return found


def tables(first: str) -> list[list[str]]:
    """Return the rows of the tables in coming-from.md whose first heading is this."""
    found, inside = [], False
    for cells in rows(DOCS / "coming-from.md"):
        if cells[-1] == "here":
            inside = cells[0] == first
        elif inside:
            found.append(cells)
    assert found
    return found


def test_the_names_and_defaults_of_transformers_are_those_of_the_installed_version() -> None:
    from transformers import EarlyStoppingCallback, TrainingArguments

    assert EarlyStoppingCallback
    known = {field.name: field.default for field in dataclasses.fields(TrainingArguments)}
    named = [found for cells in tables("`TrainingArguments`") for found in NAME.findall(cells[0])]
    assert len(named) > 30
    for name, default in named:
        if name != "EarlyStoppingCallback":
            assert name in known
            assert default in ("", str(known[name]), str(known[name]).lower()), name


@pytest.mark.parametrize("page", ["coming-from.md", "speed.md"])
def test_our_names_and_defaults_are_those_of_the_recipes(page: str) -> None:
    named = [found for cells in rows(DOCS / page) for found in NAME.findall(cells[1 if len(cells) > 1 else 0])]
    ours = [(name, default) for name, default in named if name in defaults()]
    assert ours
    for name, default in ours:
        if default and page == "coming-from.md":
            # One default where all recipes have one; else one of theirs.
            assert default in defaults()[name], name


def test_most_names_of_other_trainers_are_answered_with_ours() -> None:
    kinds = ("`TrainingArguments`", "`SFTConfig`", "`DPOConfig`", "`ModelConfig`", "flag")
    named = {name for kind in kinds for cells in tables(kind) for name, _ in NAME.findall(cells[0])}
    unanswered = {name for name in named if suggestion(name, defaults()) == "--help lists every name"}
    assert len(unanswered) < len(named) / 5


def test_the_parts_of_a_task_that_pages_name_exist() -> None:
    known = {field.name for field in dataclasses.fields(Task)}
    named = {name for page in DOCS.glob("*.md") for name in re.findall(r"`Task\.(\w+)", page.read_text("utf-8"))}
    assert len(named) > 5
    assert named <= known


@cache
def texts_of_the_code() -> tuple[str, ...]:
    """Return every text in the code; what is put into it stands as a null character."""
    found = []
    for path in [*(ROOT / "toolkit").rglob("*.py"), *(ROOT / "recipes").glob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
            elif isinstance(node, ast.JoinedStr):
                parts = (part.value if isinstance(part, ast.Constant) else "\0" for part in node.values)
                found.append("".join(map(str, parts)))
    return tuple(" ".join(text.split(" ")) for text in found)


def messages() -> list[str]:
    """Return the messages that questions.md explains."""
    questions = [heading for heading in headings(DOCS / "questions.md", "h3") if heading.endswith("?")]
    return [heading for heading in headings(DOCS / "questions.md", "h3") if heading not in questions]


COMPOSED = {"is unknown; did you mean": [" is unknown; ", "did you mean "]}
"""What the code puts together of two texts."""


@pytest.mark.parametrize("message", messages())
def test_a_message_that_is_explained_is_one_of_the_code(message: str) -> None:
    for text in COMPOSED.get(message, [message]):
        parts = [part.strip() for part in text.split("...")]
        assert any(in_order(parts, known) for known in texts_of_the_code())


def in_order(parts: list[str], text: str) -> bool:
    """Return whether a text has these parts, one after another."""
    place = 0
    for part in parts:
        place = text.find(part, place)
        if place < 0:
            return False
        place += len(part)
    return True


def figures(page: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the rows of a page's tables that name a benchmark, with their numbers."""
    for cells in rows(page):
        text = " ".join(cells)
        if command := re.search(r"`(python benchmarks/[^`]+)`", text):
            plain = re.sub(r"`[^`]*`|\d{4}-\d\d-\d\d|\([^)]*\)", " ", text)
            yield command[1], re.findall(r"\d(?:[\d,]*\d)?(?:\.\d+)?(?:e-\d+)?", plain)


@pytest.mark.parametrize("page", ["speed.md", "exactness.md"])
def test_figures_are_those_of_the_benchmarks(page: str) -> None:
    text = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    found = list(figures(DOCS / page))
    assert found
    for command, numbers in found:
        assert command.split(" --")[0] in text
        assert numbers
        assert not [number for number in numbers if number not in text and f"{number}-" not in text], command
