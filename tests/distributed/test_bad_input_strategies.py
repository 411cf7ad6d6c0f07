"""Ways to distribute a model that the processes, the machine or the model do not allow are refused by name at once."""

import socket
from typing import Any

import pytest
import torch
from tiny_recipe import Network

from toolkit.config.schema import Config
from toolkit.distributed.fsdp import check_units
from toolkit.distributed.launch import contradictions, launch_of
from toolkit.distributed.mesh import Strategy, read_strategy
from toolkit.distributed.tensor_parallel import split_layers
from toolkit.errors import UserError

FSDP = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2", "RANK": "0"}
MESH = {**FSDP, "ACCELERATE_USE_PARALLELISM_CONFIG": "true"}


def sizes(**numbers: int | str) -> dict[str, str]:
    """Return the environment of a parallelism configuration with these sizes."""
    return {**MESH, **{f"PARALLELISM_CONFIG_{name.upper()}_SIZE": str(number) for name, number in numbers.items()}}


@pytest.mark.parametrize(
    ("environment", "world_size", "expected"),
    [
        ({}, 4, Strategy(replicate=4)),
        (FSDP, 4, Strategy(sharded=True, shard=4)),
        (FSDP, 1, Strategy(sharded=True, shard=1)),
        (sizes(dp_replicate=2, dp_shard=2), 4, Strategy(sharded=True, replicate=2, shard=2)),
        (sizes(tp=4), 4, Strategy(tensor=4)),
        (sizes(tp=2, dp_shard=2), 4, Strategy(sharded=True, shard=2, tensor=2)),
        (sizes(tp=2, dp_shard=2, dp_replicate=2), 8, Strategy(sharded=True, replicate=2, shard=2, tensor=2)),
    ],
)
def test_what_the_launcher_asks_for(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], world_size: int, expected: Strategy
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert read_strategy(Config(), world_size, "no") == (expected, [])
    assert expected.size == world_size


@pytest.mark.parametrize(
    ("environment", "world_size", "precision", "part"),
    [
        (
            sizes(tp=2, dp_shard=3),
            4,
            "no",
            "spreads the model over 6 processes (dp_replicate 1 x dp_shard 3 x tp 2), but 4 were",
        ),
        (
            sizes(tp=2, cp=2, dp_shard=2),
            4,
            "no",
            "over 8 processes (dp_replicate 1 x dp_shard 2 x tp 2 x cp 2 x sp 1), but 4",
        ),
        (sizes(tp=2), 1, "no", "over 2 processes (dp_replicate 1 x dp_shard 1 x tp 2), but 1 was started; the product"),
        (sizes(cp=2), 2, "no", "asks for context parallel, which this toolkit does not train"),
        (sizes(sp=2), 2, "no", "asks for sequence parallel, which this toolkit does not train"),
        (
            sizes(dp_replicate=2),
            2,
            "no",
            "copies without sharding are distributed data parallel; use ddp_one_node.yaml",
        ),
        (sizes(tp=2, dp_replicate=2), 4, "no", "or set dp_shard_size instead beside tensor parallel"),
        (
            sizes(tp="two"),
            2,
            "no",
            "parallelism_config_tp_size is 'two' in the launch configuration; give a number from 1",
        ),
        (
            {**sizes(dp_shard=2), "ACCELERATE_USE_FSDP": "false"},
            2,
            "no",
            "dp_shard_size is above 1, but the launch configuration does not use FSDP; set distributed_type to FSDP",
        ),
        (
            FSDP,
            2,
            "fp16",
            "fp16 with a model that is spread over processes: the scale of the loss would not be agreed on",
        ),
        (
            {**sizes(tp=2, dp_shard=2), "FSDP_CPU_RAM_EFFICIENT_LOADING": "true"},
            4,
            "no",
            "sets fsdp_cpu_ram_efficient_loading, which does not go with tensor parallel; leave it out",
        ),
        (
            {**FSDP, "FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD": "true"},
            2,
            "no",
            "sets fsdp_activation_checkpointing_offload, which this toolkit does not do; leave it out",
        ),
    ],
)
def test_what_does_not_fit(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], world_size: int, precision: str, part: str
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    _, problems = read_strategy(Config(), world_size, precision)
    assert any(part in problem for problem in problems), problems


class FourProcesses:
    """Stands for a mesh: what is refused is refused before it is used."""

    def size(self) -> int:
        return 4


def refused_split(model: torch.nn.Module) -> str:
    with pytest.raises(UserError) as error:
        split_layers(model, FourProcesses())  # type: ignore[arg-type]
    (problem,) = error.value.problems
    return problem


def test_a_model_without_a_plan_is_not_split() -> None:
    assert (
        "tensor parallel over 4 processes, but a Linear brings no plan of how to split its layers; use"
        in refused_split(torch.nn.Linear(4, 4))
    )


def test_a_word_of_a_plan_that_is_not_known() -> None:
    network = Network()
    network.tp_plan = {"inner": "moe_experts", "outer": "rowwise"}
    assert (
        "the tensor-parallel plan of the Network asks for what this toolkit does not do: inner (moe_experts); use"
        in (refused_split(network))
    )


@pytest.mark.parametrize(
    ("heads", "groups", "intermediate", "part"),
    [
        (
            6,
            6,
            8,
            "does not divide the 6 heads (num_attention_heads) of the LlamaModel; set parallelism_config_tp_size to a",
        ),
        (4, 2, 8, "does not divide the 2 heads (num_key_value_heads) of the LlamaModel"),
        (4, 4, 10, "does not divide layers.0.mlp.gate_proj of the LlamaModel, whose size is 10; choose another"),
    ],
)
def test_sizes_that_can_not_be_split(heads: int, groups: int, intermediate: int, part: str) -> None:
    from transformers import LlamaConfig, LlamaModel

    sizes = {"hidden_size": 4 * heads, "num_hidden_layers": 1, "intermediate_size": intermediate, "vocab_size": 8}
    settings: Any = LlamaConfig(**sizes, num_attention_heads=heads, num_key_value_heads=groups)
    assert part in refused_split(LlamaModel(settings))


def test_layers_to_shard_by_that_the_model_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FSDP_AUTO_WRAP_POLICY", "TRANSFORMER_BASED_WRAP")
    monkeypatch.setenv("FSDP_TRANSFORMER_CLS_TO_WRAP", "Linear,LlamaDecoderLayer,Layer")
    with pytest.raises(UserError) as error:
        check_units(Network())
    assert error.value.problems == (
        "fsdp_transformer_layer_cls_to_wrap names Layer, LlamaDecoderLayer, which the Network has no layer of; it "
        "has Linear, Network. Name one of these, or leave the setting out to take the model's own choice",
    )


def test_weights_that_can_not_be_sharded(monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = Network()
    model.scale = torch.nn.Parameter(torch.tensor(1.0))
    with pytest.raises(UserError, match=r"a parameter that is a lone number \(scale\); give it the shape \[1\]"):
        check_units(model)
    model = Network()
    model.inner.float()
    with pytest.raises(UserError, match=r"those of a Network are of several \(2 float32, 2 float64\); give all"):
        check_units(model)
    # What is not trained may be of any type, and what is gathered apart.
    model.inner.requires_grad_(False)
    check_units(model)
    model.inner.requires_grad_(True)
    monkeypatch.setenv("FSDP_AUTO_WRAP_POLICY", "TRANSFORMER_BASED_WRAP")
    check_units(model)


def test_sharding_where_there_is_no_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    launch = launch_of(["--use_fsdp", "--fsdp_version", "2", "--num_processes", "2", "x.py"], None, None)
    problems = contradictions(launch, on_cpu=True, world_size=2)
    assert any(
        "asks for an accelerator, but torch finds none on this machine; use accelerate_configs/cpu_fsdp2.yaml or"
        in problem
        for problem in problems
    )


def test_what_one_of_several_machines_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("WORLD_SIZE", "3"), ("LOCAL_WORLD_SIZE", "1"), ("MASTER_ADDR", "10.0.0.1")):
        monkeypatch.setenv(name, value)
    launch = launch_of(["--multi_gpu", "--num_machines", "2", "--num_processes", "2", "x.py"], None, None)
    assert contradictions(launch, on_cpu=True, world_size=3) == [
        "the launch configuration (none) asks for an accelerator, but torch finds none on this machine; "
        "use accelerate_configs/cpu_several_nodes.yaml on all machines, or repair the driver",
        f"`accelerate launch` on this machine ({socket.gethostname()}) was asked for 2 processes, but all machines "
        "together started 3; start the same command, with the same number of machines and processes, on each machine",
    ]
