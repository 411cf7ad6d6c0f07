"""`toolkit report`: the page of a run in its folder, or of several runs side by side."""

import json
import re
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from toolkit.errors import UserError, require
from toolkit.output.console import Console
from toolkit.output.ledger import finite_or_none
from toolkit.output.provenance import versions
from toolkit.output.run_folder import write_whole
from toolkit.report.charts import MOST_LINES
from toolkit.report.page import page_of
from toolkit.report.parts import Page
from toolkit.report.saved import SavedRun, read_run
from toolkit.report.side_by_side import side_by_side

NAME = "report.html"
TEMPLATE = Path(__file__).with_name("report.html.jinja")
VEGA_LITE = "6.4"


def report(folders: Sequence[Path], output: Path | None, every: float | None, console: Console) -> Path:
    """Write the page of a run, or of several, and return its file.

    Args:
        folders: the run folders.
        output: the file; None means report.html in the run folder.
        every: write it again after so many seconds, until no process works on the runs.
        console: says where the page is.

    Raises:
        UserError: one of them is no run folder, the file can't be written, or a package is missing.
    """
    if output is None and len(folders) > 1:
        raise UserError("several runs have no folder of their own for a page; name a file with --output runs.html")
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise UserError("a run folder is named twice; name each once")
    if len(folders) > MOST_LINES:
        raise UserError(
            f"{len(folders)} runs are named, and a page shows at most {MOST_LINES}, since more curves can't be told "
            f"apart; name {MOST_LINES} of them, or make several pages, with the same run first to hold the others "
            "against"
        )
    path = output or folders[0] / NAME
    if path.is_dir():
        raise UserError(f"--output is {path}, which is a folder; name a file in it, such as {path / NAME}")
    console.print(f"{write(folders, path)}")
    while every is not None and any(read_run(folder).status == "running" for folder in folders):
        time.sleep(every)
        write(folders, path)
    return path


def write(folders: Sequence[Path], path: Path) -> Path:
    """Write the page of some runs into a file, as they stand now."""
    runs: list[SavedRun] = []
    problems: list[str] = []
    for folder in folders:
        try:
            runs.append(read_run(folder))
        except UserError as error:
            problems += error.problems
    if problems:
        raise UserError(*problems)
    text = html(page_of(runs[0]) if len(runs) == 1 else side_by_side(runs))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Half of a sign, which a damaged file may hold, can't be written.
        write_whole(path, text.encode("utf-8", "replace").decode())
    except OSError as error:
        raise UserError(f"{path} can't be written ({error.strerror}); name another file with --output") from None
    return path


def html(page: Page) -> str:
    """Return a page in HTML, with the library that draws its charts.

    Raises:
        UserError: a package is missing.
    """
    jinja2 = require("jinja2", "report", "a report")
    # Everything from a run is escaped; in JSON a sign may stand as its number.
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=False)
    environment.filters["json"] = lambda spec: in_script(
        json.dumps(finite_or_none(spec), separators=(",", ":")).replace("<", r"\u003c")
    )
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    made_by = versions()["finetune-toolkit"]
    return str(template.render(page=page, library=library(), version=made_by))


@cache
def library() -> Any:
    """Return the library that draws the charts in a browser, as a script."""
    vega = require("vl_convert", "report", "a report")
    return in_script(vega.javascript_bundle(vl_version=VEGA_LITE))


def in_script(script: str) -> Any:
    """Return what stands in a script as it is; no part of it can end the script."""
    from markupsafe import Markup

    return Markup(re.sub("</(?=script)", r"<\\/", script, flags=re.IGNORECASE).replace("<!--", r"\x3c!--"))
