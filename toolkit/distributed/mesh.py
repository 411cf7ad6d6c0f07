"""How a model is distributed over the processes of a run, read from what the launcher put into the environment.

The processes form a mesh of (replicate, shard, tensor), tensor innermost: processes that differ only in their place
along `tensor` hold parts of one copy of the model and see the same samples; all others see different ones. The stages
of a pipeline, which the settings ask for, see the same samples too.
"""

import logging
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from toolkit.config.schema import Config
from toolkit.distributed.launch import is_true
from toolkit.distributed.zero_launch import Zero, read_zero, zero_shown_to_accelerate

PARALLEL = "PARALLELISM_CONFIG_"


@dataclass(frozen=True)
class Strategy:
    """The sizes of the mesh, and whether weights are sharded."""

    sharded: bool = False
    """FSDP2: each process keeps a part of weights, gradients and optimizer state, and gathers what a layer needs."""
    replicate: int = 1
    """Copies of the model, kept equal by an all-reduce of gradients (distributed data parallel, hybrid sharding)."""
    shard: int = 1
    """Processes that weights are sharded over."""
    tensor: int = 1
    """Processes that each layer is split over (tensor parallel)."""
    stages: int = 1
    """Processes that the layers are divided among (pipeline)."""
    checkpoint_activations: bool = False
    """Whether the launch file asks for activations to be computed again in the backward pass."""
    offloaded: bool = False
    """Whether the parts of a sharded model lie in the memory of the host, where the optimizer steps."""
    built_by_main: bool = False
    """Whether the main process alone builds a model that is to be sharded, and sends the others their shards."""
    zero: Zero | None = None
    """DeepSpeed's ZeRO: each process steps a part of the master weights."""
    devices: int = 1
    """GPUs of the one process that its layers are spread over (`model.device_map`)."""

    @property
    def data_parallel_size(self) -> int:
        """Processes that see different samples."""
        return self.replicate * self.shard

    @property
    def size(self) -> int:
        """Processes in all."""
        return self.data_parallel_size * self.together

    @property
    def together(self) -> int:
        """Processes that hold one copy of the model together, and see the same samples."""
        return self.tensor * self.stages

    @property
    def is_sharded(self) -> bool:
        """Whether a process holds less than the whole state of the model."""
        return self.sharded or self.together > 1 or self.zero is not None

    @property
    def gathers_weights(self) -> bool:
        """Whether the processes exchange weights in each forward pass, so that all have to run it."""
        return self.sharded or (self.zero is not None and self.zero.stage == 3)

    @property
    def keeps_own_values(self) -> bool:
        """Whether each process keeps its part of the model as it read it, and gets nothing from the main process."""
        return self.is_sharded and not self.built_by_main

    @property
    def description(self) -> str:
        """The strategy as a text, for the plan."""
        parts = []
        if self.zero is not None:
            parts.append(f"{self.zero.description} over {self.shard} process(es)")
        elif self.sharded:
            over = f"sharded over {self.shard} process(es)"
            copies = f" in {self.replicate} copies" if self.replicate > 1 else ""
            parts.append(f"FSDP2: {over}{copies}" + (", offloaded to the host" if self.offloaded else ""))
        elif self.replicate > 1:
            parts.append(f"distributed data parallel: {self.replicate} copies")
        if self.tensor > 1:
            parts.append(f"tensor parallel: each layer split over {self.tensor}")
        if self.devices > 1:
            parts.append(f"layers spread over {self.devices} GPUs of one process")
        if self.stages > 1:
            parts.append(f"pipeline: the layers divided among {self.stages}")
        return ", ".join(parts) or "the whole model in one process"


def read_strategy(config: Config, world_size: int, precision: str) -> tuple[Strategy, list[str]]:
    """Return the strategy that launcher and settings ask for, and a sentence for all of it that can't be done."""
    # A model is evaluated whole, however it was trained.
    stages = 1 if config.evaluate.only else config.batch.stages
    if stages > 1:
        return Strategy(stages=stages), list(problems_of_stages(stages, world_size, precision))
    zero, wrong = read_zero(config, precision)
    if zero is not None:
        return Strategy(shard=world_size, zero=zero, offloaded=zero.offload_optimizer), []
    if wrong:
        return Strategy(), wrong
    sharded = is_true("ACCELERATE_USE_FSDP")
    meshed = is_true("ACCELERATE_USE_PARALLELISM_CONFIG")
    problems = []
    sizes = {}
    for name in ("DP_REPLICATE", "DP_SHARD", "TP", "CP", "SP"):
        text = os.environ.get(f"{PARALLEL}{name}_SIZE", "1") if meshed else "1"
        sizes[name] = int(text) if text.isdigit() and int(text) > 0 else 0
        if not sizes[name]:
            problems.append(
                f"parallelism_config_{name.lower()}_size is {text!r} in the launch configuration; give a number from 1"
            )
    if problems:
        return Strategy(), problems
    replicate, shard, tensor = sizes["DP_REPLICATE"], sizes["DP_SHARD"], sizes["TP"]
    if sizes["CP"] > 1 or sizes["SP"] > 1:
        name = "context" if sizes["CP"] > 1 else "sequence"
        problems.append(
            f"the launch configuration asks for {name} parallel, which this toolkit does not train: attention over a "
            "split sequence has no path on CPU to prove it by. Use tensor_one_node.yaml or fsdp2_one_node.yaml of "
            "accelerate_configs/ for memory, and activation checkpointing for long sequences"
        )
    if not meshed:
        shard, replicate = (world_size, 1) if sharded else (1, world_size)
    product = replicate * shard * tensor * sizes["CP"] * sizes["SP"]
    if product != world_size:
        problems.append(
            f"the launch configuration spreads the model over {product} processes (dp_replicate {replicate} x dp_shard "
            f"{shard} x tp {tensor}"
            + (f" x cp {sizes['CP']} x sp {sizes['SP']}" if sizes["CP"] * sizes["SP"] > 1 else "")
            + f"), but {world_size} {'was' if world_size == 1 else 'were'} started; the product has to be "
            f"num_processes: give --num_processes {product}, or other sizes in the launch file or as "
            "--parallelism_config_tp_size and so on"
        )
    if (sharded or tensor > 1) and "RANK" not in os.environ:
        problems.append(
            "the environment asks for a model that is spread over processes, but no launcher started this one; start "
            "it with `accelerate launch` and a file of accelerate_configs/, or unset ACCELERATE_USE_FSDP and "
            "ACCELERATE_USE_PARALLELISM_CONFIG"
        )
    if shard > 1 and not sharded:
        problems.append(
            "dp_shard_size is above 1, but the launch configuration does not use FSDP; set distributed_type to FSDP"
        )
    if replicate > 1 and shard == 1 and meshed:
        problems.append(
            f"dp_replicate_size is {replicate} and dp_shard_size is 1: copies without sharding are distributed data "
            "parallel; use ddp_one_node.yaml or ddp_several_nodes.yaml of accelerate_configs/"
            + (", or set dp_shard_size instead beside tensor parallel" if tensor > 1 else "")
        )
    if precision == "fp16" and (sharded or tensor > 1):
        problems.append(
            "the launch configuration asks for mixed precision fp16 with a model that is spread over processes: the "
            "scale of the loss would not be agreed on; use bf16"
        )
    if sharded and is_true("FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD"):
        problems.append(
            "the launch configuration sets fsdp_activation_checkpointing_offload, which this toolkit does not do; "
            "leave it out"
        )
    if sharded and tensor > 1 and is_true("FSDP_CPU_RAM_EFFICIENT_LOADING"):
        problems.append(
            "the launch configuration sets fsdp_cpu_ram_efficient_loading, which does not go with tensor parallel; "
            "leave it out"
        )
    # Tensor parallel alone may come as FSDP too: as flags, the launcher takes a mesh in no other way.
    strategy = Strategy(
        sharded and (shard > 1 or not meshed or tensor == 1),
        replicate,
        shard,
        tensor,
        1,
        sharded and is_true("FSDP_ACTIVATION_CHECKPOINTING"),
        sharded and is_true("FSDP_OFFLOAD_PARAMS"),
        sharded and is_true("FSDP_CPU_RAM_EFFICIENT_LOADING"),
    )
    return strategy, problems


def problems_of_stages(stages: int, world_size: int, precision: str) -> Iterator[str]:
    """Yield why there can't be a pipeline of so many stages."""
    others = ("ACCELERATE_USE_FSDP", "ACCELERATE_USE_PARALLELISM_CONFIG", "ACCELERATE_USE_DEEPSPEED")
    if any(map(is_true, others)):
        yield (
            f"batch.stages is {stages}, and the launch configuration spreads the model too (FSDP, DeepSpeed or "
            "parallelism_config): a pipeline does not go with it; leave batch.stages out, or use ddp_one_node.yaml (on "
            "CPU cpu.yaml) of accelerate_configs/"
        )
    if world_size != stages:
        yield (
            f"batch.stages is {stages}, and {world_size} {'process was' if world_size == 1 else 'processes were'} "
            f"started: each holds one stage of the only copy of the model; give accelerate launch --num_processes "
            f"{stages}" + (f", or --batch.stages {world_size}" if world_size > 1 else ", or leave batch.stages out")
        )
    if precision == "fp16":
        yield (
            f"batch.stages is {stages}, and the launch configuration asks for mixed precision fp16: the scale of the "
            "loss would not be agreed on; use bf16"
        )


@contextmanager
def shown_to_accelerate(
    strategy: Strategy, config: Config, on_cpu: bool, precision: str, handlers: Sequence[Any]
) -> Iterator[dict[str, Any]]:
    """Yield what the Accelerator is built with, in an environment that lets it see this strategy and no other.

    On CPU Accelerate 1.15 neither shards nor splits a model: each process would train its own copy, silently. Its code
    for both runs on any device and over gloo, once the processes have the type that several GPUs have.
    """
    if strategy.zero is not None:
        with zero_shown_to_accelerate(strategy.zero, config, on_cpu, handlers) as given:
            yield given
        return
    if not strategy.is_sharded:
        yield {}
        return
    import torch
    from accelerate import PartialState
    from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin, ParallelismConfig
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy

    options = {key: value for handler in handlers for key, value in handler.to_kwargs().items()}
    # Warnings about how Accelerate slices a mesh, and about the norm of gradients on two dimensions: not for the user.
    warnings.filterwarnings("ignore", message="Slicing a flattened dim")
    logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)
    state = PartialState(cpu=on_cpu, **options)
    if on_cpu:
        state._shared_state["distributed_type"] = DistributedType.MULTI_GPU
    given = {}
    if strategy.sharded:
        plugin = FullyShardedDataParallelPlugin()
        # Accelerate's own wrapper draws other dropout in the second forward pass than in the first.
        plugin.activation_checkpointing = False
        # The toolkit shards the model itself (toolkit/distributed/fsdp.py).
        plugin.auto_wrap_policy = None
        plugin.cpu_ram_efficient_loading = False
        # Else Transformers would read the weights in one process of each machine, and leave those of the others empty.
        os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"] = "false"
        if precision == "bf16":
            # Left to itself it sums gradients in bf16.
            plugin.mixed_precision_policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        if on_cpu and isinstance(plugin.cpu_offload, CPUOffloadPolicy):
            # Memory can be pinned for a device alone.
            plugin.cpu_offload = CPUOffloadPolicy(pin_memory=False)
        given["fsdp_plugin"] = plugin
    if strategy.tensor > 1 or strategy.replicate > 1:
        given["parallelism_config"] = ParallelismConfig(
            dp_replicate_size=strategy.replicate, dp_shard_size=strategy.shard, tp_size=strategy.tensor
        )
    hidden = {name: os.environ.pop(name, None) for name in ("ACCELERATE_USE_FSDP", "ACCELERATE_USE_PARALLELISM_CONFIG")}
    try:
        yield given
    finally:
        os.environ.update({name: value for name, value in hidden.items() if value is not None})
