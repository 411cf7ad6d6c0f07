"""What each way to spread a model costs: memory per GPU by part and bytes sent per step, by formulas checked here.

    python benchmarks/performance/parallel_memory.py
        measures on this CPU what of the formulas can be measured without a GPU, on one and on two processes, and prints
        that beside them, then the tables of docs/parallelism.md; three minutes
    python benchmarks/performance/parallel_memory.py --tables
        the tables alone, at once

Bytes per parameter of weights, gradients and AdamW's state are those of the storages that torch allocated, in each
process; what the layers keep for the backward pass is counted where autograd saves it; what is sent is counted where
torch hands it to the process group. The formulas are in `parallel_costs.py`, the measurements in `parallel_checks.py`.
It exits with 1 if one differs from its formula by more than a hundredth.
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

from machine import machine, table
from parallel_costs import (
    ADAMW,
    BACKWARD_REDUCES,
    FORWARD_REDUCES,
    FULL,
    GB,
    GRADIENT,
    HALF,
    MASTER,
    REDUCE_BUCKET,
    SHAPES,
    activations,
    ddp_sends,
    each,
    figure,
    fsdp2_sends,
    gathered,
    hybrid_sends_between,
    logits,
    spread_sends,
    spread_state,
    state,
    tensor_sends,
    waiting,
    working_copy,
    zero_gathered,
    zero_sends,
    zero_state,
)

TOLERANCE = 0.01
SIZES = {name: shape for name, shape in SHAPES.items() if name != "125M"}
TOKENS = 4096
"""Tokens of a micro-batch in the tables: two texts of 2,048, say."""
LINKS = {
    "NVLink 4": 450e9,
    "PCIe 4.0 x16": 32e9,
    "100 Gbit/s": 12.5e9,
    "10 Gbit/s": 1.25e9,
    "1 Gbit/s": 0.125e9,
}
"""Bytes per second in one direction, as it says on the box; what arrives is less."""


def main() -> None:
    """Measure, compare, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", action="store_true", help="print the tables alone, without measuring")
    holds = True
    if not parser.parse_args().tables:
        print("# What each way to spread a model costs\n")
        print(machine() + "\n")
        rows = list(measured())
        holds = all(abs(float(found) - float(said)) <= TOLERANCE * float(said) for _, said, found in rows)
        print(table(["a small Llama on the CPU", "formula", "measured"], rows) + "\n")
    for name, text in tables().items():
        print(f"## {name}\n\n{text}\n")
    sys.exit(0 if holds else 1)


def measured() -> Iterator[list[str]]:
    """Yield what is measured: its name, what the formula says, and what was found."""
    # Only here: without a measurement nothing of torch is needed.
    import torch
    from parallel_checks import (
        copy_of_weights,
        data_parallel,
        fully_sharded,
        in_processes,
        layer_keeps,
        loss_peak,
        one_process,
        tensor_parallel,
        zero,
    )

    def row(name: str, said: float, found: float) -> list[str]:
        return [name, f"{said:.2f}", f"{found:.2f}"]

    torch.set_num_threads(1)
    one, ddp = one_process(), in_processes(data_parallel)
    sharded, split = in_processes(fully_sharded), in_processes(tensor_parallel)
    for name, whole in (("weights", 4), ("gradients", 4), ("optimizer", 8)):
        yield row(f"one process: {name}, bytes per parameter", whole, one[name])
        yield row(f"DDP, 2 processes: {name}, bytes per parameter and process", whole, ddp[name])
        yield row(f"FSDP2, 2 processes: {name}, bytes per parameter and process", whole / 2, sharded[name])
        if name != "gradients":
            yield row(f"tensor parallel, 2 processes: {name}, bytes per parameter and process", whole / 2, split[name])
    # The embedding's gradient is whole in each process: half of 512 x 128 numbers more than its part.
    embedding = FULL * 512 * 128 / 2 / 984_192
    yield row("tensor parallel, 2 processes: gradients, and the embedding's whole", 2 + embedding, split["gradients"])
    held = "DDP: gradients and the buckets that are sent, bytes per parameter"
    yield row(f"{held}: as torch does by itself", 2 * GRADIENT, ddp["gradients and buckets, apart"])
    yield row(f"{held}: gradients as views of buckets", GRADIENT, ddp["gradients and buckets"])
    yield row("DDP: bytes added up per parameter and step of 2 micro-batches", GRADIENT, ddp["reduced"])
    yield row("FSDP2, bf16: whole gradients that wait after the first of 2 micro-batches", FULL, sharded["waiting"])
    yield row("FSDP2, bf16: layers gathered at the same time, at most", 2, sharded["layers at once"])
    # The head and its norm are gathered once: 512 x 128 weights.
    again = 2 * HALF * (1 - 512 * 128 / 984_192) + HALF * 512 * 128 / 984_192
    yield row(
        "FSDP2, bf16: bytes gathered per parameter and micro-batch, head once",
        again,
        sharded["gathered, first micro-batch"],
    )
    yield row("FSDP2, bf16: the same without resharding after forward", HALF, sharded["gathered without resharding"])
    yield row("FSDP2, bf16: bytes reduced per parameter, first of 2", 0, sharded["reduced, first micro-batch"])
    yield row(
        "FSDP2, bf16: bytes reduced per parameter, last micro-batch", GRADIENT, sharded["reduced, last micro-batch"]
    )
    yield from zero_measured(row, zero)
    for way, reduces in (("forward", FORWARD_REDUCES), ("backward", BACKWARD_REDUCES)):
        number = HALF if way == "forward" else FULL
        yield row(f"tensor parallel: all-reduces of a layer, {way}", reduces, split[f"all-reduces of a layer, {way}"])
        yield row(
            f"tensor parallel: bytes added up per token and hidden number, {way}",
            number * reduces,
            split[f"bytes per number, {way}"],
        )
    # Hidden 128, MLP 384, 4 heads; beside the formula each head keeps one float32, and each norm one.
    for bf16, kept in ((True, 34 * 128 + 8 * 384 + 24), (False, 40 * 128 + 16 * 384 + 24)):
        name = "bf16" if bf16 else "float32"
        yield row(f"{name}: a layer keeps, bytes per token", kept, layer_keeps(bf16, checkpointed=False))
        yield row(f"{name}: the same, checkpointed", FULL * 128, layer_keeps(bf16, checkpointed=True))
    yield row("FSDP2, bf16: a layer keeps, bytes per token", 24 * 128 + 8 * 384 + 24, sharded["a layer keeps"])
    yield row("FSDP2, bf16: the same, checkpointed", HALF * 128, sharded["a checkpointed layer keeps"])
    yield row("bf16: copy of the linear layers' weights, bytes per parameter", HALF, copy_of_weights())
    yield row("loss: bytes per token and word, forward and backward", 12, loss_peak())


def zero_measured(row: Callable[[str, float, float], list[str]], zero: Callable[..., Any]) -> Iterator[list[str]]:
    """Yield what two processes hold by stage of ZeRO and type that the passes compute in."""
    from parallel_checks import in_processes

    for stage in (1, 2, 3):
        # Stage 1 holds the same under bf16, which it computes in under autocast.
        for weight, name in ((FULL, "float32"), (HALF, "bf16")) if stage > 1 else ((FULL, "float32"),):
            found = in_processes(partial(zero, stage, weight == HALF))
            said = {
                "weights": weight if stage < 3 else weight / 2,
                "master weights": MASTER / 2,
                "AdamW": ADAMW / 2,
                "gradients after the last of 2 micro-batches": GRADIENT / 2,
            }
            if stage < 3 and weight == FULL:
                # A weight of 128 x 128 that is cut lies whole in the process that has the first part of it.
                said["gradients after the last of 2 micro-batches"] += FULL * 128 * 128 / 984_192
            if stage == 1:
                said["whole gradients that wait after the first of 2"] = GRADIENT
            if stage == 3:
                said["weights gathered, of a small model"] = weight
                said["reduce bucket, GB"] = REDUCE_BUCKET / GB
            for part, number in said.items():
                yield row(f"ZeRO {stage}, {name}, 2 processes: {part}", number, found[part])


def tables() -> dict[str, str]:
    """Return the tables of docs/parallelism.md by name."""
    return {
        "Memory that does not depend on the batch": fixed_memory(),
        "Memory that does": batch_memory(),
        "What fits": what_fits(),
        "What is sent": what_is_sent(),
        "How long that takes": how_long(),
        "Tensor parallel": tensor_time(),
        "ZeRO: memory": zero_memory(),
        "ZeRO: what is sent": zero_bytes(),
    }


def fixed_memory() -> str:
    """Return GB per GPU by way, for the sizes of the page."""
    rows = [
        ["one GPU, DDP: weights, gradients, AdamW", *each_size(state)],
        ["one GPU, DDP: bf16 copy of the weights", *each_size(working_copy)],
        *([f"FSDP2 over {n}: weights, gradients, AdamW", *each_size(state, shard=n)] for n in (2, 8, 16)),
        ["FSDP2: gathered, at most", *each_size(gathered)],
        ["FSDP2: whole gradients, if a step has several micro-batches", *each_size(waiting)],
        *([f"tensor parallel over {n}: weights, gradients, AdamW", *each_size(state, tensor=n)] for n in (2, 8)),
        *([f"device map over {n}, fullest GPU: the same", *each_size(spread_state, devices=n)] for n in (2, 8)),
    ]
    return table(["GB per GPU", *SIZES], rows)


def zero_memory() -> str:
    """Return GB per GPU by stage of ZeRO, beside FSDP2, over 8 GPUs."""
    rows = [
        ["FSDP2: state", *each_size(state, shard=8)],
        *([f"ZeRO {stage}: state", *each_size(zero_state, stage=stage, shard=8)] for stage in (1, 2, 3)),
        ["FSDP2: gathered, at most", *each_size(gathered)],
        ["ZeRO 3: gathered, at most", *each_size(zero_gathered)],
        ["ZeRO: reduce bucket", *[figure(REDUCE_BUCKET)] * len(SIZES)],
        ["FSDP2 and ZeRO 1: whole gradients, if a step has several micro-batches", *each_size(waiting)],
    ]
    return table(["GB per GPU, 8 GPUs, bf16", *SIZES], rows)


def zero_bytes() -> str:
    """Return GB that a GPU sends per step by stage of ZeRO, beside DDP and FSDP2, over 8 GPUs."""
    rows = []
    for number, text in ((1, "one micro-batch"), (4, "four micro-batches")):
        rows += [
            [f"DDP, {text}", *each_size(ddp_sends, processes=8)],
            [f"FSDP2, {text}", *each_size(fsdp2_sends, shard=8, micro_batches=number)],
        ]
        rows += [
            [f"ZeRO {stage}, {text}", *each_size(zero_sends, stage=stage, shard=8, micro_batches=number)]
            for stage in (1, 2, 3)
        ]
    return table(["GB per GPU and step, 8 GPUs, bf16", *SIZES], rows)


def batch_memory() -> str:
    """Return GB per GPU that a micro-batch takes."""
    rows = [
        ["one GPU, DDP: layers, all kept", *each_size(activations, tokens=TOKENS, checkpointed=False)],
        ["one GPU, DDP: layers, checkpointed", *each_size(activations, tokens=TOKENS, checkpointed=True)],
        ["FSDP2: layers, all kept", *each_size(activations, tokens=TOKENS, checkpointed=False, sharded=True)],
        ["FSDP2: layers, checkpointed", *each_size(activations, tokens=TOKENS, checkpointed=True, sharded=True)],
        [
            "tensor parallel over 8: layers, all kept",
            *each_size(activations, tokens=TOKENS, checkpointed=False, tensor=8),
        ],
        ["logits and loss", *each_size(logits, tokens=TOKENS)],
    ]
    return table([f"GB per GPU, {TOKENS:,} tokens, bf16", *SIZES], rows)


def what_fits() -> str:
    """Return the least that fits on GPUs of a size: one micro-batch, activations checkpointed, 2 GB for the rest."""
    rows = []
    for gpus in (1, 8, 16):
        for size in (24, 80):
            rows.append([f"{gpus} x {size} GB", *(least(name, gpus, size * GB) for name in SIZES)])
    return table([f"bf16, AdamW, {TOKENS:,} tokens at once", *SIZES], rows)


def least(name: str, gpus: int, room: float) -> str:
    """Return the first way in the order of the page that fits into so many bytes on each GPU, and the GB it takes."""
    shape = SHAPES[name]
    rest = logits(shape, TOKENS) + 2 * GB
    kept, again = (activations(shape, TOKENS, checkpointed=again) for again in (False, True))
    sharded_kept, sharded_again = (
        activations(shape, TOKENS, checkpointed=again, sharded=True) for again in (False, True)
    )
    whole = state(shape) + working_copy(shape) + rest
    word = "DDP" if gpus > 1 else "one GPU"
    tries = [(word, whole + kept), (f"{word}, checkpointing", whole + again)]
    if gpus > 1:
        part = state(shape, shard=gpus) + gathered(shape) + rest
        tries += [("FSDP2", part + sharded_kept), ("FSDP2, checkpointing", part + sharded_again)]
        tries += [("FSDP2, offload, checkpointing", gathered(shape) + rest + sharded_again)]
    found = [f"{way}: {figure(taken)}" for way, taken in tries if taken <= room]
    return found[0] if found else "no"


def what_is_sent() -> str:
    """Return GB that a GPU sends per step."""
    rows = [
        ["DDP, 8 GPUs", *each_size(ddp_sends, processes=8)],
        ["DDP, 16 GPUs", *each_size(ddp_sends, processes=16)],
        ["FSDP2 over 8, one micro-batch", *each_size(fsdp2_sends, shard=8)],
        ["FSDP2 over 8, four micro-batches", *each_size(fsdp2_sends, shard=8, micro_batches=4)],
        ["FSDP2 over 8, not resharded after forward", *each_size(fsdp2_sends, shard=8, reshard=False)],
        ["FSDP2 over 16, one micro-batch", *each_size(fsdp2_sends, shard=16)],
        ["hybrid 2 x 8: inside a machine, one micro-batch", *each_size(fsdp2_sends, shard=8)],
        ["hybrid 2 x 8: between the machines", *each_size(hybrid_sends_between, shard=8, replicate=2)],
        [f"tensor parallel over 8, {TOKENS:,} tokens", *each_size(tensor_sends, tensor=8, tokens=TOKENS)],
        [f"device map over any number, {TOKENS:,} tokens", *each_size(spread_sends, tokens=TOKENS)],
    ]
    return table(["GB per GPU and step, bf16", *SIZES], rows)


def how_long() -> str:
    """Return the seconds that a step of a 7B model on two machines of 8 GPUs spends on the link between them."""
    shape = SHAPES["7B"]
    # A ring passes from one machine to the other once; the 8 GPUs of a machine share its link.
    through = {
        "DDP, 16 GPUs": ddp_sends(shape, 16),
        "FSDP2 over 16, one micro-batch": fsdp2_sends(shape, 16),
        "FSDP2 over 16, four micro-batches": fsdp2_sends(shape, 16, micro_batches=4),
        "hybrid 2 x 8, any number of micro-batches": 8 * hybrid_sends_between(shape, 8, 2),
    }
    rows = [[way, figure(sent), *(seconds(sent / speed) for speed in LINKS.values())] for way, sent in through.items()]
    return table(["7B, bf16, from machine to machine", "GB per step", *LINKS], rows)


def tensor_time() -> str:
    """Return the seconds that tensor parallel over 8 GPUs spends per micro-batch on each kind of link."""
    rows = []
    for name, shape in SIZES.items():
        sent = tensor_sends(shape, 8, TOKENS)
        rows.append([name, figure(sent), *(seconds(sent / speed) for speed in LINKS.values())])
    return table([f"tensor parallel over 8, {TOKENS:,} tokens", "GB per GPU", *LINKS], rows)


def seconds(number: float) -> str:
    """Return seconds or milliseconds, in two digits or three."""
    if number >= 10:
        return f"{number:,.0f} s"
    return f"{number:.1f} s" if number >= 1 else f"{1000 * number:,.0f} ms"


def each_size(function: object, **arguments: int) -> list[str]:
    """Return what a function says for the sizes of the page, in GB."""
    figures = dict(zip(SHAPES, each(function, **arguments), strict=True))  # type: ignore[arg-type]
    return [figure(figures[name]) for name in SIZES]


if __name__ == "__main__":
    main()
