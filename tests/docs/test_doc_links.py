"""The links of the documentation lead somewhere, here and on the site."""

from pathlib import Path
from urllib.parse import urlsplit

import pytest
from doc_pages import PAGES, anchors, links, named


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_to_files_and_headings_that_exist(page: Path) -> None:
    wrong = []
    for link in links(page):
        parts = urlsplit(link)
        if parts.scheme or parts.netloc:
            # Nothing is asked outside; a name without a dot is no host.
            well = parts.scheme in ("http", "https") and "." in parts.netloc and " " not in link
            wrong += [] if well else [link]
            continue
        target = (page.parent / parts.path).resolve() if parts.path else page
        if not target.exists() or (parts.fragment and parts.fragment not in anchors(target)):
            wrong.append(link)
    assert not wrong


def test_headings_are_named_as_github_names_them(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# The task's `loss` is a mean\n\n## What *is* it, [really](x.md)?\n\n## Twice\n\n## Twice\n", "utf-8"
    )
    assert anchors(page) == {"the-tasks-loss-is-a-mean", "what-is-it-really", "twice", "twice-1"}
