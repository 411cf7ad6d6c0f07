"""Every file of accelerate_configs/: Accelerate's launcher takes it, its settings take effect, its comment is true."""

import os
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from accelerate import ParallelismConfig
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils import FullyShardedDataParallelPlugin
from accelerate.utils import launch as accelerate_launch
from launching import ROOT
from torch.distributed.fsdp import CPUOffloadPolicy

from toolkit.config.schema import Config
from toolkit.distributed.mesh import Strategy, read_strategy
from toolkit.distributed.zero_launch import Zero

FILES = sorted((ROOT / "accelerate_configs").glob("*.yaml"))

# What each file is for: sharded, copies of the model, shards, parts of a layer, activations computed again, precision.
MEANT = {
    "cpu": (Strategy(replicate=2), "no"),
    "cpu_several_nodes": (Strategy(replicate=2), "no"),
    "one_gpu": (Strategy(), "bf16"),
    "ddp_one_node": (Strategy(replicate=8), "bf16"),
    "ddp_several_nodes": (Strategy(replicate=16), "bf16"),
    "fsdp2_one_node": (Strategy(sharded=True, shard=8), "bf16"),
    "fsdp2_checkpointing": (Strategy(sharded=True, shard=8, checkpoint_activations=True), "bf16"),
    "fsdp2_cpu_offload": (Strategy(sharded=True, shard=8, offloaded=True), "bf16"),
    "fsdp2_hybrid_several_nodes": (Strategy(sharded=True, replicate=2, shard=8), "bf16"),
    "tensor_one_node": (Strategy(tensor=8), "bf16"),
    "tensor_and_data_one_node": (Strategy(sharded=True, shard=4, tensor=2), "bf16"),
    "cpu_fsdp2": (Strategy(sharded=True, shard=2), "no"),
    "cpu_fsdp2_hybrid": (Strategy(sharded=True, replicate=2, shard=2), "no"),
    "cpu_tensor": (Strategy(tensor=2), "no"),
    "cpu_tensor_and_data": (Strategy(sharded=True, shard=2, tensor=2), "no"),
    **{
        f"deepspeed_zero{stage}": (Strategy(shard=8, zero=Zero(stage, precision="bf16")), "bf16") for stage in (1, 2, 3)
    },
    "deepspeed_zero3_offload": (Strategy(shard=8, zero=Zero(3, True, True, "bf16"), offloaded=True), "bf16"),
    **{f"cpu_deepspeed_zero{stage}": (Strategy(shard=2, zero=Zero(stage)), "no") for stage in (1, 2, 3)},
    "cpu_deepspeed_zero3_offload": (Strategy(shard=2, zero=Zero(3, True, True), offloaded=True), "no"),
}
# Those that FSDP2 reads; the others of Accelerate's belong to FSDP1 and are ignored, warned of, or refused.
FSDP2_KEYS = {
    "fsdp_version",
    "fsdp_reshard_after_forward",
    "fsdp_auto_wrap_policy",
    "fsdp_state_dict_type",
    "fsdp_cpu_ram_efficient_loading",
    "fsdp_activation_checkpointing",
    "fsdp_offload_params",
}
SET_BY_A_LAUNCHER = ("ACCELERATE_", "FSDP_", "PARALLELISM_CONFIG_")


def head_of(file: Path) -> list[str]:
    """Return the lines of the comment that the file begins with, without their signs."""
    lines = file.read_text(encoding="utf-8").splitlines()
    return [line[1:].removeprefix(" ") for line in lines[: next(i for i, x in enumerate(lines) if x[:1] != "#")]]


def command_of(file: Path) -> list[str]:
    """Return the words of the command in the head comment, after `accelerate launch`."""
    text = "\n".join(head_of(file)).replace("\\\n", " ")
    found = re.findall(r"^ +(?:[A-Z_]+=\w+ )*accelerate launch (.*)$", text, flags=re.MULTILINE)
    assert len(found) == 1, f"{file.name} shows {len(found)} commands"
    return shlex.split(found[0])


def launched(words: list[str], monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any, dict[str, str]]:
    """Return the environment that the launcher gives a process, for a command line and a file."""
    monkeypatch.setattr(accelerate_launch, "is_port_in_use", lambda port: False)
    for variable in tuple(os.environ):
        if variable.startswith(SET_BY_A_LAUNCHER):
            monkeypatch.delenv(variable)
    arguments, settings, _ = _validate_launch_command(launch_command_parser().parse_args(words))
    if arguments.use_fsdp or arguments.multi_gpu or arguments.use_deepspeed:
        if arguments.use_deepspeed:
            # As the launcher's own command does before.
            arguments.deepspeed_fields_from_accelerate_config = ",".join(settings.deepspeed_config)
            _, environment = accelerate_launch.prepare_deepspeed_cmd_env(arguments)
        else:
            environment = accelerate_launch.prepare_multi_gpu_env(arguments)
        # What the launcher's agent adds for each process.
        for variable, value in (
            ("MASTER_ADDR", "127.0.0.1"),
            ("RANK", "0"),
            ("WORLD_SIZE", str(arguments.num_processes)),
        ):
            monkeypatch.setenv(variable, value)
    else:
        _, environment = accelerate_launch.prepare_simple_launcher_cmd_env(arguments)
    for variable, value in environment.items():
        if variable.startswith(SET_BY_A_LAUNCHER):
            monkeypatch.setenv(variable, value)
    return arguments, settings, environment


def test_every_file_is_known_here() -> None:
    assert {file.stem for file in FILES} == set(MEANT)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_command_of_the_head_comment_is_what_the_file_is_for(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    words = command_of(file)
    arguments, settings, environment = launched(words, monkeypatch)
    meant, precision = MEANT[file.stem]
    assert arguments.config_file == f"accelerate_configs/{file.name}"
    assert (ROOT / arguments.training_script).is_file()
    assert arguments.num_processes == settings.num_processes == meant.size
    assert arguments.num_machines == (2 if "several" in file.stem else 1)
    assert bool(arguments.use_cpu) == file.stem.startswith("cpu")
    assert environment["ACCELERATE_MIXED_PRECISION"] == precision
    # One process needs no launcher of several, and more than one is not started by any other.
    assert (arguments.use_fsdp or arguments.multi_gpu or arguments.use_deepspeed) == (meant.size > 1)
    assert read_strategy(Config(), meant.size, precision) == (meant, [])


@pytest.mark.parametrize("file", [file for file in FILES if MEANT[file.stem][0].sharded], ids=lambda file: file.stem)
def test_what_is_sharded_is_sharded_by_fsdp2_alone(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, settings, environment = launched(["--config_file", str(file), "train.py"], monkeypatch)
    assert set(settings.fsdp_config) == FSDP2_KEYS
    assert environment["ACCELERATE_USE_FSDP"] == "true"
    assert environment["FSDP_VERSION"] == "2"
    assert environment["FSDP_AUTO_WRAP_POLICY"] == "TRANSFORMER_BASED_WRAP"
    assert environment["FSDP_CPU_RAM_EFFICIENT_LOADING"] == "false"
    assert not {"FSDP_BACKWARD_PREFETCH", "FSDP_TRANSFORMER_CLS_TO_WRAP"} & set(environment)
    plugin = FullyShardedDataParallelPlugin()
    assert plugin.reshard_after_forward is True
    assert plugin.state_dict_type.name == "SHARDED_STATE_DICT"
    assert isinstance(plugin.cpu_offload, CPUOffloadPolicy) == (file.stem == "fsdp2_cpu_offload")
    assert plugin.activation_checkpointing == (file.stem == "fsdp2_checkpointing")
    assert plugin.activation_checkpointing_offload is False


@pytest.mark.parametrize("file", [file for file in FILES if MEANT[file.stem][0].zero], ids=lambda file: file.stem)
def test_what_deepspeed_spreads_is_a_stage_and_where_it_lies_and_no_more(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, settings, environment = launched(["--config_file", str(file), "train.py"], monkeypatch)
    assert set(settings.deepspeed_config) == {
        "zero_stage",
        "offload_optimizer_device",
        "offload_param_device",
        "zero3_init_flag",
        "deepspeed_multinode_launcher",
    }
    assert environment["ACCELERATE_USE_DEEPSPEED"] == "true"
    assert environment["ACCELERATE_DEEPSPEED_ZERO3_INIT"] == "false"
    # The twin of a file differs from it in device, processes and precision alone.
    twin = file.with_name(f"cpu_{file.name.removeprefix('cpu_')}")
    _, other, _ = launched(["--config_file", str(twin), "train.py"], monkeypatch)
    assert other.deepspeed_config == settings.deepspeed_config


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_mesh_of_a_file_is_the_one_that_accelerate_builds(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, settings, environment = launched(["--config_file", str(file), "train.py"], monkeypatch)
    meant, _ = MEANT[file.stem]
    meshed = "ACCELERATE_USE_PARALLELISM_CONFIG" in environment
    assert meshed == (meant.tensor > 1 or (meant.sharded and meant.replicate > 1)) == bool(settings.parallelism_config)
    if meshed:
        mesh = ParallelismConfig()
        assert (mesh.dp_replicate_size, mesh.dp_shard_size, mesh.tp_size) == (
            meant.replicate,
            meant.shard,
            meant.tensor,
        )
        assert mesh.total_size == settings.num_processes
        assert mesh.cp_size == mesh.sp_size == 1


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_head_comment_says_when_and_what_it_costs(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "performance"))
    from parallel_costs import launch_file_table

    head = head_of(file)
    assert any(line.startswith("When to use it: ") for line in head)
    assert any(line.startswith("Memory") for line in head)
    table = [f"  {line}" for line in launch_file_table(file.stem)]
    start = head.index(table[0])
    assert head[start : start + len(table)] == table


def test_the_page_holds_the_tables_that_the_formulas_give_and_names_every_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "performance"))
    from parallel_memory import tables

    page = (ROOT / "docs" / "parallelism.md").read_text(encoding="utf-8")
    assert [name for name, table in tables().items() if table not in page] == []
    assert [file.name for file in FILES if file.name not in page] == []
    assert {f"diagrams/{file.name}" for file in (ROOT / "docs" / "diagrams").glob("*.svg")} == set(
        re.findall(r"\((diagrams/\w+\.svg)\)", page)
    )
