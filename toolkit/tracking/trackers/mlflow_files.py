"""What a kill leaves half-written in MLflow's store of files, which writes over its descriptions in place.

A database and a server have none of this.
"""

import os
import shutil
import time
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

NO_FOLDERS = ("databricks", "databricks-uc", "uc")
"""Words that MLflow takes for servers, although they look like folders."""
SECONDS_UNTIL_ABANDONED = 2.0


def folder_of(uri: str) -> Path | None:
    """Return the folder of a store of files, None if it is no such store."""
    if uri in NO_FOLDERS:
        return None
    parts = urlsplit(uri)
    return Path(url2pathname(parts.path)) if parts.scheme in ("", "file") else None


def default_folder() -> Path | None:
    """Return the folder that MLflow takes where it is told none: one of an earlier version, if it holds something."""
    has_data = any(path.parent.name.isdigit() for path in Path("mlruns").glob("*/meta.yaml"))
    return Path("mlruns").absolute() if has_data else None


def mend(store: Path, run: str | None, copy: Path, has_settings: bool) -> None:
    """Mend what a process that was killed left behind; nothing else writes to this run.

    Args:
        store: the folder of the store.
        run: the id of the run there; None if it may have been killed while it was created.
        copy: of the run's description, from `remember`.
        has_settings: whether all settings were sent; otherwise an empty one is none.
    """
    for description in [*store.glob("*/meta.yaml"), *store.glob("*/*/meta.yaml")]:
        if description.stat().st_size:
            continue
        if description.parent.name == run:
            # While a run was moved aside, the copy of it may have come beside the run that took its place.
            if copy.is_file() and run.encode() in (known := copy.read_bytes()):
                description.write_bytes(known)
        elif run is None and is_abandoned(description.parent):
            # An experiment with such a run can't be read any more, by nobody.
            shutil.rmtree(description.parent)
    for folder in store.glob(f"*/{run}") if run is not None else ():
        for setting in (folder / "params").rglob("*"):
            if setting.is_file() and not setting.stat().st_size and not has_settings:
                setting.unlink()
        for metric in (folder / "metrics").rglob("*"):
            if metric.is_file():
                cut_to_whole_lines(metric)
                if not metric.stat().st_size:
                    # MLflow reads no run that has an empty one.
                    metric.unlink()


def is_abandoned(folder: Path) -> bool:
    """Return whether a run or an experiment was begun some time ago and nothing was ever put into it."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    holds = any(part in ("metrics", "params", "artifacts") for path in files for part in path.relative_to(folder).parts)
    youngest = max(path.stat().st_mtime for path in files)
    return not holds and time.time() - youngest > SECONDS_UNTIL_ABANDONED


def cut_to_whole_lines(file: Path) -> None:
    """Take the last line out of a file if it is not whole."""
    with file.open("rb+") as content:
        size = content.seek(0, os.SEEK_END)
        content.seek(max(0, size - 4096))
        rest = content.read()
        if rest and not rest.endswith(b"\n"):
            content.truncate(size - len(rest) + rest.rfind(b"\n") + 1)


def remember(store: Path, run: str, copy: Path) -> None:
    """Keep a copy of the description of a run, which MLflow empties and writes again at each start and end."""
    for description in store.glob(f"*/{run}/meta.yaml"):
        if text := description.read_bytes():
            partial = copy.with_name(f"{copy.name}.partial")
            partial.write_bytes(text)
            partial.replace(copy)
