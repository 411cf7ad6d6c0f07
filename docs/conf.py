"""How the pages become a site, for Sphinx: from the root of the repository, sphinx-build -W -c docs . build/site

The pages are plain Markdown that reads well where it lies; what only the site has is made here and in `docs/site/`.
"""

import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "site"), str(HERE.parent)]

from entrance import write_entrance  # noqa: E402
from flags import keep_flags_whole  # noqa: E402
from pages import completed  # noqa: E402
from reachable import make_reachable  # noqa: E402

project = "finetune-toolkit"
copyright = "the authors, Apache License 2.0"
extensions = ["myst_parser"]
root_doc = "docs/index"
# The pages keep their places, so that each link is the same here and in the repository.
include_patterns = [
    "docs/*.md",
    "benchmarks/README.md",
    "benchmarks/results/**/*.md",
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
]
exclude_patterns = [
    "**/.*",
    ".*",
    "build",
    "runs",
    "venv",
    "tests",
    "toolkit",
    "notebooks",
]

myst_heading_anchors = 4
nitpicky = True
# Blocks that are no program: layouts of folders, and json with several rows.
suppress_warnings = ["misc.highlighting_failure"]
highlight_language = "text"
# Two dashes are the beginning of a flag.
smartquotes = False

html_theme = "furo"
html_title = "finetune-toolkit"
html_copy_source = False
html_show_sphinx = False
html_static_path = ["site/static"]
html_css_files = ["site.css"]
html_search_scorer = str(HERE / "site" / "scorer.js")
html_permalinks_icon = "#"


def complete(app: Any, name: str, source: list[str]) -> None:
    source[0] = completed(name, source[0], HERE.parent)


def setup(app: Any) -> None:
    app.connect("source-read", complete)
    # After the theme, whose navigation it mends.
    app.connect("html-page-context", make_reachable, priority=900)
    app.connect("html-page-context", keep_flags_whole)
    app.connect("build-finished", write_entrance)
