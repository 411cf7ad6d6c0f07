"""What a run prints for the person who started it. Only the main process prints."""

import sys
from collections import deque
from collections.abc import Iterable, Mapping
from time import monotonic
from types import TracebackType

from rich.console import Console as RichConsole
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from toolkit.errors import UserError
from toolkit.output import pipes
from toolkit.output.ledger import LedgerRow

SECONDS_BETWEEN_LINES = 5.0
# Over so many steps the loss that is shown is averaged.
RECENT_STEPS = 50
METRICS_ON_A_LINE = 4


class PatientConsole(RichConsole):
    """A console that goes on when nobody reads any more; rich would end the process."""

    def on_broken_pipe(self) -> None:
        """Discard what is printed from here on."""
        self.quiet = True
        pipes.discard_output(sys.stdout)


class Console:
    """Prints in the main process, and nothing in the others."""

    def __init__(self, is_main: bool) -> None:
        self.is_main = is_main
        # A notebook is no terminal: rich would make a separate output of every line, and of every state of the bar.
        self.rich = PatientConsole(
            file=sys.stdout, soft_wrap=True, highlight=False, force_jupyter=False, force_terminal=sys.stdout.isatty()
        )

    @property
    def is_terminal(self) -> bool:
        """Whether the output is shown on a terminal."""
        return self.is_main and self.rich.is_terminal

    def print(self, text: str) -> None:
        """Print a line in the main process."""
        if self.is_main:
            with pipes.writing(sys.stdout):
                self.rich.print(text, markup=False)
            pipes.flush()

    def summary(self, title: str, summary: Mapping[str, str]) -> None:
        """Print a title and, below it, names and their texts in two columns."""
        if not self.is_main:
            return
        width = max(map(len, summary), default=0)
        self.print(title)
        for name, text in summary.items():
            self.print(f"  {name:<{width}}  {text}")

    def table(self, title: str, columns: Iterable[str], rows: Iterable[Iterable[str]]) -> None:
        """Print a small table: the first column on the left, numbers on the right."""
        if not self.is_main:
            return
        names = list(columns)
        table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
        for number, name in enumerate(names):
            table.add_column(name, justify="left" if number == 0 else "right")
        for row in rows:
            table.add_row(*row)
        with pipes.writing(sys.stdout):
            self.rich.print(table, soft_wrap=False)
        pipes.flush()


class Display:
    """The progress of a run: a bar that moves on a terminal, a line every few seconds elsewhere."""

    def __init__(
        self, console: Console, total_steps: int = 0, done: int = 0, *, every: int | None = None, best: str = ""
    ) -> None:
        """Show a training, or an evaluation alone if there are no steps.

        Args:
            console: where it is shown.
            total_steps: the steps of the run.
            done: the steps that were done before this start of the run.
            every: print a line every so many steps; by default every few seconds.
            best: a metric that the line of an evaluation always has.
        """
        self.console = console
        self.total_steps = total_steps
        self.done = done
        self.every = every
        self.best = best
        self.elapsed = 0.0
        self.steps = 0
        self.rate = self.token_rate = 0.0
        self.recent: deque[tuple[float, float]] = deque(maxlen=RECENT_STEPS)
        """The last losses, each with the number of units that it is the mean of."""
        self.line_at = monotonic()
        self.bar: Progress | None = None
        self.evaluating: TaskID | None = None

    def __enter__(self) -> "Display":
        self.line_at = monotonic()
        if self.console.is_terminal:
            self.bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=None),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[text]}"),
                console=self.console.rich,
                expand=True,
            )
            self.bar.start()
            if self.total_steps:
                self.training = self.bar.add_task("training", total=self.total_steps, completed=self.done, text="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bar is not None:
            self.bar.stop()

    def step(self, row: LedgerRow) -> None:
        """Show a step."""
        self.elapsed += row.seconds
        self.steps += 1
        # Half of the weight is on the last 14 steps or so: the rate settles soon and still follows a change.
        seconds, old = max(row.seconds, 1e-9), 0.0 if self.steps <= 2 else 0.95
        self.rate = old * self.rate + (1 - old) * row.samples / seconds
        self.token_rate = old * self.token_rate + (1 - old) * (row.tokens or 0) / seconds
        if row.skipped:
            why = "it has no unit to learn from" if row.units == 0 else "its gradient is not finite"
            self.console.print(f"step {row.step}: the weights were left alone, {why}")
        elif row.loss is not None:
            self.recent.append((row.loss, row.units))
        if self.bar is not None:
            self.bar.update(self.training, completed=row.step, text=f"{self.mean_loss()}  {self.rates(row)}")
        if self.is_line_due(row):
            left = clock((self.total_steps - row.step) * self.elapsed / self.steps)
            self.line(
                f"step {row.step}/{self.total_steps}  epoch {row.epoch:.2f}  {self.mean_loss()}  "
                f"lr {row.learning_rate:.2e}  {self.rates(row)}  {left} left"
                + (f"  | evaluation: {metrics_line(row.evaluation, self.best)}" if row.evaluation else "")
            )

    def rates(self, row: LedgerRow) -> str:
        """Return how fast it goes, in words; of tokens if they were counted in this step."""
        tokens = f"  {self.token_rate:,.0f} tokens/s" if row.tokens is not None else ""
        return f"{self.rate:,.0f} samples/s{tokens}"

    def mean_loss(self) -> str:
        """Return the mean loss over the units of the last steps, in words; the loss of a single step is noisy."""
        if not self.recent:
            return "loss -"
        count, units = len(self.recent), sum(units for _, units in self.recent)
        mean = sum(loss * units for loss, units in self.recent) / units
        return f"loss {mean:.4f} over {count} step{'s' if count > 1 else ''}"

    def is_line_due(self, row: LedgerRow) -> bool:
        """Return whether a line is to be printed after a step."""
        if row.evaluation:
            return True
        if self.every is not None:
            return row.step % self.every == 0
        return self.bar is None and self.has_been_silent

    @property
    def has_been_silent(self) -> bool:
        """Whether no line was printed in the last seconds."""
        return monotonic() - self.line_at >= SECONDS_BETWEEN_LINES

    def line(self, text: str) -> None:
        self.line_at = monotonic()
        try:
            self.console.print(text)
        except UserError as error:
            # A log that is full is no reason to lose steps: what comes after it is not shown.
            pipes.print_line(f"{error}; the run goes on", sys.stderr)

    def evaluated(self, batches: int, total: int) -> None:
        """Show how many batches of an evaluation are done."""
        if self.bar is None:
            if batches < total and self.has_been_silent:
                self.line(f"evaluating: batch {batches:,} of {total:,}")
            return
        if self.evaluating is None:
            self.evaluating = self.bar.add_task("evaluating", total=total, text="")
        self.bar.update(self.evaluating, completed=batches)
        if batches == total:
            self.bar.remove_task(self.evaluating)
            self.evaluating = None


def metrics_line(metrics: Mapping[str, float], best: str = "") -> str:
    """Return the first few metrics and `best` on one line; the table at the end has all."""
    shown = list(dict.fromkeys([*list(metrics)[:METRICS_ON_A_LINE], *([best] if best in metrics else [])]))
    more = f"  and {len(metrics) - len(shown)} more" if len(metrics) > len(shown) else ""
    return figures({name: metrics[name] for name in shown}) + more


def figures(metrics: Mapping[str, float]) -> str:
    """Return metrics on one line."""
    return "  ".join(f"{name} {value:.4f}" for name, value in metrics.items())


def amount(value: float) -> str:
    """Return a number with three digits, or with all that it has before the point."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def clock(seconds: float) -> str:
    """Return a duration as 1:02:03 or 2:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
