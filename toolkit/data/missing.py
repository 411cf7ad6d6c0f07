"""Files and folders of data that are named and not there."""

from pathlib import Path

from toolkit.data.discovery import near, path_of
from toolkit.data.endings import FORMATS
from toolkit.data.formats.archive import is_file
from toolkit.data.formats.inside import divided
from toolkit.data.hub import HUB_ID
from toolkit.errors import UserError


def is_there(given: str) -> bool:
    """Return whether there may be what a setting names; of a pattern and of a part of a file that is not known."""
    place = path_of(given)
    if any(sign in given for sign in "*?["):
        return True
    return exists(place) or is_file(place) or divided(place)[1] is not None


def exists(place: Path) -> bool:
    """Return whether there is a file or folder; raises UserError where this user may not look."""
    try:
        return place.exists()
    except PermissionError as error:
        raise UserError(f"{place} may not be read by this user (permission denied); change its permissions") from error
    except OSError:
        return False  # a name that is too long for a file


def looks_like_a_path(name: str) -> bool:
    """Return whether a name can't be the id of a data set of the hub."""
    is_file_name = any(name.lower().endswith((ending, ending + ".gz")) for ending in FORMATS)
    return is_file_name or HUB_ID.fullmatch(name) is None


def no_such_place(field: str, given: str) -> str:
    """Say that a setting names no file or folder, and which one was probably meant."""
    if "://" in given:
        return f"{field} is {given!r}; addresses are not read: download it and give the file, or give a hub id"
    place = path_of(given)
    if place.is_symlink():
        return f"{field} is {given!r}, a link to {place.readlink()}, which does not exist; mend the link"
    several = [part.strip() for part in given.strip("[]() ").split(",")]
    if len(several) > 1 and all(exists(path_of(part)) for part in several):
        return (
            f"{field} is {given!r}, several names; give one: a folder with these files, or a pattern, such as "
            f"--{field} '*{Path(several[0]).suffix}'"
        )
    try:
        # Hidden ones are meant only by who names one.
        names = [path.name for path in place.parent.iterdir() if place.name[:1] == "." or path.name[0] != "."]
        hint = near(place.name, names)
    except OSError:
        hint = f" (the folder {place.parent} can't be listed)"
    if field == "data.train" and HUB_ID.fullmatch(given) and not place.suffix and not hint.endswith("?"):
        hint += f"; if it is a data set of the hub, give --data.name {given}"
    return f"{field} is {given!r}, but there is no such file or folder{hint}"
