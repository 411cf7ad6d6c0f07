"""Tables inside of a file: files in a zip archive, sheets of a workbook, lists in json.

Each has a path that goes on behind that of the file, as if the file were a folder: rows.zip/train.csv, book.xlsx/May.
"""

from collections.abc import Sequence
from pathlib import Path
from shlex import quote

from toolkit.data.formats.archive import is_file
from toolkit.errors import UserError

SHOWN = 10


class SeveralTablesError(UserError):
    """A file holds several tables, and which one is meant was not said."""

    def __init__(self, file: Path, names: Sequence[str], kind: str) -> None:
        """Say it of a file; `names` are those of the tables in it, and `kind` what they are, in the plural."""
        self.file, self.names, self.kind = file, list(names), kind
        super().__init__(self.with_flag(""))

    @property
    def tables(self) -> list[Path]:
        """The paths of the tables."""
        return [self.file / name for name in self.names]

    def with_flag(self, flag: str, root: Path | None = None) -> str:
        """Return the message with the setting that names one of them, such as --data.train.

        `root` is the file that another setting names, from which this one's value is seen.
        """
        listed = ", ".join(map(repr, self.names[:SHOWN])) + (", ..." if len(self.names) > SHOWN else "")
        first = self.file / self.names[0]
        value = quote(str(first.relative_to(root) if root is not None and first.is_relative_to(root) else first))
        return (
            f"{self.file} has {len(self.names):,} {self.kind} ({listed}); name the one that is meant, such as "
            + " ".join(part for part in (flag, value) if part)
        )


def divided(path: Path) -> tuple[Path, str | None]:
    """Return the file that a path names or leads into, and the name of what is meant inside of it, if it goes on."""
    if not is_file(path):
        for parent in path.parents:
            if is_file(parent):
                return parent, path.relative_to(parent).as_posix()
    return path, None
