"""Launch configurations that the toolkit does not train, or that contradict the run, are refused by name."""

from pathlib import Path

import pytest
from conftest import Classify

from toolkit.distributed.launch import launch_of

OURS = "use one of accelerate_configs/"


@pytest.mark.parametrize(
    ("environment", "parts"),
    [
        ({"ACCELERATE_USE_MEGATRON_LM": "true"}, ["asks for Megatron-LM, which this toolkit does not train", OURS]),
        ({"ACCELERATE_USE_DEEPSPEED": "true"}, ["asks for DeepSpeed, but no launcher started this process; start it"]),
        (
            {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "1"},
            ["asks for FSDP1 (fsdp_version 1), which this toolkit does not train", OURS],
        ),
        (
            {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"},
            ["asks for a model that is spread over processes, but no launcher started this one; start it with"],
        ),
        (
            {"ACCELERATE_MIXED_PRECISION": "fp8"},
            ["asks for mixed precision fp8, which this toolkit does not train; use bf16, fp16 or no"],
        ),
        (
            {"ACCELERATE_DYNAMO_BACKEND": "INDUCTOR"},
            [
                "asks for torch.compile (dynamo_backend inductor), which this toolkit does not train with; leave "
                "dynamo_backend and"
            ],
        ),
        ({"ACCELERATE_MIXED_PRECISION": "bf32"}, ["asks for mixed precision bf32, which this toolkit does not train"]),
        (
            {"WORLD_SIZE": "2", "RANK": "0"},
            ["WORLD_SIZE is 2, but MASTER_ADDR, where the processes meet, is not set", "or unset WORLD_SIZE and RANK"],
        ),
        (
            {"ACCELERATE_MIXED_PRECISION": "fp16"},
            ["asks for mixed precision fp16, which needs an accelerator; on CPU use bf16 or no"],
        ),
    ],
)
def test_what_is_not_trained_is_named(
    classify: Classify, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], parts: list[str]
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    classify().refused(*parts)


def test_all_of_them_at_once(classify: Classify, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_USE_MEGATRON_LM", "true")
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp8")
    classify().refused("Megatron-LM", "fp8")


def test_accumulation_that_contradicts_the_batch(classify: Classify, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "4")
    classify("--batch.size", "16").refused(
        "the launch configuration sets gradient_accumulation_steps to 4, but a global batch of 16 over 1 process(es) "
        "with batch.micro not set takes 1; remove it there, the toolkit derives it"
    )


def test_accumulation_that_agrees_with_the_batch(classify: Classify, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "4")
    classify("--batch.size", "16", "--batch.micro", "4", "--steps", "2").done().says(
        "16 = 1 process(es) x 4 micro-batch"
    )


def test_accumulation_in_a_launch_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "launch.yaml"
    file.write_text(
        "compute_environment: LOCAL_MACHINE\ndistributed_type: DEEPSPEED\nnum_processes: 1\nuse_cpu: false\n"
        "deepspeed_config: {gradient_accumulation_steps: 4}\n",
        encoding="utf-8",
    )
    launch = launch_of(["--config_file", str(file), "recipes/classify.py"], None, None)
    assert (launch.file, launch.accumulation) == (str(file), 4)


def test_precision_that_the_weights_do_not_have(classify: Classify, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    classify("--model.dtype", "float64").refused(
        "asks for mixed precision bf16, and the weights are float64; mixed precision needs float32 weights",
        "set model.dtype to float32, or mixed_precision to no in the launch file",
    )


def test_world_that_accelerate_does_not_see(classify: Classify, monkeypatch: pytest.MonkeyPatch) -> None:
    # What `mpirun -n 1` leaves where WORLD_SIZE stands from an outer job: Accelerate believes the first of the two. As
    # if the other process had come: alone, this one would wait for it and then end.
    monkeypatch.setattr("toolkit.distributed.start_runtime.join_rendezvous", lambda patience: None)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "29500")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "1")
    classify().refused(
        "WORLD_SIZE is 2, but Accelerate sees 1 process(es): they would train apart",
        "Start them with `accelerate launch` and a file of accelerate_configs/, or unset WORLD_SIZE and RANK",
    )
