"""Bad input through the real launchers: what they start, which process prints the message, and that all end.

A launcher turns every exit code but 0 into 1; the code of the process itself is seen under plain python, and what a
launched run came to stands in its run.json.
"""

from pathlib import Path

import pytest
from conftest import ROOT
from trial import Outcome, run_outside

RECIPE = ROOT / "recipes" / "classify.py"
TWO_PROCESSES: list[str | Path] = ["--config_file", ROOT / "accelerate_configs" / "cpu.yaml", "--num_processes", "2"]
# A port that is free, whatever else runs on this machine.
TWO_PROCESSES += ["--main_process_port", "0"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "one"


def launched(*words: str | Path, folder: Path, **environment: str) -> Outcome:
    return run_outside(["accelerate", "launch", *words], folder, **environment)


def refused_once(outcome: Outcome, *parts: str) -> None:
    """Check that one process printed it, at once and again below the launcher's trace, and that run.json has it."""
    assert outcome.code == 1
    at_once, _, below = outcome.errors.partition("Traceback (most recent call last):\n")
    trace, opening, message = below.partition(" can't go on:\n")
    assert "Error" in trace
    assert all(line.startswith("  - ") for line in message.splitlines())
    assert at_once.count(opening + message) == at_once.count(opening) == 1
    for part in parts:
        assert message.count(part) == 1
    assert outcome.files == {"run.json", "run.lock"}
    assert outcome.record["status"] == "refused"
    assert all(any(part in problem for problem in outcome.record["problems"]) for part in parts)


def test_exit_code_of_the_process_itself(folder: Path) -> None:
    run_outside(["python", RECIPE, "--batch.sise", "8"], folder).refused("batch.sise", "batch.size")
    assert not folder.exists()


def test_a_mistake_on_one_machine_of_several_is_told_there(folder: Path) -> None:
    # Process 0 is on another machine, and waits.
    second = {"RANK": "1", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1"}
    run_outside(["python", RECIPE, "--batch.sise", "8"], folder, **second).refused("batch.sise", "batch.size")


def test_launcher_that_starts_one_process_instead_of_two(folder: Path) -> None:
    refused_once(
        launched("--cpu", "--num_processes", "2", RECIPE, folder=folder),
        "`accelerate launch` was asked for 2 processes, but started 1; on CPU use "
        "`accelerate launch --config_file accelerate_configs/cpu.yaml --num_processes 2`",
    )


def test_accelerator_that_is_not_there(folder: Path) -> None:
    # Also on a machine that has one: it is hidden.
    file = ROOT / "accelerate_configs" / "one_gpu.yaml"
    refused_once(
        launched("--config_file", file, RECIPE, folder=folder, CUDA_VISIBLE_DEVICES=""),
        f"the launch configuration ({file}) asks for an accelerator, but torch finds none on this machine; "
        "use accelerate_configs/cpu.yaml, or repair the driver",
    )


def test_two_processes_and_a_bad_file(folder: Path, tmp_path: Path) -> None:
    table = tmp_path / "bad.csv"
    table.write_text("text,label\none,a\ntwo,b,c\n", encoding="utf-8")
    refused_once(
        launched(*TWO_PROCESSES, RECIPE, "--data.train", table, folder=folder),
        f"{table}, line 3: 3 fields, but the header has 2",
    )


def test_more_processes_than_samples_in_the_global_batch(folder: Path, table: Path, encoder: Path) -> None:
    data: list[str | Path] = ["--model.name", encoder, "--data.train", table]
    refused_once(
        launched(*TWO_PROCESSES, RECIPE, *data, "--batch.size", "1", folder=folder),
        "2 processes were started, but the global batch has only 1 sample(s) (batch.size); start at most that many "
        "processes or enlarge the batch",
    )


def test_parameter_without_gradient_on_two_processes_does_not_hang(folder: Path) -> None:
    outcome = launched(*TWO_PROCESSES, ROOT / "tests" / "helpers" / "line.py", folder=folder)
    refused_once(outcome, "get no gradient from the loss: forgotten.weight, forgotten.bias")


def test_remembered_launch_file_is_named(folder: Path, table: Path, encoder: Path, tmp_path: Path) -> None:
    home = tmp_path / "huggingface"
    remembered = home / "accelerate" / "default_config.yaml"
    remembered.parent.mkdir(parents=True)
    remembered.write_text(
        'compute_environment: LOCAL_MACHINE\ndistributed_type: "NO"\nuse_cpu: true\nnum_machines: 1\n'
        'num_processes: 1\nmixed_precision: "bf16"\n',
        encoding="utf-8",
    )
    data: list[str | Path] = ["--model.name", encoder, "--data.train", table, "--steps", "1", "--threads", "1"]
    outcome = launched(RECIPE, *data, folder=folder, HF_HOME=str(home)).done()
    outcome.says(f"{remembered} (remembered by `accelerate config`)", "mixed precision bf16")
    assert outcome.record["topology"][0]["launch_file"] == str(remembered)
    assert outcome.record["topology"][0]["precision"] == "bf16"
