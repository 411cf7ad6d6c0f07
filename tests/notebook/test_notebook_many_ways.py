"""The notebook on data parallel ways, run from top to bottom: one sum, the bytes of each way, what goes wrong."""

from itertools import pairwise
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


SCHEDULES = ("GPipe", "1F1B", "interleaved 1F1B")


def test_a_pipeline_gives_the_gradients_of_the_whole_batch_whatever_its_micro_batches_are(
    figures: dict[str, Any],
) -> None:
    pipeline = figures["pipeline"]
    assert set(pipeline["differences"]) == {f"{name}, {way}" for name in ("decoder", "encoder") for way in SCHEDULES}
    assert max(pipeline["differences"].values()) < 1e-12
    for units in pipeline["units"].values():
        assert len(set(units)) > 2
    # What is sent has the shape of the largest micro-batch: in four of them its hidden states of width 64, in 8 bytes,
    # over each boundary between two stages; process 0 sends as much forward as process 1 sends back.
    once = PARTS * pipeline["capacity"]["decoder"] * 64 * 8
    assert pipeline["sent"] == {"GPipe": [once] * 2, "1F1B": [once] * 2, "interleaved 1F1B": [3 * once] * 2}
    assert pipeline["held"]["GPipe"] == [PARTS, PARTS]
    assert pipeline["held"]["1F1B"] == [2, 1]


def test_the_timelines_of_the_pipelines_are_possible_ones(figures: dict[str, Any]) -> None:
    for schedule, slots in figures["pipeline"]["slots"].items():
        stages = 4 if schedule == "interleaved 1F1B" else 2
        assert len(slots) == 2 * stages * PARTS
        at = {(slot["what"], slot["stage"], slot["micro"]): slot for slot in slots}
        for process in (0, 1):
            own = sorted((slot["begin"], slot["end"]) for slot in slots if slot["process"] == process)
            assert all(end <= begin for (_, end), (begin, _) in pairwise(own))
        for micro in range(PARTS):
            way = [at["forward", stage, micro] for stage in range(stages)]
            way += [at["backward", stage, micro] for stage in reversed(range(stages))]
            assert all(one["end"] <= other["begin"] for one, other in pairwise(way))
    assert all(0 < share < 1 for shares in figures["pipeline"]["idle"].values() for share in shares)


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
