"""The site is built without a warning, asks nobody for anything, and its search knows every setting and command."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from doc_pages import links
from launching import ROOT

from toolkit.cli import command_line
from toolkit.config.fields import leaves
from toolkit.config.schema import Config

pytest.importorskip("sphinx", reason="the site needs the extra `docs`")
DOCS = sorted((ROOT / "docs").glob("*.md"))
# What a page loads by itself; links that a reader follows are none of these.
LOADED = {"link": "href", "script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built by the command that CONTRIBUTING.md names, in another folder."""
    command = "sphinx-build -W -c docs . build/site"
    assert command in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    folder = tmp_path_factory.mktemp("site")
    words = [*command.split()[1:-1], str(folder)]
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-q", *words, "-d", str(folder / ".doctrees")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not done.stderr
    return folder


@pytest.fixture(scope="module")
def index(site: Path) -> dict[str, Any]:
    """What the search knows."""
    text = (site / "searchindex.js").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text.removeprefix("Search.setIndex(").removesuffix(")"))
    return found


def test_every_page_of_docs_is_in_the_navigation_and_on_the_site(site: Path) -> None:
    listed = {(ROOT / "docs" / link).resolve() for link in links(ROOT / "docs" / "index.md")}
    left_out = {page.name for page in DOCS} - {page.name for page in listed} - {"index.md"}
    assert not left_out, "list it in docs/index.md, from which the navigation is made"
    for page in DOCS:
        assert (site / "docs" / f"{page.stem}.html").is_file()
    assert 'url=docs/index.html"' in (site / "index.html").read_text(encoding="utf-8")


def test_no_page_loads_anything_from_another_host(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > len(DOCS)
    assert not {(page.name, found) for page in pages for found in loaded(page) if re.match(r"(\w+:)?//", found)}
    styles = "".join(path.read_text(encoding="utf-8") for path in site.rglob("*.css"))
    assert not re.search(r"""(@import\s*(url\()?|url\()\s*["']?(\w+:)?//""", styles)


def test_what_a_page_loads_is_there(site: Path) -> None:
    for page in site.rglob("*.html"):
        for found in loaded(page):
            if not found.startswith("data:"):
                assert (page.parent / found.partition("?")[0].partition("#")[0]).exists(), (page, found)


def test_the_search_knows_every_setting_and_command(index: dict[str, Any]) -> None:
    known = {f"{group}.{entry[-1]}".strip(".") for group, entries in index["objects"].items() for entry in entries}
    assert {key for key, _, _ in leaves(Config())} <= known
    assert {"data.text (classify)", "dpo.beta (prefer)", "model.lora.rank", "data.train"} <= known
    for name, parser in command_line()[1].choices.items():
        flags = {action.option_strings[-1] for action in parser._actions if action.option_strings} - {"--help"}
        assert {f"toolkit-{name}.{flag}" for flag in flags} <= known


def test_the_search_knows_messages_by_their_words(index: dict[str, Any]) -> None:
    titles = {title.lower() for title in index["alltitles"]}
    assert {"belongs to another run", "the task's loss is a mean", "is unknown; did you mean"} <= titles


def test_a_setting_is_shown_with_type_default_sentence_and_what_it_does_to_numbers(site: Path) -> None:
    text = " ".join(words(site / "docs" / "configuration.html"))
    assert re.search(r"batch\.size # Type : a whole number Default : 32 Samples of one optimizer step", text)
    assert re.search(r"batch\.micro # Type : a whole number or one of: auto or null Default : null .* no number", text)
    assert "Says where data is found: it is the same run if the data is the same." in text
    recipes = " ".join(words(site / "docs" / "recipe-settings.html"))
    assert re.search(r"dpo\.beta \(prefer\) # Type : a number Default : 0\.1 How dear it is", recipes)
    for page in ("configuration", "recipe-settings", "commands"):
        shown = " ".join(words(site / "docs" / f"{page}.html"))
        assert not re.search(r"made for the site|\{confval\}|\\[<>*_\[{|#]", shown)


def test_wide_blocks_take_the_focus_captions_have_a_level_and_flags_stay_whole(site: Path) -> None:
    text = (site / "docs" / "tour.html").read_text(encoding="utf-8")
    assert "<pre>" not in text
    assert text.count('<pre tabindex="0">') > 10
    assert text.count('role="heading"') == text.count('role="heading" aria-level="2"') > 4
    assert '<span class="flag">--data.train</span>' in text
    assert '<span class="pre flag">--model.name</span>' in text


class Reader(HTMLParser):
    """Reads what a page loads, and its words."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        # Of the links in a head only those that are fetched count; the next page is not.
        fetched = tag != "link" or given.get("rel") in ("stylesheet", "icon", "preload")
        if tag in LOADED and fetched and (found := given.get(LOADED[tag])):
            self.loaded.append(found)

    def handle_data(self, data: str) -> None:
        self.words += data.split()


def read(page: Path) -> Reader:
    reader = Reader()
    reader.feed(page.read_text(encoding="utf-8"))
    return reader


def loaded(page: Path) -> Iterator[str]:
    """Yield what a page loads."""
    yield from read(page).loaded


def words(page: Path) -> list[str]:
    """Return the words of a page."""
    return read(page).words
