"""The pages of the documentation as their tests read them: blocks of code, code in lines, headings and links."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

from launching import ROOT
from markdown_it import MarkdownIt
from markdown_it.token import Token

PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "benchmarks" / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
SHELL = ("bash", "")
"""The languages of blocks with commands; what is indented has none."""


@dataclass(frozen=True)
class Block:
    """A block of code."""

    language: str
    text: str


def named(page: Path) -> str:
    """Return how a test calls a page."""
    return str(page.relative_to(ROOT))


@cache
def tokens_of(page: Path) -> list[Token]:
    """Return what a page consists of."""
    return MarkdownIt("gfm-like", {"linkify": False}).parse(page.read_text(encoding="utf-8"))


def blocks(page: Path) -> Iterator[Block]:
    """Yield the blocks of code of a page, those that are indented too."""
    for token in tokens_of(page):
        if token.type in ("fence", "code_block"):
            yield Block(token.info.strip(), token.content)


def inline(page: Path, kind: str) -> Iterator[Token]:
    """Yield the parts of a page's lines that are of one kind, such as `code_inline`."""
    for token in tokens_of(page):
        yield from (child for child in token.children or () if child.type == kind)


def code_in_lines(page: Path) -> list[str]:
    """Return what stands in backticks in the lines of a page."""
    return [token.content for token in inline(page, "code_inline")]


def links(page: Path) -> list[str]:
    """Return where the links and the pictures of a page lead to."""
    found = [str(token.attrs["href"]) for token in inline(page, "link_open")]
    return found + [str(token.attrs["src"]) for token in inline(page, "image")]


def headings(page: Path, level: str = "") -> list[str]:
    """Return the headings of a page, of one level such as h3, or all."""
    parts = tokens_of(page)
    return [
        below.content for token, below in pairwise(parts) if token.type == "heading_open" and level in ("", token.tag)
    ]


def anchors(page: Path) -> set[str]:
    """Return the names of a page's headings in links, as GitHub and the site make them."""
    found: set[str] = set()
    for heading in headings(page):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").replace("*", "")
        name = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        number = 0
        while (new := f"{name}-{number}" if number else name) in found:
            number += 1
        found.add(new)
    return found


def commands(text: str) -> Iterator[str]:
    """Yield the commands of a block, one a line; a line that ends with a backslash goes on in the next."""
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            yield line.strip()


def rows(page: Path) -> Iterator[list[str]]:
    """Yield the rows of a page's tables, cells as they are written."""
    cells: list[str] | None = None
    for token, below in pairwise(tokens_of(page)):
        if token.type == "tr_open":
            cells = []
        elif token.type in ("td_open", "th_open") and cells is not None:
            cells.append(below.content)
        elif token.type == "tr_close" and cells is not None:
            yield cells
