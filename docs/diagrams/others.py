"""The pictures of what is beside them: accumulation, what was superseded, and what is not trained here."""

from matplotlib.patches import Rectangle
from parts import (
    GRADIENTS,
    HALVES,
    LINE,
    NOTHING,
    ROW,
    SAMPLES,
    SENT,
    SOFT,
    WEIGHTS,
    arrow,
    bar,
    canvas,
    holdings,
    process,
    save,
    steps,
    words,
)


def accumulation() -> None:
    """One global batch, cut in three ways."""
    axes = canvas(
        9.2,
        6.0,
        "One global batch of 8 samples, cut in three ways",
        "Gradients are sums over samples, so the cut changes time and memory, and not the sum.",
    )
    cuts = [
        ("1 GPU, all at once", [[(0, 8)]]),
        ("1 GPU, 4 micro-batches", [[(0, 2), (2, 4), (4, 6), (6, 8)]]),
        ("2 GPUs, 2 micro-batches each", [[(0, 2), (2, 4)], [(4, 6), (6, 8)]]),
    ]
    level = 4.6
    for title, gpus in cuts:
        words(axes, 0.35, level + ROW / 2 - (0.23 if len(gpus) == 2 else 0), title, ha="left", size=10, weight="bold")
        top = level
        for micro_batches in gpus:
            x = 3.0
            for first, last in micro_batches:
                for sample in range(first, last):
                    axes.add_patch(Rectangle((x, level), 0.3, ROW, fc=SAMPLES, ec="white", lw=1.2))
                    words(axes, x + 0.15, level + ROW / 2, str(sample + 1), size=8.5, colour="white", weight="bold")
                    x += 0.3
                x += 0.16
            arrow(axes, (x, level + ROW / 2), (6.35, level + ROW / 2), colour=SOFT)
            bar(axes, 6.45, level, 1.0, GRADIENTS, 1, (0,), ["own sum"])
            level -= 0.5
        middle = (top + level + 0.5) / 2 + ROW / 2
        if len(gpus) == 2:
            arrow(axes, (7.62, middle + 0.28), (7.62, middle - 0.28), both=True)
            words(axes, 7.72, middle, "one\nall-reduce", size=8.5, colour=SENT, ha="left")
        else:
            words(axes, 7.6, middle, "nothing is sent", size=9, colour=SOFT, ha="left")
        level -= 0.25
    axes.plot((0.35, 8.85), (2.2, 2.2), color=LINE, lw=1)
    steps(
        axes,
        0.62,
        1.75,
        [
            ("units of the whole global batch are counted first, over all GPUs", ""),
            ("every micro-batch adds its sum / units to the gradient", ""),
            ("the gradient is synchronised once, clipped, and one step is taken", ""),
        ],
    )
    save(axes, "accumulation")


def data_parallel() -> None:
    """nn.DataParallel, superseded."""
    axes = canvas(
        9.2,
        6.1,
        "nn.DataParallel: superseded by DDP",
        "One Python process, one thread per GPU. GPU 0 holds everything and does for the others what they can't.",
    )
    process(
        axes,
        0.45,
        2.55,
        "GPU 0: the only one that is trained",
        [
            ("samples", "samples", 4, (0, 1, 2, 3), ["1", "2", "3", "4"]),
            ("weights", "weights", 1, (0,), ["all"]),
            ("gradients", "gradients", 1, (0,), ["all"]),
            ("optimizer", "optimizer", 1, (0,), ["all"]),
        ],
        width=3.6,
    )
    process(
        axes,
        5.6,
        2.55,
        "GPU 1: a copy for one pass",
        [
            ("samples", "samples", 4, (2, 3), ["1", "2", "3", "4"]),
            ("weights", "weights", 1, (0,), ["copied in every pass"]),
            ("gradients", "gradients", 1, (0,), ["sent to GPU 0"]),
            ("optimizer", "optimizer", 1, (), [""]),
        ],
        width=3.2,
    )
    for level, text, back in (
        (4.27, "scatter samples", False),
        (3.81, "replicate weights", False),
        (3.35, "gather outputs,\nadd up gradients", True),
    ):
        arrow(axes, (5.53, level) if back else (4.12, level), (4.12, level) if back else (5.53, level))
        words(axes, 4.83, level + (0.13 if not back else -0.27), text, size=8.5, colour=SENT)
    steps(
        axes,
        0.62,
        2.1,
        [
            ("the whole model is sent to each other GPU", "in every forward pass"),
            ("threads share one Python interpreter: GPUs wait", ""),
            ("outputs and their loss meet on GPU 0", "it runs out of memory first"),
            ("gradients of all copies are added up on GPU 0", "in every backward pass"),
        ],
    )
    save(axes, "data_parallel")


def pipeline() -> None:
    """Pipeline parallel."""
    axes = canvas(
        9.2,
        5.3,
        "Pipeline parallel (not trained by Accelerate)",
        "Each GPU holds some of the layers; micro-batches travel from one to the next, and gradients back.",
    )
    stages, micro, width = 3, 4, 0.52
    for stage in range(stages):
        level = 3.55 - 0.62 * stage
        words(axes, 0.35, level + 0.23, f"GPU {stage}", ha="left", size=10, weight="bold")
        words(axes, 1.05, level + 0.23, f"layers {4 * stage + 1}-{4 * stage + 4}", ha="left", size=9.5, colour=SOFT)
        axes.add_patch(Rectangle((2.2, level), 12 * width, 0.46, fc="white", ec=LINE, lw=1.0, ls=":"))
        for number in range(micro):
            for slot, colour in (
                (stage + number, WEIGHTS),
                (micro + stages - 1 + (stages - 1 - stage) + number, GRADIENTS),
            ):
                axes.add_patch(Rectangle((2.2 + slot * width, level), width, 0.46, fc=colour, ec="white", lw=1.2))
                words(
                    axes,
                    2.2 + (slot + 0.5) * width,
                    level + 0.22,
                    str(number + 1),
                    size=9,
                    colour="white",
                    weight="bold",
                )
    arrow(axes, (2.2, 2.05), (2.2 + 12 * width, 2.05), colour=SOFT)
    words(axes, 2.2, 1.82, "time", ha="left", size=9, colour=SOFT)
    for x, colour, text in ((3.5, WEIGHTS, "forward of micro-batch n"), (5.9, GRADIENTS, "backward of it")):
        axes.add_patch(Rectangle((x, 1.7), 0.24, 0.24, fc=colour, ec="none"))
        words(axes, x + 0.34, 1.82, text, ha="left", size=9)
    axes.add_patch(Rectangle((7.4, 1.7), 0.24, 0.24, fc="white", ec=SOFT, lw=1, ls=":"))
    words(axes, 7.74, 1.82, "waiting", ha="left", size=9)
    steps(
        axes,
        0.62,
        1.3,
        [
            ("each GPU holds weights, gradients and optimizer of its layers", ""),
            ("from GPU to GPU: activations at one boundary, not in every layer", ""),
            ("idle: (GPUs - 1) of (micro-batches + GPUs - 1) slots, here 2 of 6", ""),
        ],
    )
    save(axes, "pipeline")


def context() -> None:
    """Context parallel."""
    axes = canvas(
        9.2,
        5.65,
        "Context parallel (refused by the toolkit)",
        "Each sample is cut along its length: both GPUs see every sample, each a part of its tokens.",
    )
    for number in range(2):
        rows = [
            ("tokens", "samples", 2, (number,), ["1 ... 4096", "4097 ... 8192"]),
            *holdings((), 4, (number,), 2, HALVES)[1:],
        ]
        process(axes, 0.45 + 4.75 * number, 2.25, f"GPU {number}", rows)
    arrow(axes, (3.98, 3.85), (5.17, 3.85), both=True)
    words(axes, 4.575, 4.2, "keys and values,\nin every layer", size=9, colour=SENT)
    arrow(axes, (3.98, 3.1), (5.17, 3.1), both=True)
    words(axes, 4.575, 2.73, "weights, gradients\nas FSDP2", size=9, colour=SENT)
    steps(
        axes,
        0.62,
        1.82,
        [
            ("everything but attention: each its own tokens", NOTHING),
            ("attention: the keys and values of all tokens are needed", "keys and values, in every layer"),
            ("weights and gradients as in FSDP2", "8 bytes per parameter"),
            ("what it saves: activations of long sequences", ""),
        ],
    )
    save(axes, "context")
