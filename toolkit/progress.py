"""Where the loop's rows go: into the ledger and onto the screen, in the main process."""

from dataclasses import dataclass, field, replace

from toolkit.console import Display
from toolkit.ledger import Ledger, LedgerRow


@dataclass
class Progress:
    """Takes the rows of a run; without a ledger and a display, as in every process but the main one, it only counts."""

    ledger: Ledger | None = None
    display: Display | None = None
    steps: int = 0
    skipped: int = 0
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
        if self.ledger is not None:
            self.ledger.write(row)
        if self.display is not None:
            self.display.step(row)
