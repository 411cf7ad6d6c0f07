"""What a page gets on the site beside what stands in its file: the navigation, the lists of settings and commands."""

import re
from collections.abc import Callable
from pathlib import Path

from commands import commands
from settings import recipe_settings, run_settings

MADE: dict[str, Callable[[], str]] = {
    "settings of every run": run_settings,
    "settings of each recipe": recipe_settings,
    "commands": commands,
}
"""What stands in place of a comment `<!-- made for the site: NAME -->`."""

# What a benchmark printed is reached from the page that speaks of it, and would drown what a search looks for.
ONLY_LINKED = "---\norphan: true\nnosearch: true\n---\n\n"
ENTRY = re.compile(r"^- \[([^\]]+)\]\(([^)]+)\.md\)", re.MULTILINE)


def completed(name: str, text: str, root: Path) -> str:
    """Return a page as the site shows it; `name` is its path without `.md`, seen from the root."""
    if name == "docs/index":
        return with_navigation(text)
    if name.startswith("benchmarks/results/"):
        return ONLY_LINKED + text
    for what, made in MADE.items():
        mark = f"<!-- made for the site: {what} -->"
        text = text.replace(mark, made()) if mark in text else text
    return without_folder_links(text, (root / name).parent)


def with_navigation(text: str) -> str:
    """Return the first page with its lists of pages as the navigation, a part for each heading.

    A page that is not listed there is in no navigation, of which Sphinx warns.
    """
    parts = re.split(r"^## (.+)$", text, flags=re.MULTILINE)
    trees = []
    for heading, body in zip(parts[1::2], parts[2::2], strict=True):
        if entries := [f"{title} <{path}>" for title, path in ENTRY.findall(body)]:
            trees.append("\n".join(["```{toctree}", ":hidden:", f":caption: {heading}", "", *entries, "```", ""]))
    return "\n".join([text, *trees])


def without_folder_links(text: str, folder: Path) -> str:
    """Return a page without its links to folders of the repository, which a site can't show; their names stay."""

    def shown(link: re.Match[str]) -> str:
        return link[1] if (folder / link[2]).is_dir() else link[0]

    return re.sub(r"\[([^\]]+)\]\(([^):#]+)\)", shown, text)
