"""Floating-point operations: counted as by hand, and foretold from the sizes of a micro-batch."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from launching import TINY, launch
from tiny_recipe import FEATURES, Sequences
from torch.utils.checkpoint import checkpoint

from toolkit.data.loader import LoadedMicroBatch
from toolkit.data.micro_batches import MicroBatch
from toolkit.data.order import ShuffledOrder
from toolkit.flop_count import ATTEMPTS, FlopCounter, FlopMeter, sizes_of
from toolkit.output.ledger import read_ledger

ROWS, LENGTH, WIDTH, HEADS, INNER = 3, 5, 8, 2, 16


class Layer(torch.nn.Module):
    """A layer of a transformer without norms."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = torch.nn.Linear(WIDTH, 3 * WIDTH)
        self.inner = torch.nn.Linear(WIDTH, INNER)
        self.outer = torch.nn.Linear(INNER, WIDTH)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        split = self.attention(states).view(*states.shape[:2], 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*split).transpose(1, 2).reshape(states.shape)
        hidden: torch.Tensor = self.outer(F.gelu(self.inner(mixed)))
        return hidden


def count(layer: torch.nn.Module, again: bool = False, needs_gradient: bool = True) -> int:
    states = torch.randn(ROWS, LENGTH, WIDTH, requires_grad=needs_gradient)
    with FlopCounter() as counter:
        out = checkpoint(layer, states, use_reentrant=False) if again else layer(states)
        out.sum().backward()
    assert counter.is_complete
    return int(counter.flops)


def test_a_transformer_layer_is_counted_as_by_hand() -> None:
    weights = WIDTH * 3 * WIDTH + 2 * WIDTH * INNER
    forward = 2 * ROWS * LENGTH * weights
    # Scores and their product with the values; a fused backward pass computes the scores again, as torch counts it.
    compare = 2 * ROWS * LENGTH**2 * WIDTH
    by_hand = 3 * forward + (2 + 5) * compare
    torch.manual_seed(0)
    layer = Layer()
    assert count(layer) == by_hand
    # What activation checkpointing computes again serves nothing.
    assert count(layer, again=True) == by_hand
    # Without a gradient for the input, and for frozen weights, as beside adapters.
    assert count(layer, needs_gradient=False) == by_hand - 2 * ROWS * LENGTH * WIDTH * 3 * WIDTH
    layer.inner.weight.requires_grad_(False)
    layer.outer.weight.requires_grad_(False)
    assert count(layer) == by_hand - 2 * ROWS * LENGTH * 2 * WIDTH * INNER


def test_what_has_no_formula_is_not_passed_over() -> None:
    with FlopCounter() as counter:
        torch._int_mm(torch.ones(32, 32, dtype=torch.int8), torch.ones(32, 32, dtype=torch.int8))
    assert counter.unknown
    assert not counter.is_complete


def micro_batch(lengths: list[int], labelled: int) -> LoadedMicroBatch:
    longest, used = max(lengths), sum(lengths)
    plan = MicroBatch(
        0,
        1,
        tuple(range(len(lengths))),
        padded=longest * len(lengths),
        used=used,
        padded_squared=longest**2 * len(lengths),
        used_squared=sum(length**2 for length in lengths),
    )
    ids, positions = torch.zeros(len(lengths), longest, dtype=torch.int64), torch.zeros(labelled, dtype=torch.int64)
    batch = {"input_ids": ids, "attention_mask": ids, "positions": positions, "labels": torch.zeros(len(lengths))}
    return LoadedMicroBatch(plan, plan.ids, batch, labelled)


@pytest.mark.parametrize("packed", [False, True])
def test_a_few_micro_batches_tell_what_all_others_take(packed: bool) -> None:
    def takes(micro: LoadedMicroBatch) -> int:
        plan = micro.plan
        tokens, squared = (plan.used, plan.used_squared) if packed else (plan.padded, plan.padded_squared)
        return 7_000 * tokens + 40 * squared + 900 * len(micro.ids) * len(micro.batch["positions"])

    generator = torch.Generator().manual_seed(1)

    def draw() -> LoadedMicroBatch:
        rows = int(torch.randint(1, 9, (), generator=generator))
        lengths = torch.randint(3, 60, (rows,), generator=generator).tolist()
        return micro_batch(lengths, int(torch.randint(1, 20, (), generator=generator)))

    meter = FlopMeter()
    while meter.left:
        micro = draw()
        assert meter.of(micro) != meter.of(micro)  # not a number: not known yet
        meter.learn(sizes_of(micro), takes(micro))
    assert len(meter.counts) < ATTEMPTS
    for _ in range(50):
        micro = draw()
        assert meter.of(micro) == pytest.approx(takes(micro), rel=1e-9)


def test_what_does_not_follow_from_sizes_stays_unknown() -> None:
    generator, meter = torch.Generator().manual_seed(0), FlopMeter()
    micro = micro_batch([4, 5], 3)
    while meter.left:
        meter.learn(sizes_of(micro), int(torch.randint(10_000, 90_000, (), generator=generator)))
    assert (len(meter.counts), meter.model) == (ATTEMPTS, None)
    uncountable = FlopMeter()
    uncountable.learn(sizes_of(micro), None)
    assert (uncountable.left, uncountable.model) == (0, None)


@pytest.mark.parametrize("processes", [1, 2])
def test_the_ledger_has_tokens_padding_and_operations_by_hand(processes: int, tmp_path: Path) -> None:
    flags = ["--epochs", "10", "--log.peak_flops", "1e9"]
    done = launch(TINY, "--output", str(tmp_path / "run"), *flags, processes=processes)
    assert done.returncode == 0, done.stderr
    rows: list[dict[str, Any]] = list(read_ledger(tmp_path / "run" / "ledger.jsonl"))
    lengths, order = Sequences(45, 0), ShuffledOrder(45, 8, 0)
    inner, outer = FEATURES * 16, 16 * 3
    for row in rows:
        own = lengths.lengths(order.global_batch(row["step"] - 1))
        assert row["tokens"] == own.sum()
        computed = row["tokens"] / (1 - row["padding"])
        # The input needs no gradient: forward and weights of the first layer, all three of the second.
        by_hand = 2 * (2 * inner * computed + 3 * outer * len(own))
        assert row["flops"] is None or row["flops"] == pytest.approx(by_hand, rel=1e-9)
        assert row["host_memory"] > 1e7
        assert row["device_memory"] is None
    assert all(row["flops"] for row in rows[-10:])
    meters = json.loads((tmp_path / "run" / "run.json").read_text())["meters"]
    seconds = sum(row["seconds"] for row in rows)
    known = [row for row in rows if row["flops"]]
    speed = sum(row["flops"] for row in known) / sum(row["seconds"] for row in known)
    expected = {
        "samples_per_second": 450 / seconds,
        "tokens_per_second": sum(row["tokens"] for row in rows) / seconds,
        "padding": 1 - sum(row["tokens"] for row in rows) / sum(row["tokens"] / (1 - row["padding"]) for row in rows),
        "waiting": sum(row["waiting"] for row in rows) / seconds,
        "flops_per_second": speed,
        "peak_flops": 1e9,
        "mfu": speed / (1e9 * processes),
    }
    assert {name: meters[name] for name in expected} == pytest.approx(expected)
    assert "tokens/s" in done.stdout
    assert "MFU" in done.stdout
