"""The first page stands in a folder of its own; whoever opens the site at its root is sent there."""

from pathlib import Path
from typing import Any

ENTRANCE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta http-equiv="refresh" content="0; url=docs/index.html">
<title>finetune-toolkit</title>
<a href="docs/index.html">finetune-toolkit</a>
"""


def write_entrance(app: Any, problem: Exception | None) -> None:
    """Write index.html into the root of a site that was built."""
    if problem is None and app.builder.format == "html":
        (Path(app.outdir) / "index.html").write_text(ENTRANCE, encoding="utf-8")
