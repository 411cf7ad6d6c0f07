"""The pictures of the ways that the toolkit trains."""

from parts import (
    HALVES,
    NOTHING,
    SENT,
    arrow,
    canvas,
    frame,
    holdings,
    process,
    save,
    steps,
    words,
)


def ddp() -> None:
    """Distributed data parallel."""
    axes = canvas(
        9.2,
        5.25,
        "Distributed data parallel (DDP)",
        "Each GPU holds the whole model and sees its own share of the samples.",
    )
    for number in range(2):
        process(
            axes,
            0.45 + 4.75 * number,
            1.85,
            f"GPU {number}",
            holdings((0, 1) if number == 0 else (2, 3), 4, (0,), 1, ["all"]),
        )
    arrow(axes, (3.98, 2.74), (5.17, 2.74), both=True)
    words(axes, 4.575, 3.1, "all-reduce\ngradients", size=9, colour=SENT)
    steps(
        axes,
        0.62,
        1.42,
        [
            ("forward and backward, each its own samples", NOTHING),
            ("on the last micro-batch: gradients added up", "about 8 bytes per parameter"),
            ("every GPU takes the same optimizer step", NOTHING),
        ],
    )
    save(axes, "ddp")


def fsdp2() -> None:
    """Fully sharded data parallel."""
    axes = canvas(
        9.2,
        5.65,
        "Fully sharded data parallel (FSDP2)",
        "Each GPU holds a part of everything, and sees its own share of the samples. One layer at a time is made "
        "whole.",
    )
    for number in range(2):
        process(
            axes,
            0.45 + 4.75 * number,
            2.25,
            f"GPU {number}",
            holdings((0, 1) if number == 0 else (2, 3), 4, (number,), 2, HALVES),
        )
    arrow(axes, (3.98, 3.6), (5.17, 3.6), both=True)
    words(axes, 4.575, 3.97, "all-gather\nweights", size=9, colour=SENT)
    arrow(axes, (3.98, 3.0), (5.17, 3.0), both=True)
    words(axes, 4.575, 2.63, "reduce-scatter\ngradients", size=9, colour=SENT)
    steps(
        axes,
        0.62,
        1.82,
        [
            ("forward: each layer gathered, used, given back", "2 bytes per parameter (bf16)"),
            ("backward: gathered again, used, given back", "2 bytes per parameter (bf16)"),
            ("last micro-batch: each GPU gets the sum of its part", "4 bytes per parameter"),
            ("each GPU takes the optimizer step of its part", NOTHING),
        ],
    )
    save(axes, "fsdp2")


def hybrid() -> None:
    """Hybrid sharding."""
    axes = canvas(
        9.9,
        7.25,
        "Hybrid sharding (FSDP2 over several machines)",
        "Sharded over the GPUs inside a machine; every machine has one whole copy of the model.",
    )
    for machine in range(2):
        x = 0.4 + 4.9 * machine
        frame(axes, x, 1.72, 4.2, 4.48, f"machine {machine}", dashed=True)
        left = x + (0.9 if machine == 0 else 0.2)
        for number in range(2):
            rows = holdings((2 * machine + number,), 4, (number,), 2, HALVES)[:3]
            process(axes, left, 3.85 - 2.0 * number, f"GPU {2 * machine + number}", rows, width=3.1)
        column = x + (0.62 if machine == 0 else 3.58)
        arrow(axes, (column, 4.8), (column, 2.8), both=True)
        words(
            axes,
            column + (-0.27 if machine == 0 else 0.27),
            3.8,
            "gather weights,\nscatter gradients",
            size=8.5,
            colour=SENT,
            rotation=90,
        )
    for level in (4.26, 2.26):
        arrow(axes, (4.43, level), (5.47, level), both=True)
        words(
            axes,
            4.95,
            level + 0.33,
            "all-reduce\ngradients",
            size=8,
            colour=SENT,
            bbox={"fc": "white", "ec": "none", "pad": 1},
        )
    steps(
        axes,
        0.62,
        1.38,
        [
            ("inside a machine, as FSDP2 does", "8 bytes per parameter, on the fast links"),
            ("between machines, once: each part with its twin", "about 8 bytes per parameter of a part"),
            ("each GPU takes the optimizer step of its part", NOTHING),
        ],
    )
    save(axes, "hybrid")


def tensor() -> None:
    """Tensor parallel."""
    axes = canvas(
        9.2,
        5.65,
        "Tensor parallel",
        "Each layer is split. Both GPUs see the same samples, and need each other inside every layer.",
    )
    for number in range(2):
        process(
            axes,
            0.45 + 4.75 * number,
            2.25,
            f"GPU {number}",
            holdings((0, 1, 2, 3), 4, (number,), 2, ["half A", "half B"]),
        )
    arrow(axes, (3.98, 3.28), (5.17, 3.28), both=True)
    words(axes, 4.575, 3.65, "all-reduce\nactivations", size=9, colour=SENT)
    words(axes, 4.575, 2.98, "in every layer", size=9, colour=SENT)
    steps(
        axes,
        0.62,
        1.82,
        [
            ("forward: half of the heads and of the MLP each", "2 sums of activations per layer"),
            ("backward: likewise", "5 sums of their gradients per layer"),
            ("gradients of the own half are complete", NOTHING),
            ("each GPU takes the optimizer step of its half", NOTHING),
        ],
    )
    save(axes, "tensor")


def tensor_and_data() -> None:
    """Tensor parallel times sharded data parallel."""
    axes = canvas(
        9.9,
        7.25,
        "Tensor parallel times data parallel (2 x 2)",
        "A pair splits the layers and sees the same samples; each half is sharded over the pairs.",
    )
    for pair in range(2):
        x = 0.4 + 4.9 * pair
        frame(axes, x, 1.72, 4.2, 4.48, f"pair {pair}: samples {'1 and 2' if pair == 0 else '3 and 4'}", dashed=True)
        left = x + (0.9 if pair == 0 else 0.2)
        for number in range(2):
            rows = holdings((0, 1) if pair == 0 else (2, 3), 4, (2 * number + pair,), 4, ["A1", "A2", "B1", "B2"])[:3]
            process(axes, left, 3.85 - 2.0 * number, f"GPU {2 * pair + number}", rows, width=3.1)
        column = x + (0.62 if pair == 0 else 3.58)
        arrow(axes, (column, 4.8), (column, 2.8), both=True)
        words(
            axes,
            column + (-0.27 if pair == 0 else 0.27),
            3.8,
            "all-reduce activations,\nin every layer",
            size=8.5,
            colour=SENT,
            rotation=90,
        )
    for level, half in ((4.26, "A"), (2.26, "B")):
        arrow(axes, (4.43, level), (5.47, level), both=True)
        words(
            axes,
            4.95,
            level + 0.33,
            f"FSDP2\nof half {half}",
            size=8,
            colour=SENT,
            bbox={"fc": "white", "ec": "none", "pad": 1},
        )
    steps(
        axes,
        0.62,
        1.38,
        [
            ("in a pair: each layer computed in two halves", "activations, on the fastest links"),
            ("between pairs: weights gathered, gradients scattered", "8 bytes per parameter of a half"),
            ("each GPU takes the optimizer step of its quarter", NOTHING),
        ],
    )
    save(axes, "tensor_and_data")
