"""Plain text: a file is a document, one row with the column "text"."""

from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.data.text import open_text

if TYPE_CHECKING:
    import pyarrow


def read_plain(path: Path) -> "pyarrow.Table":
    """Return a text file as one row, its line ends as they are."""
    import pyarrow as pa

    with open_text(path, newline="") as file:
        return pa.table({"text": pa.array([file.read()], pa.large_string())})
