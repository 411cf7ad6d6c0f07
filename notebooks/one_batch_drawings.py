"""The pictures of the notebook: how each way moves data, when each piece of work was done, and how many bytes were
sent."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter, sleep

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Patch
from torch import Tensor

WEIGHTS, GRADIENTS, ACTIVATIONS, WORK, FAINT = "#3b6ea8", "#e07b26", "#4b9b5b", "#8d8d99", "#f1f1f5"
COLORS = {"weights": WEIGHTS, "gradients": GRADIENTS, "activations": ACTIVATIONS, "work": WORK}
MEGABYTE = 1e6


@dataclass(frozen=True)
class Entry:
    """One piece of work on one device."""

    text: str
    device: int
    kind: str
    begin: float
    end: float
    bytes: int


@dataclass
class Journal:
    """What was done when, and the bytes that went from one device to another."""

    bytes_per_second: float
    """How fast the devices are connected: what is sent waits that long."""
    entries: list[Entry] = field(default_factory=list)

    @contextmanager
    def note(self, text: str, device: int, kind: str = "work", sent: int = 0) -> Iterator[None]:
        """Write down a piece of work and how long it took."""
        begin = perf_counter()
        yield
        sleep(sent / self.bytes_per_second)
        self.entries.append(Entry(text, device, kind, begin, perf_counter(), sent))

    def __str__(self) -> str:
        """Return a line for each piece of work, in the order in which they ended."""
        lines = [
            f"device {entry.device}  {entry.text:22} {1000 * (entry.end - entry.begin):7.2f} ms  {entry.bytes:10,} "
            "bytes"
            for entry in self.entries
        ]
        return "\n".join(lines)

    def sent(self) -> dict[str, int]:
        """Return the bytes that went between devices, by what they were."""
        kinds = ("weights", "gradients", "activations")
        return {kind: sum(entry.bytes for entry in self.entries if entry.kind == kind) for kind in kinds}


def box(
    axes: Axes, x: float, y: float, width: float, height: float, text: str, color: str, light: bool = False
) -> None:
    """Draw a labelled box, from its lower left corner."""
    shape = FancyBboxPatch(
        (x, y), width, height, boxstyle="round,pad=0,rounding_size=0.08", facecolor=color, edgecolor="none"
    )
    axes.add_patch(shape)
    shade = "#333333" if light else "white"
    axes.text(x + width / 2, y + height / 2, text, ha="center", va="center", color=shade, fontsize=9)


def arrow(axes: Axes, start: float, end: float, y: float, text: str, color: str, both: bool = False) -> None:
    """Draw a level arrow with its label above."""
    style = "<|-|>" if both else "-|>"
    axes.add_patch(FancyArrowPatch((start, y), (end, y), arrowstyle=style, mutation_scale=14, color=color, linewidth=2))
    axes.text((start + end) / 2, y + 0.1, text, ha="center", va="bottom", fontsize=8.5, color=color)


def place(axes: Axes, x: float, name: str, height: float = 3.5) -> None:
    """Draw the frame of a process or device."""
    box(axes, x, 0.1, 2.2, height, "", FAINT)
    axes.text(x + 1.1, height - 0.12, name, ha="center", va="center", fontsize=9, color="#333333")


def draw_ways() -> Figure:
    """Draw where weights and gradients are, and what is sent, for each of the four ways."""
    figure, all_axes = plt.subplots(2, 2, figsize=(13, 7.4))
    for axes, title in zip(
        all_axes.flat,
        (
            "DataParallel: one process, a thread for each device",
            "DistributedDataParallel: a process for each device",
            "Gradient accumulation: one device, one part after another",
            "FSDP: a process for each device, a part of every weight in each",
        ),
        strict=True,
    ):
        axes.set(xlim=(0, 8), ylim=(0, 3.8))
        axes.set_axis_off()
        axes.set_title(title, fontsize=11, loc="left")
    draw_data_parallel(all_axes[0, 0])
    draw_distributed(all_axes[0, 1])
    draw_accumulation(all_axes[1, 0])
    draw_sharded(all_axes[1, 1])
    figure.tight_layout(h_pad=2)
    return figure


def draw_data_parallel(axes: Axes) -> None:
    """Device 0 owns everything; device 1 borrows."""
    place(axes, 0.1, "device 0, the owner")
    place(axes, 5.7, "device 1, keeps nothing")
    for y, text, color in (
        (2.45, "weights", WEIGHTS),
        (1.7, "all rows, all logits,\nthe loss", ACTIVATIONS),
        (0.3, "gradients,\noptimizer", GRADIENTS),
    ):
        box(axes, 0.3, y, 1.8, 0.6, text, color)
    for y, text, color in (
        (2.45, "a copy\nof the weights", WEIGHTS),
        (1.7, "half of the rows", ACTIVATIONS),
        (0.3, "its gradients", GRADIENTS),
    ):
        box(axes, 5.9, y, 1.8, 0.6, text, color)
    arrow(axes, 2.4, 5.6, 2.75, "weights, in every forward pass", WEIGHTS)
    arrow(axes, 2.4, 5.6, 2.1, "rows", ACTIVATIONS)
    arrow(axes, 5.6, 2.4, 1.6, "logits", ACTIVATIONS)
    arrow(axes, 2.4, 5.6, 1.1, "gradients of the logits", ACTIVATIONS)
    arrow(axes, 5.6, 2.4, 0.5, "gradients, in every backward pass", GRADIENTS)


def draw_distributed(axes: Axes) -> None:
    """Both own everything; gradients are averaged."""
    for x, name in ((0.1, "process 0"), (5.7, "process 1")):
        place(axes, x, name)
        box(axes, x + 0.2, 2.45, 1.8, 0.6, "weights", WEIGHTS)
        box(axes, x + 0.2, 1.7, 1.8, 0.6, "its rows, its loss", ACTIVATIONS)
        box(axes, x + 0.2, 0.95, 1.8, 0.6, "gradients", GRADIENTS)
        box(axes, x + 0.2, 0.3, 1.8, 0.5, "optimizer", WORK)
    arrow(axes, 2.4, 5.6, 1.25, "gradients: all-reduce,\nonce a step, while backward goes on", GRADIENTS, both=True)


def draw_accumulation(axes: Axes) -> None:
    """Four parts are added into one gradient."""
    place(axes, 5.7, "one process")
    box(axes, 5.9, 2.45, 1.8, 0.6, "weights", WEIGHTS)
    box(axes, 5.9, 0.3, 1.8, 0.6, "optimizer, once", WORK)
    box(axes, 5.9, 1.2, 1.8, 0.95, "gradients\n= 1 + 2 + 3 + 4", GRADIENTS)
    for number in range(4):
        x = 0.2 + 1.28 * number
        box(axes, x, 1.35, 1.0, 0.65, f"micro-\nbatch {4 - number}", ACTIVATIONS)
        arrow(axes, x + 1.02, x + 1.27 if number < 3 else 5.85, 1.68, "", GRADIENTS)
    axes.text(2.7, 2.35, "forward and backward, one after another", ha="center", fontsize=8.5, color=ACTIVATIONS)
    axes.text(2.7, 0.85, "nothing is sent", ha="center", fontsize=8.5, color="#333333")


def draw_sharded(axes: Axes) -> None:
    """Each owns half of everything."""
    for x, name, part in ((0.1, "process 0", "first"), (5.7, "process 1", "second")):
        place(axes, x, name)
        box(axes, x + 0.2, 2.45, 1.8, 0.6, f"{part} half\nof every weight", WEIGHTS)
        box(axes, x + 0.2, 1.7, 1.8, 0.6, "its rows, its loss", ACTIVATIONS)
        box(axes, x + 0.2, 0.95, 1.8, 0.6, f"{part} half\nof the gradients", GRADIENTS)
        box(axes, x + 0.2, 0.3, 1.8, 0.5, "half the optimizer", WORK)
    arrow(axes, 2.4, 5.6, 2.75, "weights: all-gather, block by block,\nforward and again backward", WEIGHTS, both=True)
    arrow(axes, 2.4, 5.6, 1.25, "gradients: reduce-scatter, once a step", GRADIENTS, both=True)


def draw_timeline(journal: Journal) -> Figure:
    """Draw when each device worked and when something was moved."""
    first = min(entry.begin for entry in journal.entries)
    devices = max(entry.device for entry in journal.entries) + 1
    whole = 1000 * (max(entry.end for entry in journal.entries) - first)
    figure, axes = plt.subplots(figsize=(13, 1.2 + 1.6 * devices))
    for entry in journal.entries:
        start, width = (entry.begin - first) * 1000, (entry.end - entry.begin) * 1000
        axes.barh(-entry.device, width, left=start, height=0.42, color=COLORS[entry.kind], edgecolor="white")
        if width > 0.012 * whole:
            axes.text(start, -entry.device + 0.25, entry.text, fontsize=8.5, rotation=35, color="#333333")
    axes.set(yticks=[-n for n in range(devices)], yticklabels=[f"device {n}" for n in range(devices)])
    axes.set(xlabel="milliseconds", ylim=(-devices + 0.6, 1.1))
    axes.legend(handles=legend_of(["work", "weights", "gradients", "activations"]), loc="upper left", ncols=4)
    bare(axes)
    figure.tight_layout()
    return figure


def draw_bytes(sent: Mapping[str, Mapping[str, int]]) -> Figure:
    """Draw a bar for each way, made of the kinds of data that it sends."""
    kinds = ["weights", "gradients", "activations"]
    figure, axes = plt.subplots(figsize=(11, 0.9 + 0.5 * len(sent)))
    for row, parts in enumerate(sent.values()):
        left = 0.0
        for kind in kinds:
            axes.barh(-row, parts[kind] / MEGABYTE, left=left, height=0.62, color=COLORS[kind])
            left += parts[kind] / MEGABYTE
        axes.text(left + 0.1, -row, f"{left:.2f} MB", va="center", fontsize=9)
    axes.set(yticks=[-row for row in range(len(sent))], yticklabels=list(sent))
    axes.set(xlabel="megabytes per optimizer step, both devices or processes together")
    axes.margins(x=0.12)
    axes.legend(handles=legend_of(kinds), loc="lower right")
    bare(axes)
    figure.tight_layout()
    return figure


def draw_gradients(gradients: Mapping[str, Tensor], differences: Mapping[str, float]) -> Figure:
    """Draw the same corner of one weight's gradient as each way has computed it."""
    columns = 4
    rows = -(-len(gradients) // columns)
    figure, all_axes = plt.subplots(rows, columns, figsize=(13, 1.9 * rows), squeeze=False)
    limit = float(next(iter(gradients.values())).abs().max())
    for axes in all_axes.flat:
        axes.set_axis_off()
    for axes, (way, gradient) in zip(all_axes.flat, gradients.items(), strict=False):
        axes.imshow(gradient, cmap="RdBu", vmin=-limit, vmax=limit, aspect="auto", interpolation="nearest")
        axes.set_title(f"{way}\nlargest difference {differences[way]:.1e}", fontsize=9)
    figure.tight_layout()
    return figure


def draw_busiest(weights_megabytes: float, devices: Sequence[int]) -> Figure:
    """Draw what the busiest device sends and receives in a step, by the number of devices."""
    figure, axes = plt.subplots(figsize=(7.5, 3.6))
    for label, color, values in (
        ("DataParallel: device 0", "#b03a48", [2 * (n - 1) * weights_megabytes for n in devices]),
        ("FSDP: any process", WEIGHTS, [2 * 3 * (n - 1) / n * weights_megabytes for n in devices]),
        ("DDP: any process", GRADIENTS, [2 * 2 * (n - 1) / n * weights_megabytes for n in devices]),
    ):
        axes.plot(devices, values, marker="o", color=color, label=label)
    axes.set(xlabel="devices", ylabel="MB sent and received", xticks=list(devices))
    axes.legend()
    bare(axes)
    figure.tight_layout()
    return figure


def legend_of(kinds: Sequence[str]) -> list[Patch]:
    """Return a legend entry for each kind."""
    return [Patch(color=COLORS[kind], label=kind) for kind in kinds]


def bare(axes: Axes) -> None:
    """Leave out the frame, but for the axis that is read."""
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(length=0)
    axes.grid(axis="x", color="#e4e4ea", linewidth=0.7)
    axes.set_axisbelow(True)
