"""Where the time of a step goes."""

from dataclasses import dataclass, replace
from html import escape
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from toolkit.distributed.phase import BACKWARD_PASS, FORWARD_PASS, OPTIMIZER_STEP, PhaseTracker
from toolkit.notebook.batches import micro_batches_of
from toolkit.notebook.keeping import as_it_was
from toolkit.notebook.learning import values_of
from toolkit.train_state import TrainState

FETCHING = "fetching and collating"
PHASES = (FETCHING, FORWARD_PASS, BACKWARD_PASS, OPTIMIZER_STEP)


class Marking(PhaseTracker):
    """Tells torch's profiler what the loop begins to do, as the loop tells it to whoever watches."""

    def __init__(self) -> None:
        super().__init__()
        self.range: Any = None

    def __call__(self, what: str, step: int | None = None, patient: bool = False, batch: Any = None) -> None:
        super().__call__(what, step, patient, batch)
        self.end()
        self.range = record_function(what)
        self.range.__enter__()

    def end(self) -> None:
        """End what was begun last."""
        if self.range is not None:
            self.range.__exit__(None, None, None)
            self.range = None


@dataclass(frozen=True, repr=False)
class Profile:
    """A step as the profiler saw it."""

    seconds: dict[str, float]
    """Of the host, by phase. On a GPU the host runs ahead, and waits at the end."""
    device_seconds: dict[str, float]
    """Of the GPU, by phase; empty on CPU."""
    operators: list[tuple[str, int, float]]
    """Name, calls and seconds of the operators that took most (of the GPU where there is one), without those they call."""
    table: str
    """torch.profiler's own table."""

    def __repr__(self) -> str:
        times = self.device_seconds or self.seconds
        total = sum(times.values()) or 1.0
        return "; ".join(f"{name} {1e3 * spent:.1f} ms ({spent / total:.0%})" for name, spent in times.items())

    def _repr_html_(self) -> str:
        """Return the tables that a notebook shows. (IPython looks for this name.)"""
        rows: list[tuple[str, ...]] = [("phase", "ms", "share")]
        times = self.device_seconds or self.seconds
        total = sum(times.values()) or 1.0
        rows += [(name, f"{1e3 * spent:.1f}", f"{spent / total:.0%}") for name, spent in times.items()]
        own: list[tuple[str, ...]] = [("operator", "calls", "ms")]
        own += [(name, str(calls), f"{1e3 * spent:.2f}") for name, calls, spent in self.operators]
        return as_table(rows) + as_table(own)


def profile_step(training: TrainState, step: int = 0, top: int = 10) -> Profile:
    """Run one step under torch.profiler, after the same step once without it to warm up, and put everything back.

    Args:
        training: what `prepared` returned.
        step: which, counted from 0.
        top: how many operators are named.
    """
    on_gpu = training.runtime.device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    marking = Marking()
    marked = replace(training, runtime=replace(training.runtime, phase=marking))
    with as_it_was(training):
        values_of(training, step, micro_batches_of(training, step))
    with as_it_was(training), profile(activities=activities) as seen:
        marking(FETCHING)
        micro_batches = micro_batches_of(training, step)
        values_of(marked, step, micro_batches)
        marking.end()
        if on_gpu:
            torch.cuda.synchronize()
    return told_by(seen, top, on_gpu)


def told_by(seen: Any, top: int, on_gpu: bool) -> Profile:
    """Return what a profiler recorded."""
    averages = seen.key_averages()
    by_name = {event.key: event for event in averages}
    found = [phase for phase in PHASES if phase in by_name]
    own = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    operators = sorted(
        (event for event in averages if event.key not in PHASES), key=lambda event: getattr(event, own), reverse=True
    )
    return Profile(
        {phase: by_name[phase].cpu_time_total / 1e6 for phase in found},
        {phase: by_name[phase].device_time_total / 1e6 for phase in found} if on_gpu else {},
        [(event.key, event.count, getattr(event, own) / 1e6) for event in operators[:top]],
        averages.table(sort_by=own, row_limit=top),
    )


def as_table(rows: list[tuple[str, ...]]) -> str:
    """Return rows as an HTML table: the first column to the left, figures to the right."""
    lines = []
    for number, row in enumerate(rows):
        mark = "th" if number == 0 else "td"
        cells = "".join(
            f"<{mark} style='text-align:{'left' if place == 0 else 'right'}'>{escape(text)}</{mark}>"
            for place, text in enumerate(row)
        )
        lines.append(f"<tr>{cells}</tr>")
    return f"<table style='display:inline-table;vertical-align:top;margin-right:2em'>{''.join(lines)}</table>"
