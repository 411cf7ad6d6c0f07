"""What a launch configuration asks of DeepSpeed, held against what the run sets by itself."""

import json
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from toolkit.config.schema import Config
from toolkit.data.micro_batches import accumulation
from toolkit.distributed.launch import is_true

DEVICES = ("none", "cpu")
STAGES = (1, 2, 3)
OFFLOADED = ("offload_optimizer", "offload_param")
ENVIRONMENT = "ACCELERATE_DEEPSPEED_"
# How much is sent at once, and when: it changes no number. Flags, sizes, and limits that may also be none.
FLAGS = {
    *("overlap_comm", "contiguous_gradients", "allgather_partitions", "reduce_scatter", "ignore_unused_parameters"),
    "memory_efficient_linear",
}
SIZES = {"allgather_bucket_size", "reduce_bucket_size", "sub_group_size"}
LIMITS = {
    *("stage3_prefetch_bucket_size", "stage3_param_persistence_threshold", "stage3_max_live_parameters"),
    *("stage3_max_reuse_distance", "stage3_module_granularity_threshold", "param_persistence_threshold"),
    *("prefetch_bucket_size", "max_live_parameters", "max_reuse_distance", "model_persistence_threshold"),
    "stage3_model_persistence_threshold",
}
PACE = FLAGS | SIZES | LIMITS
# What is honoured of a section; of fp16, which is not trained, nothing matters but whether it is asked for.
SECTIONS = {
    "zero_optimization.offload_optimizer": {"device", "pin_memory"},
    "zero_optimization.offload_param": {"device", "pin_memory"},
    "bf16": {"enabled", "check_grad_overflow"},
    "bfloat16": {"enabled", "check_grad_overflow"},
}
MAPPINGS = ("zero_optimization", "fp16", "optimizer", "optimizer.params", "scheduler", *SECTIONS)
# What DeepSpeed prints or saves by itself: the toolkit prints and saves.
IDLE = {
    *("steps_per_print", "wall_clock_breakdown", "dump_state", "zero_allow_untested_optimizer", "memory_breakdown"),
    *("checkpoint", "flops_profiler"),
}
IDLE_IN_ZERO = {
    *("stage3_gather_16bit_weights_on_model_save", "gather_16bit_weights_on_model_save"),
    *("stage3_gather_fp16_weights_on_model_save", "load_from_fp32_weights", "elastic_checkpoint"),
}


@dataclass(frozen=True)
class Zero:
    """How DeepSpeed is to spread a model."""

    stage: int
    """1 cuts the optimizer's state, 2 the gradients too, and 3 the weights too."""
    offload_optimizer: bool = False
    """Whether master weights and the optimizer's state lie in the memory of the host, where the optimizer steps."""
    offload_weights: bool = False
    """Whether the weights lie there too, and come to the device layer by layer (stage 3)."""
    precision: str = "no"
    """Mixed precision: no or bf16."""
    pace: Mapping[str, Any] = field(default_factory=dict)
    """How much is sent at once, as a DeepSpeed json says it."""
    pinned: bool = True
    """Whether what is offloaded lies in pinned memory, where the device has memory of its own."""

    @property
    def description(self) -> str:
        """It as a text, for the plan."""
        cut = {1: "optimizer state", 2: "optimizer state and gradients", 3: "optimizer state, gradients and weights"}
        away = " and weights" if self.offload_weights else ""
        host = f", optimizer{away} offloaded to the host" if self.offload_optimizer else ""
        return f"DeepSpeed ZeRO {self.stage}: {cut[self.stage]} sharded{host}"


def read_zero(config: Config, precision: str) -> tuple[Zero | None, list[str]]:
    """Return what the launch configuration asks of DeepSpeed, None if nothing, and a sentence for all that is wrong."""
    if not is_true("ACCELERATE_USE_DEEPSPEED"):
        return None, []
    if find_spec("deepspeed") is None:
        return None, [
            "the launch configuration asks for DeepSpeed, which is not installed; install it with pip install "
            "'.[deepspeed]' (DS_BUILD_OPS=0 in the environment leaves its GPU operators unbuilt), or use "
            "fsdp2_one_node.yaml of accelerate_configs/, which shards as ZeRO 3 does"
        ]
    settings, problems = read_settings()
    if settings is None or problems:
        return None, problems
    problems += [*contradictions_of_run(settings, config, precision), *unknown_keys(settings)]
    if "RANK" not in os.environ:
        problems.append(
            "the environment asks for DeepSpeed, but no launcher started this process; start it with `accelerate "
            "launch` and a file of accelerate_configs/, or unset ACCELERATE_USE_DEEPSPEED"
        )
    if is_true("ACCELERATE_USE_PARALLELISM_CONFIG"):
        problems.append(
            "the launch configuration asks for DeepSpeed with a parallelism_config, which this toolkit does not train; "
            "leave one of them out: tensor_and_data_one_node.yaml of accelerate_configs/ has both for FSDP2"
        )
    if precision == "fp16":
        problems.append(
            "the launch configuration asks for mixed precision fp16 with DeepSpeed: the scale of the loss would not be "
            "that of any other strategy; use bf16"
        )
    zero = settings.get("zero_optimization") or {}
    stage = zero.get("stage", 0)
    if stage not in STAGES or isinstance(stage, bool):
        problems.append(
            f"the launch configuration asks for ZeRO stage {stage!r}; give zero_stage 1, 2 or 3, or use "
            "ddp_one_node.yaml of accelerate_configs/ for a model that is whole on each GPU"
        )
    devices = {}
    for what in OFFLOADED:
        devices[what] = str(entry_of(zero, f"{what}.device") or "none").lower()
        if devices[what] not in DEVICES:
            problems.append(
                f"the launch configuration sets {what} to {devices[what]}, and only none and cpu are trained here: "
                "what lies on a disk would be read and written in each step"
            )
    if devices["offload_param"] == "cpu" and (stage != 3 or devices["offload_optimizer"] != "cpu"):
        problems.append(
            "the launch configuration sets offload_param to cpu, which takes ZeRO stage 3 and offload_optimizer cpu"
        )
    if devices["offload_optimizer"] == "cpu" and stage == 1:
        problems.append(
            "the launch configuration sets offload_optimizer to cpu with ZeRO stage 1; it takes stage 2 or 3"
        )
    if os.environ.get(f"{ENVIRONMENT}MOE_LAYER_CLS_NAMES"):
        problems.append(
            "the launch configuration sets deepspeed_moe_layer_cls_names, which this toolkit does not hand on: models "
            "whose processes use different experts were never tried under ZeRO 3; leave it out"
        )
    if is_true(f"{ENVIRONMENT}ZERO3_INIT"):
        problems.append(
            "the launch configuration sets zero3_init_flag, which builds a model in parts, so that new weights could "
            "not be those of any other number of processes; set it to false: each process builds the model on the host"
        )
    if problems:
        return None, problems
    pace = {key: value for key, value in zero.items() if key in PACE and value not in (None, "auto")}
    pinned = all(entry_of(zero, f"{what}.pin_memory") is not False for what in devices)
    offloaded = (devices["offload_optimizer"] == "cpu", devices["offload_param"] == "cpu")
    return Zero(stage, *offloaded, precision, pace, pinned), []


def read_settings() -> tuple[dict[str, Any] | None, list[str]]:
    """Return what the launch file or its DeepSpeed json asks for, as such a json, and what is wrong with the file."""
    file = os.environ.get(f"{ENVIRONMENT}CONFIG_FILE", "none")
    if file != "none":
        try:
            settings = json.loads(Path(file).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            return None, [f"deepspeed_config_file {file} can't be read ({error}); give the path of a DeepSpeed json"]
        if not isinstance(settings, dict):
            return None, [f"deepspeed_config_file {file} holds no JSON object; give the path of a DeepSpeed json"]
        return settings, list(malformed(settings))
    zero: dict[str, Any] = {}
    stage = os.environ.get(f"{ENVIRONMENT}ZERO_STAGE", "2")
    zero["stage"] = int(stage) if stage.isdigit() else stage
    for what, name in (("offload_optimizer", "OFFLOAD_OPTIMIZER"), ("offload_param", "OFFLOAD_PARAM")):
        zero[what] = {"device": os.environ.get(f"{ENVIRONMENT}{name}_DEVICE", "none")}
    settings = {"zero_optimization": zero}
    clip = os.environ.get("ACCELERATE_GRADIENT_CLIPPING", "auto")
    if clip not in ("auto", "none"):
        try:
            settings["gradient_clipping"] = float(clip)
        except ValueError:
            return None, [f"gradient_clipping is {clip} in the launch configuration; give a number, or leave it out"]
    return settings, []


def malformed(settings: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for each section of a json that is none, and each value of another kind than its key takes."""
    for key in MAPPINGS:
        value = entry_of(settings, key)
        allowed = (None,) if key == "zero_optimization" else (None, "auto")
        if value not in allowed and not isinstance(value, dict):
            yield f'the DeepSpeed configuration sets {key} to {value!r}; give a mapping, such as {{"device": "cpu"}}'
    kinds = {
        **{f"zero_optimization.{key}": (is_flag, "true or false") for key in FLAGS},
        **{f"zero_optimization.{key}": (is_size, "a whole number above 0") for key in SIZES},
        **{f"zero_optimization.{key}": (is_limit, "a whole number, 0 or more") for key in LIMITS},
        **{f"zero_optimization.{what}.pin_memory": (is_flag, "true or false") for what in OFFLOADED},
    }
    for key, (fits, allowed_text) in kinds.items():
        value = entry_of(settings, key)
        if value not in (None, "auto") and not fits(value):
            yield f"the DeepSpeed configuration sets {key} to {value!r}; give {allowed_text}"


def is_flag(value: Any) -> bool:
    """Return whether a value of a json is true or false."""
    return isinstance(value, bool)


def is_limit(value: Any) -> bool:
    """Return whether a value of a json is a whole number that is not negative; 5e8 is one."""
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0 and value % 1 == 0


def is_size(value: Any) -> bool:
    """Return whether a value of a json is a whole number above 0."""
    return is_limit(value) and value > 0


def entry_of(settings: Any, key: str) -> Any:
    """Return an entry of a json by its dotted name; None where there is none."""
    for part in key.split("."):
        settings = settings.get(part) if isinstance(settings, dict) else None
    return settings


def contradictions_of_run(settings: Mapping[str, Any], config: Config, precision: str) -> Iterator[str]:
    """Yield a sentence for each setting that the run makes too, with both values, unless they are the same."""
    batch, optim = config.batch, config.optim
    own: dict[str, tuple[Any, str]] = {
        "train_batch_size": (batch.size, "batch.size"),
        "train_micro_batch_size_per_gpu": (batch.micro, "batch.micro"),
        "gradient_clipping": (optim.clip or 0.0, "optim.clip"),
    }
    if batch.micro != "auto" and batch.micro_tokens is None:
        derived = accumulation(batch.size, int(os.environ.get("WORLD_SIZE", "1")), batch.samples)
        own["gradient_accumulation_steps"] = (derived, "what follows from batch.size, batch.micro and the processes")
    optimizer = settings.get("optimizer")
    if isinstance(optimizer, dict):
        yield from contradictions_of_optimizer(optimizer, config)
    for key, (value, name) in own.items():
        given = settings.get(key, "auto")
        if given not in ("auto", value):
            yield both(key, given, name, value)
    if isinstance(scheduler := settings.get("scheduler"), dict):
        yield both("scheduler", scheduler.get("type", scheduler), "optim.schedule", optim.schedule)
    for kind in ("fp16", "bf16", "bfloat16"):
        given = entry_of(settings, f"{kind}.enabled")
        given = "auto" if given is None else given
        asked = precision == ("fp16" if kind == "fp16" else "bf16")
        if given not in ("auto", asked):
            yield both(f"{kind}.enabled", given, "mixed_precision of the launch file", precision)


def contradictions_of_optimizer(optimizer: Any, config: Config) -> Iterator[str]:
    """Yield a sentence for each entry of a json's optimizer that is another one than the run's."""
    optim = config.optim
    kind = str(optimizer.get("type", "auto"))
    if kind.lower() not in ("auto", optim.name):
        yield both("optimizer.type", kind, "optim.name", optim.name)
    own = {
        "lr": (optim.lr, "optim.lr"),
        "betas": (list(optim.betas), "optim.betas"),
        "eps": (optim.eps, "optim.eps"),
        "weight_decay": (optim.weight_decay, "optim.weight_decay"),
    }
    params = optimizer.get("params")
    for key, given in params.items() if isinstance(params, dict) else ():
        value, name = own.get(key, (None, ""))
        if given != "auto" and given != value:
            yield both(f"optimizer.params.{key}", given, name or "no setting", value)


def both(key: str, given: Any, name: str, value: Any) -> str:
    """Return the sentence about a setting that the json and the run make."""
    return (
        f"the DeepSpeed configuration sets {key} to {given}, which is the run's own setting: {name} is "
        f'{value if value is not None else "not set"}; write "auto" there or leave it out, and give the setting to the '
        "recipe"
    )


def unknown_keys(settings: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for all keys of a json that are not honoured."""
    known = {
        *("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping"),
        *("optimizer", "scheduler", "fp16", "bf16", "bfloat16", "zero_optimization"),
        *IDLE,
    }
    in_zero = {"stage", "offload_optimizer", "offload_param", *PACE, *IDLE_IN_ZERO}
    zero = settings.get("zero_optimization") or {}
    found = [key for key in settings if key not in known]
    found += [f"zero_optimization.{key}" for key in zero if key not in in_zero]
    for section, honoured in SECTIONS.items():
        held = entry_of(settings, section)
        found += [f"{section}.{key}" for key in held if key not in honoured] if isinstance(held, dict) else []
    found = [key for key in found if not is_off(entry_of(settings, key))]
    if found:
        yield (
            f"the DeepSpeed configuration sets {', '.join(found)}, which this toolkit does not hand on: nothing proves "
            "its numbers; leave it out"
        )


def is_off(value: Any) -> bool:
    """Return whether an entry asks for nothing."""
    enabled = value.get("enabled", True) if isinstance(value, dict) else value
    return enabled in (False, None, "auto", "none")


def problems_with_zero(zero: Zero, config: Config) -> Iterator[str]:
    """Yield a sentence for each setting of a run that can't be had with ZeRO."""
    if config.optim.name in ("adafactor", "muon"):
        yield (
            f"optim.name is {config.optim.name}, which changes whole matrices, and the launch configuration asks for "
            "DeepSpeed, which cuts their numbers anywhere; take adamw or sgd, or fsdp2_one_node.yaml of "
            "accelerate_configs/"
        )
    if config.batch.reduce_each and zero.stage == 1:
        yield (
            "batch.reduce_each is true, and ZeRO stage 1 keeps whole gradients until the last micro-batch of a step; "
            "take stage 2 or 3, which reduce them after each, or leave it out"
        )


def engine_settings(zero: Zero, config: Config, processes: int, on_cpu: bool) -> dict[str, Any]:
    """Return the configuration of DeepSpeed's engine: it is told of no accumulation, which the loop does.

    Under bf16 stages 2 and 3 hold weights in bf16 beside their masters. Stage 1 holds them in float32 and computes
    under autocast, as distributed data parallel does: else DeepSpeed would take another optimizer for it.
    """
    pinned = {"device": "cpu", "pin_memory": zero.pinned and not on_cpu}
    cut: dict[str, Any] = {"stage": zero.stage, **zero.pace}
    if zero.offload_optimizer:
        cut["offload_optimizer"] = pinned
    if zero.offload_weights:
        cut["offload_param"] = pinned
    return {
        "train_micro_batch_size_per_gpu": 1,
        "train_batch_size": processes,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": config.optim.clip or 0.0,
        "zero_optimization": cut,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "bf16": {"enabled": zero.precision == "bf16" and zero.stage > 1, "check_grad_overflow": True},
        "fp16": {"enabled": False},
        # Gradients are summed in 32 bits, however the model computes.
        "communication_data_type": "fp32",
        "data_types": {"grad_accum_dtype": "fp32"},
    }


@contextmanager
def zero_shown_to_accelerate(
    zero: Zero, config: Config, on_cpu: bool, handlers: Sequence[Any]
) -> Iterator[dict[str, Any]]:
    """Yield what the Accelerator is built with, in an environment that lets it see DeepSpeed and nothing else.

    On CPU Accelerate 1.15 either trains plain data parallel, and says nothing, or takes every process for number 0. So
    it is told here which process this is, by the group that it makes for several CPUs, and only then of DeepSpeed.
    """
    if on_cpu:
        os.environ["DS_ACCELERATOR"] = "cpu"
        import deepspeed.ops

        # An operator for inference, which would be compiled now.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    # DeepSpeed calls functions by names that torch 2.13 has given up.
    warnings.filterwarnings("ignore", message=".*is deprecated", category=FutureWarning, module="torch.distributed")
    from accelerate import PartialState
    from accelerate.utils import DeepSpeedPlugin, DistributedType
    from transformers.integrations import unset_hf_deepspeed_config

    hidden = {
        name: os.environ.pop(name)
        for name in list(os.environ)
        if name.startswith((ENVIRONMENT, "ACCELERATE_GRADIENT_"))
        or name in ("ACCELERATE_USE_CPU", "ACCELERATE_USE_DEEPSPEED", "ACCELERATE_CONFIG_DS_FIELDS")
    }
    try:
        options = {key: value for handler in handlers for key, value in handler.to_kwargs().items()}
        state = PartialState(cpu=on_cpu, **options)
        state._shared_state["distributed_type"] = DistributedType.DEEPSPEED
        plugin = DeepSpeedPlugin(engine_settings(zero, config, state.num_processes, on_cpu))
        plugin.zero3_init_flag = False
        # The Accelerator asks for this.
        os.environ["ACCELERATE_USE_DEEPSPEED"] = "true"
        # The precision is the engine's.
        yield {"cpu": False, "deepspeed_plugin": plugin, "mixed_precision": "no"}
    finally:
        # Transformers would cut each model to parts while it reads it.
        unset_hf_deepspeed_config()
        os.environ.update(hidden)
