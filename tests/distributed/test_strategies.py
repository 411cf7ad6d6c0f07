"""Sharded and split models: a run that passes through every strategy has the numbers of one in a single process."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from passages import Way, one_and_passed, rows
from safetensors.torch import load_file
from tiny_recipe import Network
from torch import cat

from toolkit.distributed.fsdp import chosen_units

# 45 samples in batches of 8: six steps an epoch, the last of five samples.
SETTINGS = (
    "--epochs",
    "5",
    "--evaluate.every",
    "10",
    "--threads",
    "1",
    "--checkpoint.keep",
    "9",
    "--model.flaw",
    "spare",
)
PASSAGE: list[Way] = [
    ("cpu_fsdp2", 2, 3, 8),
    ("cpu_fsdp2_hybrid", 4, None, 5),
    ("cpu", 2, 2, 4),
    ("cpu_tensor", 2, 3, 5),
    ("cpu_tensor_and_data", 4, None, None),
]
PARTS = {
    "FSDP2: sharded over 2 process(es)": 2,
    "FSDP2: sharded over 2 process(es) in 2 copies": 2,
    "distributed data parallel: 2 copies": 1,
    "tensor parallel: each layer split over 2": 2,
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The folders of the run in one process, and of the run that went through all strategies."""
    return one_and_passed(tmp_path_factory.mktemp("strategies"), SETTINGS, PASSAGE)


def test_every_strategy_took_its_part(folders: tuple[Path, Path]) -> None:
    record = json.loads((folders[1] / "run.json").read_text())
    starts = record["topology"]
    assert [start["processes"] for start in starts] == [processes for _, processes, _, _ in PASSAGE]
    assert [start["strategy"] for start in starts][:4] == list(PARTS)
    assert starts[4]["strategy"] == "FSDP2: sharded over 2 process(es), tensor parallel: each layer split over 2"
    # None but the first began where an epoch does, each six steps.
    assert [start["first_step"] for start in starts] == [1, 9, 14, 18, 23]
    assert record["repeated"] == 0


def test_the_checkpoint_of_each_strategy_has_a_file_for_each_part(folders: tuple[Path, Path]) -> None:
    starts = json.loads((folders[1] / "run.json").read_text())["topology"]
    for before, after in pairwise(starts):
        checkpoint = folders[1] / "checkpoints" / f"step-{after['first_step'] - 1:06d}"
        found = sorted(path.name for path in checkpoint.glob("weights*"))
        parts = PARTS[before["strategy"]]
        assert len(found) == parts
        assert (found == ["weights.safetensors"]) == (parts == 1)


def test_what_the_model_leaves_unused_is_frozen_under_each_strategy(folders: tuple[Path, Path]) -> None:
    for folder in folders:
        record = json.loads((folder / "run.json").read_text())
        assert record["plan"]["frozen"] == "2 tensor(s) of 6 parameters that this task leaves unused: unused"
        for checkpoint in (folder / "checkpoints").glob("step-*"):
            state = json.loads((checkpoint / "state.json").read_text())
            assert state["unused"] == ["unused.bias", "unused.weight"]
            assert not any("unused" in name for group in state["optimizer"]["names"] for name in group)
            assert not any(
                "unused" in name for file in checkpoint.glob("weights*.safetensors") for name in load_file(file)
            )


def test_losses_norms_and_samples_are_those_of_one_process(folders: tuple[Path, Path]) -> None:
    expected, found = (rows(folder) for folder in folders)
    assert len(found) == len(expected) == 30
    for one, other in zip(found, expected, strict=True):
        assert (one["step"], one["fingerprint"], one["units"]) == (other["step"], other["fingerprint"], other["units"])
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-12)
        assert one["gradient_norm"] == pytest.approx(other["gradient_norm"], rel=1e-12)
        assert (one["evaluation"] or {}) == pytest.approx(other["evaluation"] or {}, rel=1e-12)


def test_the_exported_model_is_whole_and_the_same(folders: tuple[Path, Path]) -> None:
    expected, found = (load_file(folder / "model" / "model.safetensors") for folder in folders)
    assert {name: t.shape for name, t in found.items()} == {name: t.shape for name, t in expected.items()}
    one, other = (cat([tensors[name].flatten() for name in sorted(tensors)]) for tensors in (found, expected))
    assert (one - other).norm() / other.norm() < 1e-12


def test_the_layers_of_a_model_within_another_module_are_gathered_one_after_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FSDP_AUTO_WRAP_POLICY", "TRANSFORMER_BASED_WRAP")
    pair = torch.nn.ModuleDict({"policy": Network(), "reference": Network()})
    assert len(list(chosen_units(pair))) == 2 * len(list(chosen_units(Network()))) == 4
