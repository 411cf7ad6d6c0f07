"""Rows from where they are: local files and folders, saved data sets, the Hugging Face hub.

`datasets` is imported only when rows are read: it takes a second that `--help` should not cost.
"""

import os
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.data.archives import members
from toolkit.data.discovery import (
    TRAIN,
    Found,
    data_files,
    find_files,
    find_inside,
    for_both,
    kind_of,
    listing,
    matching_names,
    near,
    one_format,
    path_of,
)
from toolkit.data.endings import format_of
from toolkit.data.files import FileOptions, read_files
from toolkit.data.formats.archive import file_on_disk, is_file, names_in
from toolkit.data.formats.content import form_of_packed
from toolkit.data.formats.excel import sheets_in
from toolkit.data.formats.inside import SeveralTablesError, divided
from toolkit.data.formats.json import lists_in
from toolkit.data.formats.text import file_errors
from toolkit.data.hub import hub_splits, is_saved, load_saved, saved_splits
from toolkit.data.missing import exists, looks_like_a_path, no_such_place
from toolkit.errors import UserError

if TYPE_CHECKING:
    import datasets
    import pyarrow


@dataclass(frozen=True)
class Splits:
    """The rows of a run."""

    train: "datasets.Dataset"
    """Rows to train on, at least one."""
    evaluate: "datasets.Dataset | None"
    """Rows to evaluate on, at least one, or None if none were given or found."""
    origin: str
    """Where they came from, for the plan: "reviews.csv", "hub: acme/reviews (config default): train"."""
    files: tuple[Path, ...] = ()
    """The local files that were read."""

    @property
    def tables(self) -> dict[str, "datasets.Dataset"]:
        """The rows by what messages call them; the evaluation data only if there is some."""
        found = {"training data": self.train, "evaluation data": self.evaluate}
        return {name: table for name, table in found.items() if table is not None}


def read_splits(
    *,
    name: str | None,
    config: str | None,
    train: str | None,
    evaluate: str | None,
    options: FileOptions = FileOptions(),  # noqa: B008 - frozen
) -> Splits:
    """Read the rows to train and to evaluate on; the arguments are data.name, data.config, data.train and data.eval.

    `name` is a local file, a folder of files, a folder that `save_to_disk` wrote, or a hub id; `train` and `evaluate`
    are then files or patterns in the folder, or splits. Without `name` they are local paths. What is null is found by
    its conventional name, and `origin` says what was found. Local files are held in memory; nothing is written.

    Raises UserError for whatever is missing, malformed or out of reach.
    """
    if not name:
        return _from_paths(config, train, evaluate, options)
    place = path_of(name)
    if not (exists(place) or divided(place)[1] is not None or is_file(place)):
        if looks_like_a_path(name):
            raise UserError(no_such_place("data.name", name))
        options.no_header_in(f"{name} is a data set of the hub")
        return Splits(*hub_splits(name, config, train, evaluate))
    if place.is_dir():
        _check_is_data("data.name", place)
        return _from_folder(place, config, train, evaluate, options)
    neighbour = place.parent / evaluate if evaluate else None
    is_beside = neighbour is not None and neighbour.exists()
    is_inside = evaluate is not None and not is_beside and not exists(path_of(evaluate))
    if not config and (train or is_inside) and (tables := tables_in(place)):
        return _read(find_inside(place, tables, train, evaluate), options)
    if config or train:
        field, value = ("data.train", train) if train else ("data.config", config)
        raise UserError(f"data.name is the file {name} and {field} is {value!r}; leave one of them out")
    # Next to the file first: data.name and data.eval then read as two files of one place.
    return _from_paths(None, name, str(neighbour) if is_beside else evaluate, options, place)


def _from_folder(
    folder: Path, config: str | None, train: str | None, evaluate: str | None, options: FileOptions
) -> Splits:
    if is_saved(folder):
        options.no_header_in(f"{folder} is a saved data set")
        if config:
            raise UserError(f"data.config is {config!r}, but the saved data set {folder} has none; leave it out")
        return Splits(*saved_splits(folder, train, evaluate), tuple(_files_in(folder)))
    return _read(find_files(folder, config, train, evaluate), options)


def _from_paths(
    config: str | None, train: str | None, evaluate: str | None, options: FileOptions, root: Path | None = None
) -> Splits:
    """Read files, of which `train` is data.train, or the file `root` that data.name gives."""
    if not train:
        raise UserError("data.name and data.train are both null; give a file, a folder or a hub id with one of them")
    if config:
        raise UserError(f"data.config is {config!r}, but data.train is a path of its own; leave data.config out")
    for field, given in (("data.train", train), ("data.eval", evaluate)):
        _check_is_data(field, path_of(given or ""))
    if evaluate is None and exists(path_of(train)) and path_of(train).is_dir():
        return _from_folder(path_of(train), None, None, None, options)
    to_train, to_evaluate = for_both(lambda field, given: _files(field, given) if given else [], train, evaluate)
    origin = listing(Path(), to_train) + (f"; evaluation: {listing(Path(), to_evaluate)}" if to_evaluate else "")
    try:
        return _read(Found(to_train, to_evaluate, origin), options)
    except SeveralTablesError as several:
        if [several.file] == to_train and (chosen := _by_convention(several, evaluate, options)) is not None:
            return _read(chosen, options)
        trained_on = any(file == several.file or file in several.file.parents for file in to_train)
        field = "--data.train" if trained_on else "--data.eval"
        raise UserError(several.with_flag(field, root)) from None


def _by_convention(several: SeveralTablesError, evaluate: str | None, options: FileOptions) -> Found | None:
    """Return the tables in a file that their names say to train and to evaluate on; all texts, if those are documents.

    None if evaluation data was named too, or the names say nothing.
    """
    kinds = {kind_of(name) for name in several.names}
    texts = options.documents and all(format_of(table) == "text" for table in several.tables)
    if evaluate is not None or not (texts or kinds & set(TRAIN)):
        return None
    return find_inside(several.file, several.tables, None, None)


def tables_in(file: Path) -> list[Path]:
    """Return the paths of the tables inside of an archive, a workbook, or an object in json; none for other files."""
    with file_errors(file):
        form = form_of_packed(file) or format_of(file)
        names = {"zip": members, "excel": sheets_in, "json": lists_in}
        return [file / name for name in names[form](file)] if form in names else []


def _files(field: str, given: str) -> list[Path]:
    place = path_of(given)
    if is_file(place):
        return [place]
    file, inner = divided(place)
    if inner is not None:
        return _inside(field, given, file, inner)
    if not exists(place):
        is_pattern = any(sign in given for sign in "*?[")
        matches = sorted(Path(place.anchor).glob(str(place.relative_to(place.anchor)))) if is_pattern else []
        if not matches:
            raise UserError(no_such_place(field, given))
        one_format(matches)
        if len(matches) > 1 and (folders := [match for match in matches if match.is_dir()]):
            raise UserError(
                f"{field} is {given!r}, which matches {len(matches)} names, the folder {folders[0]} among them; give "
                "one folder, or a pattern that matches files only"
            )
        return matches
    if not place.is_dir() or is_saved(place):
        return [place]
    files = data_files(place)
    one_format(files)
    return files


def _inside(field: str, given: str, file: Path, inner: str) -> list[Path]:
    """Return what a path means that goes on behind a file: a folder or a pattern in an archive, a sheet, or a key."""
    if form_of_packed(file) != "zip":
        return [file / inner]
    tables = [file / name for name in members(file)]
    matches = [table for table in tables if file / inner in table.parents] or matching_names(tables, file, inner)
    if not matches:
        raise UserError(f"{field} is {given!r}, but {file} has no such file{near(inner, names_in(file))}")
    one_format(matches)
    return matches


def _read(found: Found, options: FileOptions) -> Splits:
    groups = [group for group in (found.train, found.evaluate) if group]
    tables, note = read_files([group for group in groups if not group[0].is_dir()], options)
    rest = iter(tables)
    rows = [_saved(group[0]) if group[0].is_dir() else _dataset(group[0], next(rest)) for group in groups]
    origin = found.origin + (f" ({note})" if note else "")
    files: list[Path] = []
    for path in chain(*groups):
        # Of several tables inside of one file, that file once.
        files += [file for file in _files_in(path) if path.is_dir() or file == path or file not in files]
    return Splits(rows[0], rows[1] if len(rows) > 1 else None, origin, tuple(files))


def _check_is_data(field: str, place: Path) -> None:
    """Refuse a folder that is known to hold something else than data.

    Raises:
        UserError: it is that of a run, or of a model.
    """
    for file, what in (("run.json", "the folder of a run"), ("config.json", "the folder of a model")):
        # Path.is_file raises where a folder may not be read.
        if os.path.isfile(place / file) and not is_saved(place):  # noqa: PTH113
            raise UserError(f"{field} is {str(place)!r}, {what}, and not of data; give the file or folder of the rows")


def _files_in(place: Path) -> list[Path]:
    found = sorted(place.rglob("*")) if place.is_dir() else [file_on_disk(place)]
    return [file for file in found if file.is_file()]


def _saved(folder: Path) -> "datasets.Dataset":
    loaded = load_saved(folder)
    if isinstance(loaded, dict):
        raise UserError(
            f"{folder} holds the splits {', '.join(loaded)}; "
            "name it with data.name, and the splits with data.train and data.eval"
        )
    if len(loaded) == 0:
        raise UserError(f"the saved data set {folder} has no rows")
    return loaded


def _dataset(path: Path, table: "pyarrow.Table") -> "datasets.Dataset":
    import datasets

    try:
        return datasets.Dataset(table)
    except (ValueError, TypeError) as error:  # a type that only parquet has
        raise UserError(f"{path} has a column of a type that is not read here ({error}); drop or convert it") from error
