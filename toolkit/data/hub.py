"""Data sets that are already divided into splits: on the Hugging Face hub, or saved by `datasets` in a folder."""

import errno
import re
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.data.discovery import TRAIN, conventional, for_both, kind_of, near
from toolkit.errors import UserError

if TYPE_CHECKING:
    import datasets

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
Chosen = tuple["datasets.Dataset", "datasets.Dataset | None", str]
"""Rows to train on, rows to evaluate on if there are any, and the origin for the plan."""


def is_saved(folder: Path) -> bool:
    """Return whether `save_to_disk` wrote this folder."""
    single = (folder / "state.json").is_file() and (folder / "dataset_info.json").is_file()
    return single or (folder / "dataset_dict.json").is_file()


def load_saved(folder: Path) -> "dict[str, datasets.Dataset] | datasets.Dataset":
    """Return the splits of a saved DatasetDict by name, or a saved Dataset; both memory-mapped."""
    import datasets

    try:
        saved = datasets.load_from_disk(str(folder))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{folder} looks like a folder written by save_to_disk, but cannot be loaded "
            f"({_first_line(error)}); save or copy it again"
        ) from error
    return dict(saved) if isinstance(saved, datasets.DatasetDict) else saved


def saved_splits(folder: Path, train: str | None, evaluate: str | None) -> Chosen:
    """Choose splits of the data set that `save_to_disk` wrote into `folder`."""
    saved = load_saved(folder)
    if isinstance(saved, dict):
        return _choose(f"saved data set {folder}", saved, train, evaluate)
    own = str(saved.split or "train")
    return _choose(f"saved data set {folder}", {own: saved}, train, evaluate)


def hub_splits(name: str, config: str | None, train: str | None, evaluate: str | None) -> Chosen:
    """Choose splits of the data set `name` of the hub, downloaded into the cache of `datasets` if it is not there.

    No code of the data set is ever run. Raises UserError that says, as far as can be known, why it can't be had.
    """
    import datasets
    from datasets.packaged_modules import _PACKAGED_DATASETS_MODULES as READERS

    if name in READERS:
        # `datasets` would take this for its own reader of such files, and read whatever lies in the working directory.
        raise UserError(
            f"data.name is {name!r}, the name of a format, not of a data set; give a file, a folder or a hub id"
        )
    try:
        # All splits: they are prepared together in any case, and their names are needed.
        loaded = datasets.load_dataset(name, config)
    except UserError:
        raise
    except Exception as error:
        if (reason := _reason(name, config, error)) is None:
            raise
        raise UserError(reason) from error
    splits = dict(loaded)
    used = config or next(iter(splits.values())).config_name or "default"
    return _choose(f"hub: {name} (config {used})", splits, train, evaluate)


def _choose(origin: str, splits: "Mapping[str, datasets.Dataset]", train: str | None, evaluate: str | None) -> Chosen:
    if train is None:
        named = [split for split in splits if split in TRAIN] or [split for split in splits if kind_of(split) is None]
        named = list(splits) if len(splits) == 1 else named
        train = named[0] if len(named) == 1 else None
    remark = ""
    if evaluate is None and train is not None:
        used = set(re.findall(r"[\w.]+", train))
        found, remark = conventional([split for split in splits if split not in used], kind_of)
        evaluate = found[0] if found else None

    def find(field: str, wanted: str | None) -> "datasets.Dataset | None":
        if wanted is None and field == "data.train":
            raise UserError(f"{origin} has the splits {', '.join(splits)}; name one to train on with data.train")
        return None if wanted is None else _part(origin, splits, field, wanted)

    to_train, to_evaluate = for_both(find, train, evaluate)
    return to_train, to_evaluate, f"{origin}: {train}" + (f"; evaluation: {evaluate}{remark}" if evaluate else "")


def _part(origin: str, splits: "Mapping[str, datasets.Dataset]", field: str, wanted: str) -> "datasets.Dataset":
    """Return one split, a slice of it, or a sum of such: train, train[:10%], train+validation."""
    import datasets

    sizes = {name: len(rows) for name, rows in splits.items()}
    if wanted in splits:
        rows = splits[wanted]
    else:
        try:
            chosen = datasets.ReadInstruction.from_spec(wanted).to_absolute(sizes)
        except (ValueError, AssertionError) as error:
            for name in re.findall(r"(?:^|\+)\s*([\w.]+)", wanted):
                if name not in splits:
                    raise UserError(
                        f"{field} is {wanted!r}, but {origin} has no split {name!r}{near(name, splits)}"
                    ) from error
            raise UserError(
                f"{field} is {wanted!r}, which can't be taken from {origin} ({_first_line(error)}); "
                "slices are written train[:10%] or train[100:200]"
            ) from error
        parts = [splits[one.splitname].select(range(one.from_, one.to)) for one in chosen]
        rows = parts[0] if len(parts) == 1 else datasets.concatenate_datasets(parts)
    if len(rows) == 0:
        raise UserError(f"{field} is {wanted!r}, which has no rows in {origin}")
    return rows


def _reason(name: str, config: str | None, error: Exception) -> str | None:
    """Return the message for a failure of `datasets.load_dataset`, or None if it is a defect."""
    import datasets
    from datasets.exceptions import DatasetNotFoundError, DatasetsError
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, OfflineModeIsEnabled, RepositoryNotFoundError

    chain: list[BaseException] = [error]
    while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None and cause not in chain:
        chain.append(cause)
    text = str(error)
    place = Path(name)
    around = [path.name for path in place.parent.iterdir()] if place.parent.is_dir() else []
    close = get_close_matches(place.name, around, 1, 0.75)
    did_you_mean = f" (did you mean {place.with_name(close[0])}?)" if close else ""
    local = f"no file or folder {name} is here either{did_you_mean}; give the path of a local file or folder"
    if any(isinstance(one, OfflineModeIsEnabled) for one in chain) or "OfflineModeIsEnabled" in text:
        return (
            f"the data set {name!r} is not in the local cache, and the hub may not be asked: offline mode is on "
            f"(HF_HUB_OFFLINE); {local}, or unset HF_HUB_OFFLINE"
        )
    if isinstance(error, DatasetNotFoundError | GatedRepoError | RepositoryNotFoundError):
        if "gated" in text or isinstance(error, GatedRepoError):
            return (
                f"the data set {name!r} is gated on the hub; ask for access at https://huggingface.co/datasets/{name} "
                "and log in with: hf auth login"
            )
        whole, slash, part = name.partition("/")
        parts = f"; if {part} is a configuration of {whole}, give --data.name {whole} --data.config {part}"
        return (
            f"the data set {name!r} does not exist on the hub, or is private; if it is private, log in with: "
            f"hf auth login{parts if slash and config is None else ''}; {local}"
        )
    if isinstance(error, ConnectionError) or any(type(one).__module__.startswith("httpx") for one in chain):
        return f"the data set {name!r} is not in the local cache, and the hub can't be reached from here; {local}"
    if isinstance(error, HfHubHTTPError):
        return f"the hub refused the data set {name!r} ({_first_line(error)}); try again later or run: hf auth login"
    if isinstance(error, RuntimeError) and "scripts" in text:
        return f"the data set {name!r} can only be loaded by running its own code, which is not done; give its files"
    if isinstance(error, ValueError) and "onfig" in text:
        names = re.findall(r"'([^']+)'", text.partition("[")[2].partition("]")[0])
        if config is None:
            return f"the data set {name!r} has several configurations; name one with data.config: {', '.join(names)}"
        return f"data.config is {config!r}, but the data set {name!r} has no such configuration{near(config, names)}"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES):
        return (
            f"the cache of datasets, {datasets.config.HF_DATASETS_CACHE}, cannot be written ({error.strerror}); "
            "set the environment variable HF_HOME to a folder that can"
        )
    if isinstance(error, DatasetsError | ValueError | OSError):
        return f"the data set {name!r} cannot be loaded ({_first_line(chain[-1])}); try its files in a local folder"
    return None


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
