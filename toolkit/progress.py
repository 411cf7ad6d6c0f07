"""Where the loop's rows go: into the ledger and onto the screen, in the main process; and whether writing still works."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from toolkit.checkpoint.writer import Writer
from toolkit.errors import UserError
from toolkit.output.console import Display
from toolkit.output.ledger import Ledger, LedgerRow
from toolkit.output.run_folder import folder_name


@dataclass
class Progress:
    """Takes the rows of a run; without a ledger and a display, as in every process but the main one, it only counts."""

    ledger: Ledger | None = None
    display: Display | None = None
    saver: Writer | None = None
    """Writes checkpoints, or this process's part of them."""
    steps: int = 0
    skipped: int = 0
    nonfinite: list[dict[str, Any]] = field(default_factory=list)
    """Steps whose gradient was not finite, with the ids of their samples."""
    failure: Exception | None = None
    """Why the ledger can't be written any more."""
    rows: list[LedgerRow] = field(default_factory=list)
    keep_rows: bool = False
    """Whether the rows are also kept in memory, for tests and notebooks."""

    def record(self, row: LedgerRow, metrics: dict[str, float] | None = None) -> None:
        """Take the row of one step, and the metrics of the evaluation after it."""
        if metrics:
            row = replace(row, evaluation=metrics)
        self.steps = row.step
        self.skipped += row.skipped
        if self.keep_rows:
            self.rows.append(row)
        if self.ledger is not None and self.failure is None:
            try:
                self.ledger.write(row)
            except OSError as error:
                self.failure = UserError(
                    f"the ledger {self.ledger.path} can't be written ({error.strerror or error}); make room or repair the folder, "
                    "then start the same command again: it goes on from the newest checkpoint"
                )
        if self.display is not None:
            self.display.step(row)

    @property
    def in_trouble(self) -> bool:
        """Whether ledger or checkpoints can't be written: all processes have to agree to stop for it."""
        return self.failure is not None or (self.saver is not None and self.saver.failure is not None)

    def raise_trouble(self) -> None:
        """Raise what went wrong while writing, if anything did."""
        for failure in (self.saver.failure if self.saver else None, self.failure):
            if failure is not None:
                raise failure

    def finish_writing(self) -> None:
        """Wait for the checkpoint that is being written, and raise what went wrong."""
        if self.saver is not None:
            self.saver.wait()
        self.raise_trouble()

    def protect(self, step: int) -> None:
        """Never delete the checkpoint of this step: it is the best."""
        if self.saver is not None:
            self.saver.best = step

    def newest_checkpoint(self) -> Path | None:
        """Return the newest sealed checkpoint, in the main process."""
        if self.saver is None:
            return None
        self.saver.wait()
        newest = self.saver.newest
        return None if newest is None else self.saver.folder.checkpoints / folder_name(newest)

    def stood_still(self) -> float:
        """Return the seconds for which training stood still for checkpoints since the last call."""
        return self.saver.take_time() if self.saver is not None else 0.0
