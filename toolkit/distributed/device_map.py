"""Whether the layers of a model can be spread over the GPUs of this process, as `model.device_map` asks for."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from toolkit.config.schema import Config
from toolkit.distributed.launch import is_true
from toolkit.distributed.mesh import Strategy
from toolkit.errors import UserError


def asks_for_devices(config: Config) -> bool:
    """Return whether the layers are to be spread over the GPUs of one process; not every recipe can say so."""
    model: Any = getattr(config, "model", None)
    return getattr(model, "device_map", None) is not None


def devices_here(on_cpu: bool) -> int:
    """Return how many accelerators this process sees."""
    return 0 if on_cpu else torch.accelerator.device_count()


def device_map_problems(config: Config, strategy: Strategy, on_cpu: bool, precision: str) -> Iterator[str]:
    """Yield why the layers can't be spread over the devices of this process, if that is asked for."""
    if not asks_for_devices(config):
        return
    given, alternative = "model.device_map is balanced", "leave model.device_map out, and use"
    devices = devices_here(on_cpu)
    if strategy.is_sharded or strategy.size > 1:
        asked = strategy.description if strategy.is_sharded else f"{strategy.size} processes"
        yield (
            f"{given}, which lays the layers of one process on several GPUs, and the launch configuration asks for "
            f"{asked}; leave model.device_map out, or start one process: `accelerate launch --config_file "
            "accelerate_configs/one_gpu.yaml`"
        )
    if on_cpu and is_true("ACCELERATE_USE_CPU"):
        yield f"{given}, which takes several GPUs, and the launch configuration asks for the CPU; leave one of them out"
    elif on_cpu:
        yield f"{given}, which takes several GPUs, and torch finds none on this machine; leave it out"
    elif devices < 2:
        yield (
            f"{given}, which takes several GPUs, and this process sees one (CUDA_VISIBLE_DEVICES says which); leave it "
            "out, or show it more"
        )
    if precision == "fp16":
        yield (
            f"{given}, and the launch configuration asks for mixed precision fp16, whose scale of the loss was never "
            f"tried over several GPUs of one process; use bf16, or {alternative} ddp_one_node.yaml of "
            "accelerate_configs/"
        )
    if config.batch.micro == "auto":
        yield (
            f"{given}, and batch.micro is auto: what fits is tried on one GPU alone; give a number, or "
            "batch.micro_tokens"
        )


def distributed_problem(devices: int) -> str:
    """Return why a process that a distributed launcher started can't spread layers, though it is the only one."""
    return (
        f"model.device_map lays the layers on {devices} GPUs of one process, but a launcher for several started "
        "it (torchrun, or distributed_type MULTI_GPU), and Accelerate trains no such model there; start it with "
        "`accelerate launch --config_file accelerate_configs/one_gpu.yaml`, or without a launcher"
    )


@contextmanager
def mixing_explained(strategy: Strategy) -> Iterator[None]:
    """Say in one message what is to be done where a model computes with tensors of two devices.

    Raises:
        UserError: it does.
    """
    try:
        yield
    except RuntimeError as error:
        if strategy.devices == 1 or "same device" not in str(error):
            raise
        raise UserError(
            "model.device_map lays the layers on several GPUs, and the model or the task computes with tensors of two "
            f"of them ({str(error).splitlines()[0]}); leave model.device_map out, and use fsdp2_one_node.yaml of "
            "accelerate_configs/, which shards any model"
        ) from None
