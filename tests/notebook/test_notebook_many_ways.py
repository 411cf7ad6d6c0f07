"""The notebook on data parallel ways, run from top to bottom: one sum, the bytes of each way, what goes wrong."""

from typing import Any

import pytest
from notebooks_running import NOTEBOOKS, outputs_in, run_notebook

NOTEBOOK = NOTEBOOKS / "one_batch_many_ways.ipynb"
PARTS = 4


@pytest.fixture(scope="module")
def figures() -> dict[str, Any]:
    return run_notebook(NOTEBOOK)


def test_it_is_kept_without_outputs() -> None:
    assert outputs_in(NOTEBOOK) == 0


def test_every_way_gives_the_gradients_of_the_whole_batch(figures: dict[str, Any]) -> None:
    differences = figures["differences"]
    assert set(differences) == {
        "whole",
        "accumulation",
        "DataParallel",
        "DDP",
        "DDP, 4 parts, no_sync",
        "DDP, 4 parts, each sent",
        "FSDP",
        "FSDP, 4 parts",
    }
    assert max(differences.values()) < 1e-12


def test_bytes_are_those_of_the_weights_as_often_as_each_way_sends_them(figures: dict[str, Any]) -> None:
    whole, blocks = figures["weight bytes"], figures["block bytes"]
    # Of two devices the second one has four rows of eight: their tokens, their logits and the gradients of these.
    activations = 4 * 83 * (8 + 2 * 256 * 8)
    # Blocks are gathered forward and again backward, the rest of the model once; of two processes each sends half.
    gathered = whole - blocks + 2 * blocks
    expected = {
        "one process, accumulation": (0, 0, 0),
        "DataParallel": (whole, whole, activations),
        "DataParallel, 4 parts": (PARTS * whole, PARTS * whole, activations),
        "DDP": (0, 2 * whole, 0),
        "DDP, 4 parts, no_sync": (0, 2 * whole, 0),
        "DDP, 4 parts, each sent": (0, PARTS * 2 * whole, 0),
        "FSDP": (gathered, whole, 0),
        "FSDP, 4 parts": (PARTS * gathered, whole, 0),
    }
    kinds = ("weights", "gradients", "activations")
    assert {way: tuple(sent[kind] for kind in kinds) for way, sent in figures["bytes"].items()} == expected
    # As many reductions with four micro-batches as with one, a bucket or a group of parameters each.
    calls = {way: count["gradients"] for way, count in figures["calls"].items()}
    assert calls["ddp, accumulated with no_sync"] == calls["ddp"]
    assert calls["fsdp, accumulated"] == calls["fsdp"]


def test_what_goes_wrong_differs_and_is_mended(figures: dict[str, Any]) -> None:
    means, last, uneven = figures["mean of means"], figures["last step"], figures["uneven batch"]
    assert means["four parts"] > 0.05
    assert means["two processes"] > 0.3
    assert means["mended"] < 1e-12

    assert last["usual"] == pytest.approx(1 / PARTS, rel=1e-12)
    assert last["mended"] == pytest.approx(1, rel=1e-12)

    assert len(uneven["usual"]["learned from"]) == 16
    assert uneven["usual"]["difference"] > 0.1
    assert uneven["mended"]["learned from"] == list(range(9))
    assert uneven["mended"]["difference"] < 1e-12

    rates = figures["learning rates"]
    assert rates["one process"] == pytest.approx([1 - step / 10 for step in range(10)])
    assert rates["usual"] == pytest.approx([max(0, 1 - 2 * step / 10) for step in range(10)])
    assert rates["mended"] == rates["one process"]


def test_the_toolkit_gives_the_same_on_one_process_and_two_and_by_hand(figures: dict[str, Any]) -> None:
    toolkit = figures["toolkit"]
    assert toolkit["steps"] == 6
    assert toolkit["first norms"] == pytest.approx([toolkit["norm by hand"]] * 2, rel=1e-12)
    assert max(toolkit[name] for name in ("losses", "norms", "weights")) < 1e-12
