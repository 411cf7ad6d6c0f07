"""The Python of the documentation runs, on small models that the recipes save; its layouts of data can be read."""

import ast
import csv
import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from doc_pages import PAGES, blocks, named
from launching import ROOT
from recipe_layouts import config_class, load_recipe, small_arguments
from trial import run_here

ELSEWHERE = {
    "notebooks.md": "below: its calls fit; tests/notebook/ runs what they do",
    "tour.md": "test_tour.py runs it",
    "write-a-recipe.md": "tests/test_docs.py trains its recipe; its metric is below",
}


def trained(recipe: str, folder: str, *more: str) -> Callable[[], None]:
    """Return what trains a recipe for a step on small data, and saves its model where a page has it."""

    def train() -> None:
        module = load_recipe(recipe)
        words = [*small_arguments(recipe, Path("data")), "--threads", "1", "--rehearse", "false"]
        for flag, value in (("--steps", "1"), ("--evaluate.every", "1"), *zip(more[::2], more[1::2], strict=True)):
            if flag in words:
                words[words.index(flag) + 1] = value
            elif flag in more:
                words += [flag, value]
        run_here(config_class(module), module.task, ["--output", folder, *words], Path(folder)).done()

    return train


def hand() -> None:
    """Draw the picture that a page classifies."""
    from PIL import Image

    Image.new("RGB", (32, 32), "white").save("hand.jpg")


def adapters() -> None:
    """Train adapters beside a small model."""
    from small_chat import save_llama

    save_llama(Path("llama"))
    trained("chat", "runs/chat", "--model.name", "llama", "--model.lora.rank", "2")()


NEEDS: dict[str, list[Callable[[], None]]] = {
    "chat.md": [trained("chat", "runs/chat")],
    "classify.md": [trained("classify", "runs/reviews")],
    "classify_images.md": [trained("classify_images", "runs/classify_images"), hand],
    "embed.md": [trained("embed", "runs/answers")],
    "exactness.md": [],
    "language.md": [
        trained("language", "runs/language"),
        trained("language", "runs/masked", "--objective", "masked"),
    ],
    "lora.md": [adapters],
    "summarize.md": [trained("summarize", "runs/news")],
    "tag.md": [trained("tag", "runs/tag")],
}


def test_every_page_with_python_is_run() -> None:
    with_python = {page.name for page in PAGES if any(block.language == "python" for block in blocks(page))}
    assert with_python == NEEDS.keys() | ELSEWHERE.keys()


@pytest.mark.parametrize("page", NEEDS)
def test_the_python_of_a_page_runs(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for make in NEEDS[page]:
        make()
    known: dict[str, object] = {}
    for block in blocks(ROOT / "docs" / page):
        if block.language == "python":
            exec(block.text, known)
    if page == "exactness.md":
        assert capsys.readouterr().out == "1.20 0.72\n"


def test_the_metric_of_the_page_on_recipes_counts() -> None:
    _, text = [block.text for block in blocks(ROOT / "docs" / "write-a-recipe.md") if block.language == "python"]
    known: dict[str, Any] = {}
    exec(text, known)
    assert known["within_one"](np.array([1, 2, 5]), np.array([2, 2, 2])) == {"within_one": pytest.approx(2 / 3)}


def test_the_calls_of_the_page_on_notebooks_fit_what_there_is() -> None:
    from toolkit import notebook

    (text,) = [block.text for block in blocks(ROOT / "docs" / "notebooks.md") if block.language == "python"]
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    called = {call.func.id: call for call in calls if isinstance(call.func, ast.Name)}
    assert len(called) >= 10
    for name, call in called.items():
        inspect.signature(getattr(notebook, name)).bind(*call.args, **{key.arg: key.value for key in call.keywords})


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_what_a_page_shows_as_data_is_well_formed(page: Path) -> None:
    import yaml

    for block in blocks(page):
        if block.language == "json":
            try:
                json.loads(block.text)
            except json.JSONDecodeError:
                rows = [json.loads(line) for line in objects(block.text)]
                assert rows
                assert all(isinstance(row, dict) for row in rows)
        elif block.language == "yaml":
            yaml.safe_load(block.text)
        elif block.language == "csv":
            assert len({len(row) for row in csv.reader(block.text.splitlines())}) == 1


def objects(text: str) -> list[str]:
    """Return the rows of json lines, each of which may go on in the next line."""
    found: list[str] = []
    for line in text.splitlines():
        if found and not complete(found[-1]):
            found[-1] += line
        else:
            found.append(line)
    return found


def complete(text: str) -> bool:
    """Return whether a row has ended."""
    return text.count("{") == text.count("}")
