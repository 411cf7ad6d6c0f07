"""Which of the files in a zip archive is meant."""

from pathlib import Path

from toolkit.data.endings import data_of_folder, format_of
from toolkit.data.formats.archive import names_in
from toolkit.data.formats.inside import SeveralTablesError
from toolkit.errors import UserError

NAMES_SHOWN = 10


def only_member(path: Path, inner: str | None) -> Path:
    """Return the path of the file in an archive that is meant.

    Raises:
        SeveralTablesError: there are several.
        UserError: there is none, or none with the name `inner`.
    """
    names = members(path)
    if inner is not None:
        known = ", ".join(map(repr, names[:NAMES_SHOWN])) + (", ..." if len(names) > NAMES_SHOWN else "")
        raise UserError(f"{path} has no file {inner!r}; there are: {known}")
    if len(names) > 1:
        raise SeveralTablesError(path, names, "files")
    return path / names[0]


def members(path: Path) -> list[str]:
    """Return the names of the files in an archive that hold data: those that a folder's data would be, or else all.

    Raises:
        UserError: there are none.
    """
    everything = names_in(path)
    if not everything:
        raise UserError(f"{path} is an archive without a file; give one with data")
    names = [name.as_posix() for name in data_of_folder([Path(name) for name in everything])] or everything
    if all(format_of(Path(name)) == "zip" for name in names):
        raise UserError(f"{path} holds nothing but archives; unpack it, and give one of those")
    return names
