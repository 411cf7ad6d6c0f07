"""A state that is sharded over four real processes is written in parts and read under any sharding, bit for bit."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from launching import ROOT, python
from sharded_states import OPTIMIZERS, WAYS, Small, read, same, save, state, whole
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from toolkit.checkpoint.format import inspect, read_state
from toolkit.checkpoint.reader import OPTIMIZER, WEIGHTS, CheckpointReader, same_weights
from toolkit.config.schema import Config
from toolkit.distributed.runtime import Runtime
from toolkit.distributed.shards import all_of
from toolkit.distributed.start_runtime import start_runtime
from toolkit.models.parameters import digest_of_frozen, parameter_names, weights_of
from toolkit.verify.compare_weights import weights_difference

CHECKPOINT = Path("checkpoints") / "step-000001"


@pytest.fixture(scope="module")
def alone() -> Runtime:
    """This process as the only one of a run."""
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    return start_runtime(Config(threads=1))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, alone: Runtime) -> Path:
    """A folder with a checkpoint of the same state from every sharding, and the results of reading them."""
    place = tmp_path_factory.mktemp("sharded")
    for name in ("whole", *WAYS, "full-disk", "full-disk-of-main", "defect"):
        (place / name).mkdir()
    assert save(place / "whole", state(1, whole), alone) is None
    done = python(ROOT / "tests" / "helpers" / "sharded_states.py", str(place), timeout=300)
    assert done.returncode == 0, done.stderr
    return place


@pytest.fixture(scope="module")
def outcome(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "outcome.json").read_text(encoding="utf-8"))
    return found


def test_every_layout_reads_what_every_layout_wrote(outcome: dict[str, Any]) -> None:
    ways = outcome["ways"]
    assert len(ways) == len(WAYS) + (len(WAYS) + 1) ** 2
    assert [name for name, equal in ways.items() if not equal] == []


@pytest.mark.parametrize("source", WAYS)
def test_one_process_reads_it_and_nothing_is_unpickled(folder: Path, alone: Runtime, source: str) -> None:
    fresh = state(2, whole)
    found: list[str] = []
    reading = [True]
    sys.addaudithook(lambda event, _: found.append(event) if event.startswith("pickle") and reading[0] else None)
    try:
        read(folder / source, fresh, alone)
    finally:
        reading[0] = False
    assert found == []
    assert same(fresh, state(1, whole))
    assert not same(fresh, state(2, whole))


@pytest.mark.parametrize("source", WAYS)
def test_what_is_written_is_sealed_and_says_the_same_as_one_process_would(folder: Path, source: str) -> None:
    sharded, plain = folder / source / CHECKPOINT, folder / "whole" / CHECKPOINT
    files = inspect(sharded).files
    assert set(files) == {path.name for path in sharded.iterdir()} - {"manifest.json"}
    assert set(inspect(plain).files) == {WEIGHTS, OPTIMIZER, "state.json"}
    # What is no tensor does not depend on the sharding.
    assert read_state(sharded) == read_state(plain)
    owners = {"full": 4, "hybrid": 2, "tensor and shard": 4, "tensor": 2}[source]
    assert {name for name in files if name.startswith("weights")} == {
        f"weights-{number:05d}-of-{owners:05d}.safetensors" for number in range(1, owners + 1)
    }
    with CheckpointReader(sharded) as reader, CheckpointReader(plain) as other:
        for kind in (WEIGHTS, OPTIMIZER):
            assert {name: entry.description for name, entry in reader.index(kind).items()} == {
                name: entry.description for name, entry in other.index(kind).items()
            }
            assert all(torch.equal(reader.whole(kind, n), other.whole(kind, n)) for n in reader.index(kind))
            # Each element once, so that no process writes what another one does.
            for entry in reader.index(kind).values():
                assert sum(shard.elements for _, _, shard in entry.shards) == all_of(entry.shape).elements
    assert same_weights(sharded, plain)
    assert weights_difference(sharded, plain) == (0.0, {"float32", "bfloat16"})


def test_names_are_those_of_the_model_itself() -> None:
    """Whatever wraps a layer for the sake of memory or speed."""
    bare, wrapped = Small(1), Small(1)
    wrapped.wide = checkpoint_wrapper(wrapped.wide)
    wrapped.narrow = torch.compile(checkpoint_wrapper(wrapped.narrow), backend="eager")  # type: ignore[assignment]
    assert any("_orig_mod._checkpoint_wrapped_module" in name for name, _ in wrapped.narrow.named_modules(prefix="x"))
    assert list(weights_of(wrapped)) == list(weights_of(bare))
    assert list(parameter_names(torch.compile(wrapped, backend="eager")).values()) == list(
        parameter_names(bare).values()
    )  # type: ignore[arg-type]
    assert digest_of_frozen(wrapped) == digest_of_frozen(bare) != digest_of_frozen(Small(2))


def test_each_process_writes_its_part_and_no_other(folder: Path) -> None:
    by_file: dict[str, int] = {}
    with CheckpointReader(folder / "full" / CHECKPOINT) as reader:
        for entry in (*reader.index(WEIGHTS).values(), *reader.index(OPTIMIZER).values()):
            for file, _, shard in entry.shards:
                by_file[file] = by_file.get(file, 0) + shard.elements
    for kind in ("weights", "optimizer"):
        parts = [elements for file, elements in by_file.items() if file.startswith(kind)]
        # A quarter each, as near as it can be where 13 rows are dealt to four.
        assert len(parts) == 4
        assert max(parts) < 0.35 * sum(parts)


@pytest.mark.parametrize(
    ("name", "kind", "parts"),
    [
        ("full-disk", "UserError", ("step 7 can't be written", "process 2: No space left on device")),
        ("full-disk-of-main", "UserError", ("step 7 can't be written", "(No space left on device)")),
        ("defect", "RuntimeError", ("process 1: ZeroDivisionError", "process 3: ZeroDivisionError")),
    ],
)
def test_who_can_not_write_is_named_and_nothing_is_sealed(
    outcome: dict[str, Any], name: str, kind: str, parts: tuple[str, ...]
) -> None:
    found, text, left = outcome["failing"][name]
    assert found == kind
    assert all(part in text for part in parts), text
    assert left == []


def test_a_run_folder_that_who_writes_does_not_see_is_refused(outcome: dict[str, Any]) -> None:
    seeing = outcome["seeing"]
    assert "can't be seen by process 2, 3 on " in seeing["full"]
    assert "elsewhere" not in seeing["full"]
    assert "hybrid sharding" in seeing["full"]
    # There the first two hold all of it together.
    assert seeing["hybrid"] is None
    assert seeing["seen"] is None


def test_a_process_that_fails_alone_while_all_communicate_does_not_wait_for_the_others(outcome: dict[str, Any]) -> None:
    assert outcome["failing alone"] == "alone"
    assert outcome["failing alike"] == 4 * ["not like this"]


def test_running_averages_are_those_of_the_main_process_in_an_evaluation(outcome: dict[str, Any]) -> None:
    assert outcome["averages"] == 4 * [5.0]


def test_every_optimizer_trains_the_parts_as_it_trains_the_whole(outcome: dict[str, Any]) -> None:
    assert outcome["training"] == {f"{kind}, {name}": True for kind in OPTIMIZERS for name in WAYS}
