"""The pictures of a pipeline: what each process did when, and how long it stood still."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from one_batch_drawings import FAINT, GRADIENTS, WEIGHTS, bare

Slots = Sequence[Mapping[str, Any]]
"""Pieces of work: `process`, `stage`, `what` ("forward" or "backward"), `micro` (its number), `begin` and `end`."""
COLORS = {"forward": WEIGHTS, "backward": GRADIENTS}
LIGHT = 0.6
"""How strong the colour of a process's second stage is."""


def seconds_of(slots: Slots) -> float:
    """Return how long a step took, from the first piece of work to the end of the last one."""
    return float(max(slot["end"] for slot in slots) - min(slot["begin"] for slot in slots))


def idle_share(slots: Slots) -> float:
    """Return the share of the step in which processes stood still, all of them together."""
    processes = len({slot["process"] for slot in slots})
    worked = sum(slot["end"] - slot["begin"] for slot in slots)
    return float(1 - worked / (processes * seconds_of(slots)))


def idle_by_formula(processes: int, micro_batches: int, stages_of_each: int = 1) -> float:
    """Return the same if all pieces take equally long and nothing is waited for but work: (p - 1) / (v m + p - 1)."""
    return (processes - 1) / (stages_of_each * micro_batches + processes - 1)


def draw_pipelines(steps: Mapping[str, tuple[Slots, float]]) -> Figure:
    """Draw the timelines of several steps below each other, each with its idle share beside that of the formula."""
    figure, all_axes = plt.subplots(len(steps), 1, figsize=(13, 1.75 * len(steps) + 0.6), sharex=True)
    for axes, (title, (slots, formula)) in zip(all_axes, steps.items(), strict=True):
        draw_pipeline(axes, slots)
        idle = f"idle {idle_share(slots):.0%} of the time, by the formula {formula:.0%}"
        axes.set_title(f"{title}: {1000 * seconds_of(slots):.0f} ms, {idle}", fontsize=10, loc="left")
    all_axes[-1].set(xlabel="milliseconds")
    handles = [Patch(color=color, label=what) for what, color in COLORS.items()]
    figure.legend(handles=[*handles, Patch(color=FAINT, label="idle")], loc="upper right", ncols=3)
    figure.tight_layout()
    return figure


def draw_pipeline(axes: Axes, slots: Slots) -> None:
    """Draw what each process did when, with the number of the micro-batch from 1."""
    first = min(slot["begin"] for slot in slots)
    processes = sorted({slot["process"] for slot in slots})
    whole = 1000 * seconds_of(slots)
    for process in processes:
        axes.barh(-process, whole, height=0.8, color=FAINT)
    for slot in slots:
        begin, width = 1000 * (slot["begin"] - first), 1000 * (slot["end"] - slot["begin"])
        strength = LIGHT if slot["stage"] >= len(processes) else 1
        color = COLORS[slot["what"]]
        axes.barh(-slot["process"], width, left=begin, height=0.8, color=color, alpha=strength, edgecolor="white")
        if width > 0.01 * whole:
            middle = begin + width / 2
            axes.text(middle, -slot["process"], slot["micro"] + 1, ha="center", va="center", fontsize=9, color="white")
    axes.set(yticks=[-process for process in processes], yticklabels=[f"process {process}" for process in processes])
    bare(axes)


def draw_idle(measured: Mapping[str, Mapping[int, float]], processes: int) -> Figure:
    """Draw the measured idle shares by the number of micro-batches, with the formula's."""
    figure, axes = plt.subplots(figsize=(7.5, 3.6))
    counts = sorted({count for shares in measured.values() for count in shares})
    every = range(counts[0], counts[-1] + 1)
    formula = [idle_by_formula(processes, count) for count in every]
    axes.plot(every, formula, color="#333333", linewidth=1, linestyle="--", label="(p - 1) / (m + p - 1)")
    for (schedule, shares), color in zip(measured.items(), (WEIGHTS, GRADIENTS), strict=True):
        axes.plot(list(shares), list(shares.values()), marker="o", color=color, label=f"{schedule}, measured")
    axes.set(xlabel="micro-batches in a step", ylabel="idle share", xticks=counts, ylim=(0, None))
    axes.legend()
    bare(axes)
    figure.tight_layout()
    return figure
