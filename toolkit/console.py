"""What a run says to the person who started it. Only the main process speaks."""

import sys
from collections.abc import Iterable, Mapping
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from toolkit import pipes
from toolkit.ledger import LedgerRow

SECONDS_BETWEEN_LINES = 5.0


class PatientConsole(Console):
    """A console that goes on where nobody reads any more; rich would end the process."""

    def on_broken_pipe(self) -> None:
        """Go quiet."""
        self.quiet = True
        pipes.go_quiet(sys.stdout)


class Voice:
    """Speaks in the main process and is silent in the others; a live bar on a terminal, plain lines in a file."""

    def __init__(self, is_main: bool) -> None:
        self.is_main = is_main
        # A notebook is no terminal: rich would make an output of its own of every line, and of every state of the bar.
        self.console = PatientConsole(
            file=sys.stdout, soft_wrap=True, highlight=False, force_jupyter=False, force_terminal=sys.stdout.isatty()
        )

    @property
    def is_terminal(self) -> bool:
        """Whether somebody watches."""
        return self.is_main and self.console.is_terminal

    def say(self, text: str) -> None:
        """Print a line."""
        if self.is_main:
            self.console.print(text, markup=False)
            pipes.flush()

    def facts(self, title: str, facts: Mapping[str, str]) -> None:
        """Print a title and, below it, names with their texts in two columns."""
        if not self.is_main:
            return
        width = max(map(len, facts), default=0)
        self.say(title)
        for name, text in facts.items():
            self.say(f"  {name:<{width}}  {text}")

    def table(self, title: str, columns: Iterable[str], rows: Iterable[Iterable[str]]) -> None:
        """Print a small table: the first column to the left, figures to the right."""
        if not self.is_main:
            return
        names = list(columns)
        table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
        for number, name in enumerate(names):
            table.add_column(name, justify="left" if number == 0 else "right")
        for row in rows:
            table.add_row(*row)
        self.console.print(table, soft_wrap=False)
        pipes.flush()


class Display:
    """The progress of the training: a bar that moves on a terminal, a line every few seconds elsewhere."""

    def __init__(self, voice: Voice, total_steps: int, done: int = 0) -> None:
        self.voice = voice
        self.total_steps = total_steps
        self.done = done
        self.elapsed = 0.0
        self.steps = 0
        self.rate = 0.0
        self.since_line = 0.0
        self.metrics = ""
        self.bar: Progress | None = None

    def __enter__(self) -> "Display":
        if self.voice.is_terminal:
            self.bar = Progress(
                TextColumn("training"),
                BarColumn(bar_width=None),
                MofNCompleteColumn(),
                TextColumn("loss {task.fields[loss]}"),
                TextColumn("{task.fields[rate]}"),
                TimeRemainingColumn(),
                TextColumn("{task.fields[metrics]}"),
                console=self.voice.console,
                expand=True,
            )
            self.bar.start()
            self.task = self.bar.add_task(
                "", total=self.total_steps, completed=self.done, loss="-", rate="-", metrics=""
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bar is not None:
            self.bar.stop()

    def step(self, row: LedgerRow) -> None:
        """Show a step."""
        self.elapsed += row.seconds
        self.since_line += row.seconds
        self.steps += 1
        # Half of the rate's weight is in the last 14 steps or so: it settles soon and still follows a change.
        latest = row.samples / max(row.seconds, 1e-9)
        self.rate = latest if self.steps <= 2 else 0.95 * self.rate + 0.05 * latest
        loss = "-" if row.loss is None else f"{row.loss:.4f}"
        if row.evaluation:
            self.metrics = figures(row.evaluation)
        if row.skipped:
            why = "it has no unit to learn from" if row.units == 0 else "its gradient is not finite"
            self.voice.say(f"step {row.step}: the weights were left alone, {why}")
        if self.bar is not None:
            self.bar.update(
                self.task, completed=row.step, loss=loss, rate=f"{self.rate:,.0f} samples/s", metrics=self.metrics
            )
            if row.evaluation:
                self.voice.say(f"step {row.step}: {self.metrics}")
        elif row.evaluation or self.since_line >= SECONDS_BETWEEN_LINES:
            left = (self.total_steps - row.step) * self.elapsed / self.steps
            self.since_line = 0.0
            self.voice.say(
                f"step {row.step}/{self.total_steps}  epoch {row.epoch:.2f}  loss {loss}  lr {row.learning_rate:.2e}  "
                f"{self.rate:,.0f} samples/s  {clock(left)} left" + (f"  | {self.metrics}" if row.evaluation else "")
            )


def figures(metrics: Mapping[str, float]) -> str:
    """Return metrics on one line."""
    return "  ".join(f"{name} {value:.4f}" for name, value in metrics.items())


def clock(seconds: float) -> str:
    """Return a duration as 1:02:03 or 2:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
