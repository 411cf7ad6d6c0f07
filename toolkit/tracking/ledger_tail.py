"""The rows of a ledger as they come, also of one that is being written or was cut back in the meantime."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from toolkit.errors import UserError


class LedgerTail:
    """Reads what was added to a ledger since the last look.

    A run that was killed is cut back to its newest checkpoint and written again from there. Then the rows are read once
    more from the first one on: who takes them knows by their steps which are new.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset = 0
        self.last = b""
        """The line that ends at the offset."""

    def new_rows(self) -> Iterator[dict[str, Any]]:
        """Yield the rows that were added; a last line that is still being written is left for the next look.

        Raises:
            UserError: a line is no row of a ledger.
        """
        try:
            file = self.path.open("rb")
        except FileNotFoundError:
            # Between two starts it may be moved aside.
            self.offset, self.last = 0, b""
            return
        with file:
            file.seek(self.offset - len(self.last))
            if file.read(len(self.last)) != self.last:
                self.offset, self.last = 0, b""
            file.seek(self.offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                row = row_in(line, self.path, self.last)
                self.offset, self.last = self.offset + len(line), line
                yield row


def row_in(line: bytes, path: Path, before: bytes) -> dict[str, Any]:
    """Return the row in a line.

    Raises:
        UserError: it is none; the message names the row before it.
    """
    try:
        row = json.loads(line)
        if isinstance(row, dict) and type(row["step"]) is int:
            return row
    except (ValueError, KeyError):
        pass
    after = f"after that of step {json.loads(before)['step']:,}" if before else "at its beginning"
    raise UserError(
        f"the ledger {path} has a line {after} that is no row, so that what follows can't be sent; `toolkit verify "
        f"{path.parent}` says more"
    )
