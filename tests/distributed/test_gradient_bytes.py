"""A step sends one set of gradients, however many micro-batches it has; hooks in real processes count the bytes."""

import json
from typing import Any

import pytest
from launching import ROOT, python

# Four layers: 16 x 32, twice 32 x 32, and 32 x 2 weights, and their biases.
PARAMETERS = 16 * 32 + 32 + 2 * (32 * 32 + 32) + 32 * 2 + 2
GRADIENTS = 4 * PARAMETERS


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The bytes of a step by strategy, loop, number of micro-batches, and kind."""
    output = tmp_path_factory.mktemp("bytes") / "bytes.json"
    done = python(ROOT / "tests" / "helpers" / "gradient_sets.py", str(output), timeout=300)
    assert done.returncode == 0, done.stderr
    results: dict[str, Any] = json.loads(output.read_text(encoding="utf-8"))
    return results


@pytest.mark.parametrize("strategy", ["DDP", "FSDP2"])
def test_one_set_of_gradients_is_sent_per_step(found: dict[str, Any], strategy: str) -> None:
    sent = found[strategy]["toolkit"]
    assert sent["1"]["gradients"] == sent["4"]["gradients"] == GRADIENTS


@pytest.mark.parametrize(("stage", "sets"), [(1, 1), (2, 4), (3, 4)])
def test_zero_sends_gradients_once_under_stage_1_and_after_each_micro_batch_above(
    found: dict[str, Any], stage: int, sets: int
) -> None:
    sent = found[f"ZeRO {stage}"]["toolkit"]
    assert sent["1"]["gradients"] == GRADIENTS
    assert sent["4"]["gradients"] == sets * GRADIENTS


@pytest.mark.parametrize("stage", [1, 2])
def test_zero_gathers_the_weights_once_per_step(found: dict[str, Any], stage: int) -> None:
    sent = found[f"ZeRO {stage}"]["toolkit"]
    # The rows that are cut are filled up to an even number of parts.
    assert GRADIENTS <= sent["1"]["weights gathered"] == sent["4"]["weights gathered"] <= GRADIENTS + 32


def test_a_set_for_each_micro_batch_is_sent_where_that_is_asked_for(found: dict[str, Any]) -> None:
    assert found["FSDP2"]["batch.reduce_each"]["4"]["gradients"] == 4 * GRADIENTS


def test_weights_are_gathered_for_both_passes_of_each_micro_batch(found: dict[str, Any]) -> None:
    sent = found["FSDP2"]["toolkit"]
    assert (sent["1"]["weights gathered"], sent["4"]["weights gathered"]) == (2 * GRADIENTS, 8 * GRADIENTS)
    assert found["DDP"]["toolkit"]["4"]["weights gathered"] == 0
