"""The model of a task as it is trained: what is random in it, its padding, and where its layers lie."""

from collections.abc import Sequence

import numpy as np
import torch

from toolkit.attention import watch_attention
from toolkit.config.schema import Config
from toolkit.distributed.fsdp import check_units, checkpoint_activations, shard
from toolkit.distributed.mesh import Strategy
from toolkit.distributed.model_from_main import build_on_main, shard_from_main
from toolkit.distributed.runtime import Runtime
from toolkit.distributed.tensor_parallel import split_layers
from toolkit.distributed.zero import check_model
from toolkit.dropout import know_samples
from toolkit.errors import UserError
from toolkit.models.changes import remark
from toolkit.models.compiled import check_compiles
from toolkit.models.packing import take_padding_out
from toolkit.models.parameters import freeze
from toolkit.models.spread import check_holds_values, spread_layers
from toolkit.models.stages import divide
from toolkit.randomness import seed_for
from toolkit.task import Task


def build_model(task: Task, config: Config, runtime: Runtime, unused: Sequence[str] = ()) -> torch.nn.Module:
    """Return the task's module in training mode, new weights drawn from the seed alone, and `unused` ones frozen.

    Raises:
        UserError: it can't be trained as it is.
    """
    runtime.seed(seed_for(config.seed, "new weights"))
    model = build_on_main(lambda: task.model(runtime), runtime).train()
    if runtime.is_main or not runtime.strategy.built_by_main:
        check_holds_values(model)
    know_samples(model)
    watch_attention()
    pack_rows(model, task, config, runtime.strategy)
    freeze(model, unused)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UserError("the model has no trainable parameter; leave at least one with requires_grad")
    dtypes = {parameter.dtype for parameter in model.parameters() if parameter.requires_grad}
    if runtime.precision != "no" and dtypes - {torch.float32}:
        raise UserError(
            f"the launch configuration asks for mixed precision {runtime.precision}, and the weights are "
            f"{', '.join(sorted(str(d).removeprefix('torch.') for d in dtypes))}; mixed precision needs float32 "
            "weights: set model.dtype to float32, or mixed_precision to no in the launch file"
        )
    return model


def pack_rows(model: torch.nn.Module, task: Task, config: Config, strategy: Strategy) -> None:
    """Have a model compute without padding where it can; otherwise the plan says why not.

    Raises:
        UserError: it can't, and `batch.pack` is always.
    """
    if config.batch.pack == "never":
        return
    # Where each text begins is known on the first GPU alone.
    reason = take_padding_out(model) if strategy.devices == 1 else "its layers are spread (model.device_map)"
    if reason is not None and config.batch.pack == "always":
        raise UserError(f"batch.pack is always, but this model can't compute without padding: {reason}; leave it out")
    if reason is not None and task.data.train.lengths(np.zeros(1, dtype=np.int64)) is not None:
        remark(model, {"packing": f"padded to the longest text of a micro-batch: {reason}"})


def shard_model(model: torch.nn.Module, runtime: Runtime) -> None:
    """Do to a model what has to be done before Accelerate prepares it: spread, split or divide its layers and shard it,
    if that is asked for.

    Raises:
        UserError: the model can't be sharded in the way that the launch configuration asks for.
    """
    strategy = runtime.strategy
    check_compiles(model, strategy)
    if strategy.devices > 1:
        spread_layers(model, runtime.devices)
    if strategy.checkpoint_activations:
        checkpoint_activations(model)
    if strategy.zero is not None:
        check_model(model)
    if strategy.sharded:
        check_units(model)
    if strategy.tensor > 1:
        split_layers(model, runtime.mesh["tp"])
    if strategy.stages > 1:
        divide(model, runtime)
    if strategy.sharded:
        mesh, plugin = runtime.sharding_mesh, runtime.accelerator.state.fsdp_plugin
        if strategy.built_by_main:
            shard_from_main(model, lambda model: shard(model, mesh, plugin), runtime)
        else:
            shard(model, mesh, plugin)
