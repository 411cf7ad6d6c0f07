"""Profile one step: the time of each phase, and of the operators."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from toolkit.distributed.phase import BACKWARD_PASS, FORWARD_PASS, OPTIMIZER_STEP, PhaseTracker
from toolkit.notebook.batches import micro_batches_of
from toolkit.notebook.learning import values_of
from toolkit.notebook.plots import html_table
from toolkit.notebook.session import as_it_was
from toolkit.train_state import TrainState

FETCHING = "fetching and collating"
PHASES = (FETCHING, FORWARD_PASS, BACKWARD_PASS, OPTIMIZER_STEP)


class ProfiledPhases(PhaseTracker):
    """Marks the phases of the loop for torch's profiler."""

    def __init__(self) -> None:
        super().__init__()
        self.range: Any = None

    def __call__(self, what: str, step: int | None = None, patient: bool = False, batch: Any = None) -> None:
        super().__call__(what, step, patient, batch)
        self.end()
        self.range = record_function(what)
        self.range.__enter__()

    def end(self) -> None:
        """End the phase that was begun last."""
        if self.range is not None:
            self.range.__exit__(None, None, None)
            self.range = None


@dataclass(frozen=True, repr=False)
class Profile:
    """The profile of a step."""

    seconds: dict[str, float]
    """Of the host, by phase. With a GPU the host runs ahead, and waits at the end."""
    device_seconds: dict[str, float]
    """Of the GPU, by phase; empty on CPU."""
    operators: list[tuple[str, int, float]]
    """Name, calls and seconds of the slowest operators (on the GPU where there is one), without those they call."""
    table: str
    """torch.profiler's own table."""

    @property
    def shares(self) -> dict[str, tuple[float, float]]:
        """Milliseconds and share of each phase, of the GPU where there is one."""
        times = self.device_seconds or self.seconds
        total = sum(times.values()) or 1.0
        return {name: (1e3 * seconds, seconds / total) for name, seconds in times.items()}

    def __repr__(self) -> str:
        return "; ".join(f"{name} {ms:.1f} ms ({share:.0%})" for name, (ms, share) in self.shares.items())

    def _repr_html_(self) -> str:
        """Return the tables that a notebook shows. (IPython looks for this name.)"""
        phases = [(name, f"{ms:.1f}", f"{share:.0%}") for name, (ms, share) in self.shares.items()]
        operators = [(name, str(calls), f"{1e3 * seconds:.2f}") for name, calls, seconds in self.operators]
        return html_table([("phase", "ms", "share"), *phases], numbers=True) + html_table(
            [("operator", "calls", "ms"), *operators], numbers=True
        )


def profile_step(training: TrainState, step: int = 0, top: int = 10) -> Profile:
    """Run one step under torch.profiler, once without it before to warm up, and restore everything.

    Args:
        training: what `prepared` returned.
        step: which, counted from 0.
        top: how many operators are named.
    """
    on_gpu = training.runtime.device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    phases = ProfiledPhases()
    profiled = replace(training, runtime=replace(training.runtime, phase=phases))
    with as_it_was(training):
        values_of(training, step, micro_batches_of(training, step))
    with as_it_was(training), profile(activities=activities) as profiler:
        phases(FETCHING)
        micro_batches = micro_batches_of(training, step)
        values_of(profiled, step, micro_batches)
        phases.end()
        if on_gpu:
            torch.cuda.synchronize()
    averages = profiler.key_averages()
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
