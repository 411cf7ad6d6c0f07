"""What a launch file or a DeepSpeed json asks for that the run sets, or that is not trained, is named at once."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from toolkit.config.batch import BatchConfig
from toolkit.config.optim import OptimConfig
from toolkit.config.schema import Config
from toolkit.distributed import zero_launch
from toolkit.distributed.launch import FROM_DEEPSPEED, is_deepspeed_launcher
from toolkit.distributed.mesh import Strategy
from toolkit.distributed.zero import check_model
from toolkit.distributed.zero_launch import Zero, engine_settings, problems_with_zero, read_zero
from toolkit.errors import UserError
from toolkit.models.compiled import check_compiles

CONFIG = Config(batch=BatchConfig(size=8, micro=4), optim=OptimConfig(lr=3e-4, clip=1.0))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Return a function that reads what a json, or variables of the launcher, ask for."""
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    monkeypatch.setenv("RANK", "0")

    def read(settings: Any = None, precision: str = "no", **variables: str) -> tuple[Zero | None, list[str]]:
        if settings is not None:
            text = settings if isinstance(settings, str) else json.dumps(settings)
            (tmp_path / "deepspeed.json").write_text(text)
            monkeypatch.setenv("ACCELERATE_DEEPSPEED_CONFIG_FILE", str(tmp_path / "deepspeed.json"))
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        return read_zero(CONFIG, precision)

    return read


def test_the_launch_file_of_accelerate(asked: Any) -> None:
    variables = {"ACCELERATE_DEEPSPEED_ZERO_STAGE": "3", "ACCELERATE_GRADIENT_CLIPPING": "1.0"}
    variables |= {"ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE": "cpu", "ACCELERATE_DEEPSPEED_ZERO3_INIT": "false"}
    assert asked(**variables) == (Zero(3, offload_optimizer=True), [])


def test_auto_everywhere_and_the_values_of_the_run_are_understood(asked: Any) -> None:
    auto = {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "optimizer": {
            "type": "AdamW",
            "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"},
        },
        "fp16": {"enabled": "auto", "loss_scale": 0},
        "bf16": {"enabled": "auto"},
        "steps_per_print": 2000,
        "wall_clock_breakdown": False,
        "zero_optimization": {
            "stage": 3,
            "overlap_comm": True,
            "contiguous_gradients": True,
            "sub_group_size": 1e9,
            "reduce_bucket_size": "auto",
            "stage3_prefetch_bucket_size": "auto",
            "stage3_param_persistence_threshold": "auto",
            "stage3_gather_16bit_weights_on_model_save": True,
            "offload_optimizer": {"device": "none", "pin_memory": True},
            "offload_param": {"device": "none"},
        },
    }
    found, problems = asked(auto)
    assert problems == []
    assert found == Zero(3, pace={"overlap_comm": True, "contiguous_gradients": True, "sub_group_size": 10**9})
    same = {
        "train_batch_size": 8,
        "train_micro_batch_size_per_gpu": 4,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": True},
    }
    same["optimizer"] = {"type": "adamw", "params": {"lr": 3e-4, "betas": [0.9, 0.999], "weight_decay": 0.01}}
    assert asked({**same, "zero_optimization": {"stage": 1}}, "bf16") == (Zero(1, precision="bf16"), [])


@pytest.mark.parametrize(
    ("settings", "precision", "parts"),
    [
        ({"train_batch_size": 64}, "no", ["sets train_batch_size to 64", "batch.size is 8", 'write "auto"']),
        ({"train_micro_batch_size_per_gpu": 2}, "no", ["to 2", "batch.micro is 4"]),
        ({"gradient_accumulation_steps": 4}, "no", ["gradient_accumulation_steps to 4", "the processes is 2"]),
        ({"gradient_clipping": 0.5}, "no", ["gradient_clipping to 0.5", "optim.clip is 1.0"]),
        ({"scheduler": {"type": "WarmupLR"}}, "no", ["scheduler to WarmupLR", "optim.schedule is linear"]),
        ({"optimizer": {"type": "Lamb"}}, "no", ["optimizer.type to Lamb", "optim.name is adamw"]),
        ({"optimizer": {"params": {"lr": 0.1}}}, "no", ["optimizer.params.lr to 0.1", "optim.lr is 0.0003"]),
        ({"bf16": {"enabled": True}}, "no", ["bf16.enabled to True", "mixed_precision of the launch file is no"]),
        ({"fp16": {"enabled": True}}, "bf16", ["fp16.enabled to True", "is bf16"]),
        ({"zero_optimization": {"stage": 0}}, "no", ["ZeRO stage 0", "ddp_one_node.yaml"]),
        ({"zero_optimization": {"stage": 1, "offload_optimizer": {"device": "cpu"}}}, "no", ["takes stage 2 or 3"]),
        ({"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}}, "no", ["takes ZeRO stage 3"]),
        ({"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme"}}}, "no", ["to nvme", "a disk"]),
        ({"zero_optimization": {"stage": 3, "zero_quantized_weights": True}}, "no", ["zero_quantized_weights"]),
        ({"pipeline": {"stages": 2}, "tensor_parallel": {"autotp_size": 2}}, "no", ["pipeline, tensor_parallel"]),
        ({}, "fp16", ["mixed precision fp16 with DeepSpeed"]),
        (
            {"zero_optimization": {"stage": 2, "round_robin_gradients": True}},
            "no",
            ["zero_optimization.round_robin_gr"],
        ),
        ({"zero_optimization": {"stage": 2, "overlap_comm": "yes"}}, "no", ["overlap_comm to 'yes'; give true or"]),
        ({"zero_optimization": "auto"}, "no", ["zero_optimization to 'auto'; give a mapping"]),
        ({"zero_optimization": {"stage": True}}, "no", ["ZeRO stage True"]),
        (
            {"zero_optimization": {"stage": 2, "reduce_bucket_size": -1}},
            "no",
            ["to -1; give a whole number above 0"],
        ),
        (
            {"zero_optimization": {"stage": 2, "sub_group_size": True}},
            "no",
            ["to True; give a whole number above"],
        ),
        ({"zero_optimization": {"stage": 2, "overlap_comm": 7}}, "no", ["overlap_comm to 7; give true or false"]),
        (
            {"zero_optimization": {"stage": 3, "stage3_prefetch_bucket_size": float("inf")}},
            "no",
            ["stage3_prefetch_bucket_size to inf; give a whole number, 0 or more"],
        ),
        (
            {"zero_optimization": {"stage": 3, "offload_param": {"pin_memory": "no"}}},
            "no",
            ["offload_param.pin_memory to 'no'; give true or false"],
        ),
        ({"optimizer": {"type": "AdamW", "params": [1]}}, "no", ["optimizer.params to [1]; give a mapping"]),
        ({"zero_optimization": None, "bf16": True}, "no", ["bf16 to True; give a mapping"]),
        ({"zero_optimization": {"stage": 3, "offload_optimizer": "cpu"}}, "no", ["offload_optimizer to 'cpu'; give a"]),
        (
            {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "ratio": 0.3}}},
            "no",
            ["offload_optimizer.ratio"],
        ),
        ({"prescale_gradients": True}, "no", ["prescale_gradients, which this toolkit does not hand on"]),
        ({"zero_force_ds_cpu_optimizer": True}, "no", ["zero_force_ds_cpu_optimizer, which"]),
        ({"bf16": {"enabled": False, "bf16_master_weights_and_grads": True}}, "no", ["bf16_master_weights_and_grads"]),
    ],
)
def test_each_with_both_values(asked: Any, settings: dict[str, Any], precision: str, parts: list[str]) -> None:
    _, problems = asked({"zero_optimization": {"stage": 2}, **settings}, precision)
    assert len(problems) == 1
    assert all(part in problems[0] for part in parts), problems


def test_all_of_them_together(asked: Any) -> None:
    wrong = {"train_batch_size": 64, "gradient_clipping": 2, "scheduler": {"type": "WarmupLR"}, "zero_optimization": {}}
    assert len(asked(wrong, "fp16")[1]) == 5


def test_a_file_that_is_none(asked: Any, tmp_path: Path) -> None:
    assert "can't be read" in asked("{")[1][0]
    assert "holds no JSON object" in asked("[1]")[1][0]
    (tmp_path / "deepspeed.json").unlink()
    assert "can't be read" in asked()[1][0]


def test_what_the_launcher_alone_can_set(asked: Any) -> None:
    assert "gradient_clipping is much" in asked(ACCELERATE_GRADIENT_CLIPPING="much")[1][0]
    variables = {"ACCELERATE_GRADIENT_CLIPPING": "1.0", "ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES": "Block"}
    assert "deepspeed_moe_layer_cls_names" in asked(**variables)[1][0]


def test_without_the_package_or_a_launcher(asked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "zero3_init_flag" in asked(ACCELERATE_DEEPSPEED_ZERO3_INIT="true")[1][0]
    monkeypatch.delenv("ACCELERATE_DEEPSPEED_ZERO3_INIT")
    assert "parallelism_config" in asked(ACCELERATE_USE_PARALLELISM_CONFIG="true")[1][0]
    monkeypatch.delenv("ACCELERATE_USE_PARALLELISM_CONFIG")
    monkeypatch.delenv("RANK")
    assert "no launcher started this process" in asked()[1][0]
    monkeypatch.setattr(zero_launch, "find_spec", lambda name: None)
    assert "pip install '.[deepspeed]'" in asked()[1][0]


def test_its_own_launcher() -> None:
    command = ["python3", "-u", "-m", "deepspeed.launcher.launch", "--world_info=abc", "recipes/classify.py"]
    assert is_deepspeed_launcher(command)
    assert not is_deepspeed_launcher(["python3", "-m", "accelerate.commands.launch", "--use_deepspeed", "recipes/x.py"])
    assert "hostfile" in FROM_DEEPSPEED
    assert "accelerate launch" in FROM_DEEPSPEED


def test_settings_and_weights_that_it_does_not_train() -> None:
    for name in ("adafactor", "muon"):
        config = replace(CONFIG, optim=replace(CONFIG.optim, name=name))
        assert f"optim.name is {name}" in next(problems_with_zero(Zero(2), config))
    each = replace(CONFIG, batch=replace(CONFIG.batch, reduce_each=True))
    assert "ZeRO stage 1" in next(problems_with_zero(Zero(1), each))
    assert not list(problems_with_zero(Zero(2), each))
    with pytest.raises(UserError, match="weights of the model are bfloat16"):
        check_model(torch.nn.Linear(2, 2).bfloat16())
    check_model(torch.nn.Linear(2, 2).double())
    with pytest.raises(UserError, match="all of them one type"):
        check_model(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2).double()))
    layer = torch.nn.Linear(2, 2)
    layer.compile()
    with pytest.raises(UserError, match=r"model\.compile is true.*ZeRO 2"):
        check_compiles(layer, Strategy(zero=Zero(2)))


def test_the_engine_is_told_of_no_accumulation_and_sums_in_32_bits() -> None:
    settings = engine_settings(Zero(3, True, True, "bf16", {"sub_group_size": 5}), CONFIG, 4, on_cpu=True)
    assert settings["gradient_accumulation_steps"] == 1
    assert settings["train_batch_size"] == 4
    assert settings["communication_data_type"] == "fp32"
    assert settings["zero_optimization"]["sub_group_size"] == 5
    assert settings["zero_optimization"]["offload_param"] == {"device": "cpu", "pin_memory": False}
    assert settings["gradient_clipping"] == CONFIG.optim.clip
    assert settings["bf16"]["enabled"]
    assert not engine_settings(Zero(1, precision="bf16"), CONFIG, 4, on_cpu=True)["bf16"]["enabled"]
