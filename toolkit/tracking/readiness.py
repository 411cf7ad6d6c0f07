"""Whether a tracker can be used on this machine: installed, logged in, and with a place to write to."""

import os
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from toolkit.config.trackers import TRACKERS
from toolkit.tracking.trackers.mlflow_files import default_folder, folder_of

OFFLINE = {"offline", "disabled", "dryrun", "local"}
"""What WANDB_MODE and SWANLAB_MODE say where nobody has to be logged in."""


def problems_here(names: Sequence[str], setting: str) -> list[str]:
    """Return a sentence for each tracker that can't be used on this machine; names that are unknown are passed over.

    Nothing is sent, and nothing is asked over a network. Where a tracker is unreachable, that shows while it is sent
    to, and ends nothing.
    """
    known = [name for name in names if name in TRACKERS]
    missing = [name for name in known if not is_installed(name)]
    problems = [
        f"{setting} is {', '.join(names)}, and the package of {name} is not installed; install it with "
        f"{TRACKERS[name]}, or leave {name} out"
        for name in missing
    ]
    checks = {"mlflow": mlflow_store, "wandb": wandb_login, "comet_ml": comet_login, "swanlab": swanlab_login}
    for name in known:
        if name not in missing and name in checks and (problem := checks[name]()):
            problems.append(f"{setting} is {', '.join(names)}, and {problem}")
    return problems


def is_installed(name: str) -> bool:
    """Return whether there is a package; a folder of its name, such as that in which wandb keeps runs, is none."""
    found = find_spec(name)
    return found is not None and found.origin is not None


def mlflow_store() -> str | None:
    """Return why MLflow would refuse to write where it is told to, if it would."""
    uri = os.environ.get("MLFLOW_TRACKING_URI", "")
    scheme, folder = urlsplit(uri).scheme, folder_of(uri) if uri else default_folder()
    if folder is not None:
        if os.environ.get("MLFLOW_ALLOW_FILE_STORE", "").lower() in ("true", "1"):
            return None
        place = f"MLFLOW_TRACKING_URI is {uri}" if uri else f"MLflow keeps its runs in {folder}, as there are some"
        return (
            f"{place}, a folder, to which MLflow writes only where MLFLOW_ALLOW_FILE_STORE=true "
            "is set too; set it, or name a database, such as MLFLOW_TRACKING_URI=sqlite:///mlflow.db"
        )
    absent = [name for name in ("sqlalchemy", "alembic") if not is_installed(name)]
    if absent and (not uri or scheme.startswith("sqlite")):
        return (
            f"MLflow keeps its runs in {uri or 'sqlite:///mlflow.db'}, for which {' and '.join(absent)} is missing; "
            f"install it with {TRACKERS['mlflow']}, or name a server in MLFLOW_TRACKING_URI"
        )
    return None


def wandb_login() -> str | None:
    """Return that nobody is logged in to Weights & Biases, if so."""
    if os.environ.get("WANDB_MODE", "").lower() in OFFLINE or os.environ.get("WANDB_API_KEY"):
        return None
    known: Any = True
    with suppress(Exception):
        wandb = import_module("wandb")
        settings = wandb.Settings(silent=True)
        known = settings.mode in OFFLINE if getattr(settings, "mode", None) else False
        known = known or wandb.login(prompt=False, verify=False)
    if known:
        return None
    return (
        "nobody is logged in to wandb: run `wandb login` once, or set WANDB_API_KEY, or set WANDB_MODE=offline and "
        "send the run later with `wandb sync`"
    )


def comet_login() -> str | None:
    """Return that there is no key for Comet, if so."""
    mode = os.environ.get("COMET_START_ONLINE", "").lower()
    places = [Path(os.environ.get("COMET_CONFIG", "")), Path.home() / ".comet.config", Path(".comet.config")]
    if os.environ.get("COMET_API_KEY") or mode in ("0", "false") or any(place.is_file() for place in places):
        return None
    return (
        "there is no key for comet_ml: run `comet login` once, or set COMET_API_KEY, or set COMET_START_ONLINE=0 to "
        "work offline"
    )


def swanlab_login() -> str | None:
    """Return that nobody is logged in to SwanLab, if so."""
    folder = Path(os.environ.get("SWANLAB_SAVE_DIR") or Path.home() / ".swanlab")
    is_known = os.environ.get("SWANLAB_API_KEY") or (folder / ".netrc").is_file()
    if is_known or os.environ.get("SWANLAB_MODE", "").lower() in OFFLINE:
        return None
    return "nobody is logged in to swanlab: run `swanlab login` once, or set SWANLAB_API_KEY or SWANLAB_MODE=local"
