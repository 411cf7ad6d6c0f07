"""Paths in what others may read: only their last part is shown, since the others name folders of whoever trained."""

import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from toolkit.config.yaml import as_mapping, flatten

PART = r"[\w.@+~-]+"
PLACE = re.compile(rf"(?<![\w./<>~@])(?:~(?:[a-zA-Z_][\w.-]*)?|(?:\.\./)*\.\.|/{PART})(?:/{PART})+/?")
"""In a text: a path from the root on, of two parts at least, or from a home folder or a folder above on."""
ADDRESS = re.compile(r"file:/[^\s'\"`<>()\[\]{},]*")
"""In a text: the address of a file of this machine."""
HOME = re.compile(r"~[^/]*|(?:/|(?:\.\./)+)(?:home|Users)/[^/]+")
"""A home folder, whose last part is the name of a person."""
BEGINS_AS_PATH = re.compile(r"/|file:/|\.\.?/|~[\w.-]*(?:/|$)")
HUB_ID = re.compile(r"[a-zA-Z0-9][\w.-]*/[a-zA-Z0-9][\w.-]*")


def shown_command(command: str) -> str:
    """Return a command with the last part alone of each path in it."""
    try:
        return shlex.join(map(shown, shlex.split(command)))
    except ValueError:  # not made by a shell's rules
        return without_folders(command, ())


def shown_settings(value: Any) -> Any:
    """Return settings, as plain mappings, lists and scalars, with the last part alone of each path in them."""
    if isinstance(value, Mapping):
        return {key: shown_settings(inside) for key, inside in value.items()}
    if isinstance(value, list):
        return [shown_settings(inside) for inside in value]
    return shown(value) if isinstance(value, str) else value


def shown(word: str) -> str:
    """Return a word of a command, or a setting; of a path, also one after an equals sign, the last part alone."""
    if word.startswith(("[", "{")):
        return re.sub(r"[^\s\[\]{},:'\"][^\[\]{},'\"]*", lambda inside: shown(inside[0]), word)
    name, equals, value = word.partition("=")
    if equals and "/" not in name:
        return f"{name}={shown(value)}"
    return last_part(word) if is_path(word) else without_folders(word, ())


def is_path(word: str) -> bool:
    """Return whether a word is written like a path; an id of the hub is none, unless there is such a folder too."""
    if BEGINS_AS_PATH.match(word):
        return True
    if "/" not in word or "://" in word or word.startswith("-"):
        return False
    return exists(word) or (HUB_ID.fullmatch(word) is None and not any(map(str.isspace, word)))


def is_local(name: str) -> bool:
    """Return whether the name of a model or a data set is that of a folder or a file, and of nothing on the hub."""
    return is_path(name) or exists(name)


def exists(word: str) -> bool:
    """Return whether there is such a file or folder; no word is too odd to ask."""
    return os.path.exists(word)  # noqa: PTH110 (Path.exists fails on a name that is too long)


def last_part(path: str) -> str:
    """Return the last part of a path; of a home folder that would be the name of a person, and it is shown as ~."""
    plain = re.sub(r"^file:/+", "/", path).rstrip("/")
    if HOME.fullmatch(plain) or (plain and plain in home_folders()):
        return "~"
    return plain.rpartition("/")[2] or path


def home_folders() -> set[str]:
    """Return the paths of the home folder of whoever trains."""
    home = os.path.expanduser("~")  # noqa: PTH111 (Path.home fails for a user without one)
    return {home.rstrip("/"), os.path.realpath(home).rstrip("/")} - {"", "~"}


def paths_in(results: Mapping[str, Any]) -> set[str]:
    """Return the home folder and the paths in settings and command, in all forms in which a text may give them."""
    try:
        words = shlex.split(results["command"])
    except ValueError:
        words = []
    named = {*texts_in(flatten(as_mapping(results["config"])).values()), *words}
    named |= {word.partition("=")[2] for word in words}
    return {form for word in named if is_path(word) for form in forms(word)} | home_folders()


def forms(path: str) -> set[str]:
    """Return a path as it is written, from the root on, and without links."""
    plain = re.sub(r"^file:/+", "/", path)
    place = os.path.abspath(os.path.expanduser(plain))  # noqa: PTH100, PTH111 (texts, also of what can't be a path)
    try:
        return {path, plain, place, os.path.realpath(place)}
    except (OSError, ValueError):  # a text with a null byte
        return {path, plain, place}


def texts_in(values: Iterable[Any]) -> Iterator[str]:
    """Yield all texts among values and lists of them."""
    for value in values:
        if isinstance(value, str):
            yield value
        elif isinstance(value, list):
            yield from texts_in(value)


def without_folders(text: str, paths: Iterable[str]) -> str:
    """Return a text with the last part alone of each path in it.

    These are the known `paths`, everything below them, and what is written like a path. A known path may have blanks in
    it, and is found where it is a whole, not where it is a part of other words.
    """
    for path in sorted({path.rstrip("/") for path in paths}, key=len, reverse=True):
        if "/" in path and path.strip("./"):
            whole = rf"(?<![\w./~@+-]){re.escape(path)}(?:/{PART})*/?(?![\w@+~-]|\.\w)"
            text = re.sub(whole, lambda found: last_part(found[0]), text)
    return PLACE.sub(lambda found: last_part(found[0]), ADDRESS.sub(lambda found: last_part(found[0]), text))
