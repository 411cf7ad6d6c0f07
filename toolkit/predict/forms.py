"""How FILE is read for a model: by the rules by which its training reads such a file, and with the same names."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import yaml

from toolkit.data.columns import look_like_data
from toolkit.data.endings import format_of
from toolkit.data.formats.conll import looks_like_conll
from toolkit.data.formats.content import form_of_text, is_parquet
from toolkit.data.formats.csv import check_first_line, open_separated
from toolkit.data.formats.excel import check_first_row, only_sheet, open_sheet
from toolkit.data.formats.header import Header, NoHeaderError, shown
from toolkit.data.formats.labelled_lines import first_words
from toolkit.data.formats.text import file_errors
from toolkit.errors import UserError
from toolkit.models.load import model_settings
from toolkit.predict.models import Trained
from toolkit.predict.rows import InputFile, Seen, look_at

WITH_HEADER = ("csv", "tsv", "excel")
NOTES = {
    "tsv": "read as a table separated by tabs",
    "conll": "read as CoNLL",
    "labelled lines": "each line divided at its first space",
    "text": "each line is a row",
}
"""What the user is told of a file whose name does not say what it is."""


def header_of(given: str | None) -> Header:
    """Return what --header says: true, false, or names, as a YAML list or with commas between them.

    Raises:
        UserError: a name is empty or stands twice.
    """
    if given is None or given.strip().lower() in ("true", "false"):
        return None if given is None else given.strip().lower() == "true"
    names = [name.strip() for name in given.split(",")]
    if given.strip().startswith("["):
        try:
            names = yaml.load(given, yaml.BaseLoader)
        except yaml.YAMLError:
            raise UserError(f'--header is {given!r}, no whole list; give such as --header "[id, text]"') from None
    if not all(isinstance(name, str) and name.strip() for name in names) or not names:
        raise UserError(f"--header is {given!r}, with an empty name, or without any; name each column")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UserError(f"--header names {', '.join(twice)} more than once; give each column its own name")
    return names


def as_trained(file: InputFile, trained: Trained) -> tuple[InputFile, dict[str, str]]:
    """Return how a file is read for a model, and what the user is told of that.

    Raises:
        UserError: it can't be read, or a header is given for a file that has none.
    """
    if file.path.is_dir():
        refuse_header(file, "a folder")
        return file, {}
    place, inner = file.place()
    told = {}
    with file_errors(place):
        form = file.form(place)
        if format_of(place) in (None, "text") and form not in ("excel", "zip"):
            form = form_by_content(place, file.header, trained)
            file = replace(file, read_as=form)
            told = {"form": NOTES.get(form, f"read as {form}")}
        own = header_of_training(trained)
        if form == "labelled lines":
            file = replace(file, header=file.header or own)
        elif form not in WITH_HEADER:
            refuse_header(file, "a text with a row on each line" if form == "text" else f"read as {form}")
        elif file.header is None and own is not None and takes(place, inner, form, own, trained):
            file = replace(file, header=own)
        else:
            return file, told
    if isinstance(own, list) and file.header == own:
        told["header"] = f"{', '.join(map(repr, own))}, which data.header of the training names"
    elif own is False and file.header is False:
        told["header"] = "none, as data.header of the training says"
    return file, told


def refuse_header(file: InputFile, what: str) -> None:
    """Raise UserError where a header was given; `what` the file is."""
    if file.header is not None:
        raise UserError(
            f"--header is given, but {file.path} is {what}, which has no header; leave it out: it speaks of csv, tsv "
            "and Excel files, and of texts that are such a table"
        )


def form_by_content(place: Path, header: Header, trained: Trained) -> str:
    """Return what a file is whose name does not say it; where the training would refuse a text, a row is a line."""
    if is_parquet(place):
        return "parquet"
    found = form_of_text(place)
    if reads_documents(trained):  # a line of which may have a tab or a bracket
        return "json lines" if found == "json lines" else "text"
    if trained.task == "token-classification" and found not in ("json", "json lines"):
        return "conll" if looks_like_conll(place, labels_of(trained)) else found or "text"
    if found:
        return found
    if isinstance(header, list) and len(header) == 2:
        return "labelled lines"
    own = header_of_training(trained)
    if header is None and isinstance(own, list) and len(own) == 2:
        # Questions begin with few words too: only labels tell.
        words, labels = first_words(place), labels_of(trained)
        if 2 * sum(word in labels for word in words) > len(words):
            return "labelled lines"
    return "text"


def reads_documents(trained: Trained) -> bool:
    """Tell whether texts are documents to the training; of a model of the hub, by what it does."""
    if trained.settings:
        return "documents" in (trained.settings.get("data") or {})
    return trained.task in ("fill-mask", "text-generation")


def labels_of(trained: Trained) -> set[str]:
    """Return the labels that a model knows."""
    return {str(label) for label in (getattr(model_settings(trained.config), "id2label", None) or {}).values()}


def header_of_training(trained: Trained) -> Header:
    """Return what the training was told of headers."""
    header = (trained.settings.get("data") or {}).get("header")
    return header if isinstance(header, bool | list) else None


def takes(place: Path, inner: str | None, form: str, header: Header, trained: Trained) -> bool:
    """Tell whether a file has no names of its own, and as many columns as the header of the training speaks of."""
    if header is True:
        return False
    try:
        first = first_line(place, inner, form, False)
        if isinstance(header, list):
            fits = len(first) == len(header)
        else:
            fits = {*trained.columns.values()} <= {f"column {number}" for number in range(1, len(first) + 1)}
        if not fits:
            return False
        first_line(place, inner, form, header)
    except UserError:  # it looks like names; what else is wrong is said when it is read
        return False
    try:
        first_line(place, inner, form, None)
    except NoHeaderError:
        return True
    except UserError:  # a name stands twice
        return True
    return look_like_data(first)


def first_line(place: Path, inner: str | None, form: str, header: Header) -> list[str]:
    """Return the fields of the first line of a table, held against `header`.

    Raises:
        UserError: it contradicts that.
    """
    if form == "excel":
        sheet = open_sheet(place, only_sheet(place, inner), header)
        check_first_row(sheet, header)
        return sheet.first
    table = open_separated(place, form, header)
    check_first_line(table, header)
    return table.first


def look_for(file: InputFile, ending: str, trained: Trained) -> Seen:
    """Read a file once, as `look_at` does; of a first line that looks like data say how this model calls its columns.

    Raises:
        UserError: it can't be read, or the output could not hold what is in it.
    """
    try:
        return look_at(file, ending)
    except UserError as error:
        problems = [
            re.sub(
                r'--header "\[(.*?)\]"',
                lambda found: f'--header "[{", ".join(like_training(found[1].split(", "), trained))}]"',
                problem,
            )
            for problem in error.problems
        ]
        raise UserError(*problems) from None


def like_training(names: Sequence[str], trained: Trained) -> list[str]:
    """Return the names that columns have in the training, as far as they fit to those that were thought of."""
    own = header_of_training(trained)
    if isinstance(own, list) and len(own) == len(names):
        return own
    known = list(trained.columns.values())
    if len(known) == 1 and known[0] not in names:
        return [known[0] if name == "text" or len(names) == 1 else name for name in names]
    return list(names)


def without_header(file: InputFile, seen: Seen, trained: Trained) -> str:
    """Return what to do where the columns of a file have no names but a first row, as the end of a message; else ""."""
    place, _ = (None, None) if file.path.is_dir() else file.place()
    if place is None or file.header is not None or file.form(place) not in WITH_HEADER:
        return ""
    if not look_like_data(seen.columns):
        return ""
    names = [f"column {number}" for number in range(1, len(seen.columns) + 1)]
    names[max(range(len(names)), key=lambda at: len(seen.columns[at]))] = "text"
    return (
        f"its first line looks like data, not like the names of the columns ({shown(seen.columns)}): if it is a row, "
        f'name the columns in their order, such as --header "[{", ".join(like_training(names, trained))}]"; if it is '
        "the names, say so with --header true"
    )
