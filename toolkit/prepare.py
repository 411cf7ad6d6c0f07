"""From a task to something that can be trained: model, optimizer and loader, prepared by Accelerate."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, takewhile
from typing import Any

import numpy as np
import torch
from accelerate.optimizer import AcceleratedOptimizer
from torch.nn.parallel import DistributedDataParallel

from toolkit.attention import watch_attention
from toolkit.checkpoint.sharded import whole_weights
from toolkit.config.learning_rates import with_learning_rate
from toolkit.config.schema import Config
from toolkit.data.loader import MicroBatches, MicroBatchSampler, build_loader, longest_samples
from toolkit.data.micro_batches import Limits, MicroBatch, accumulation
from toolkit.data.order import ShuffledOrder
from toolkit.distributed.compression import PowerSGD, compress_sent, unfit_for
from toolkit.distributed.fsdp import check_units, checkpoint_activations, shard
from toolkit.distributed.memory import OutOfMemoryError
from toolkit.distributed.model_from_main import build_on_main, shard_from_main
from toolkit.distributed.phase import PREPARING
from toolkit.distributed.preflight import compare_data, compare_models, digests_of_data
from toolkit.distributed.runtime import Runtime
from toolkit.distributed.tensor_parallel import split_layers
from toolkit.dropout import know_samples
from toolkit.errors import SharedUserError, UserError
from toolkit.models.changes import remark
from toolkit.models.compiled import as_written, check_compiles, is_compiled
from toolkit.models.parameters import digest_of_frozen, freeze, parameter_names
from toolkit.optimizer import begin_averages, build_optimizer, check_layers
from toolkit.output.run_folder import RunFolder
from toolkit.packing import take_padding_out
from toolkit.randomness import seed_for
from toolkit.rehearsal.end_of_run import Unknown, results_for_export, try_export
from toolkit.rehearsal.few_samples import Seen, try_few_samples
from toolkit.rehearsal.first_batch import try_compiled, try_first_batch
from toolkit.rehearsal.loss_is_a_sum import check_loss_rule
from toolkit.rehearsal.micro_batch_size import WhatFits, call_cost, does_not_fit, find_limits
from toolkit.schedules import total_steps
from toolkit.task import GlobalBatchLoss, Task
from toolkit.train_state import TrainState


@dataclass(frozen=True)
class Prepared:
    """What a training is made of, once Accelerate has prepared it."""

    model: torch.nn.Module
    optimizer: AcceleratedOptimizer
    loader: Any
    frozen: str | None
    """The digest of the weights that are not trained, in the main process."""
    saved_bytes: int = 0
    """What the saved model takes on the disk, where it was tried, in the main process."""


def prepare(
    task: Task,
    config: Config,
    runtime: Runtime,
    first_step: int = 0,
    unused: Sequence[str] = (),
    folder: RunFolder | None = None,
    limits: Limits | None = None,
    known_cost: int | None = None,
) -> TrainState:
    """Build the model and everything around it, and try one micro-batch without changing anything.

    Weights and optimizer are those of the beginning.

    Args:
        task: what is trained.
        config: how.
        runtime: where.
        first_step: the loader begins there.
        unused: parameters that an earlier start of this run has found to be unused, and frozen.
        folder: the export of the model is tried there, and the loss is held against its rule; None tries neither.
        limits: what this run has found to fit into memory before, where `batch` alone does not say it.
        known_cost: what a pass through the model cost when this run began, in elements: with the same cut sums are
            rounded in the same way.

    Raises:
        UserError: the configuration does not fit the data or the number of processes, or the model can't be trained.
    """
    config = with_learning_rate(config)
    # Once per machine: it may mean to read all of the data.
    reads = runtime.accelerator.is_local_main_process
    digests = runtime.together(lambda: digests_of_data(task) if reads else {})
    compare_data(runtime.gather_all, task, digests)
    runtime.together(lambda: check_fit(task, config, runtime))
    order = ShuffledOrder(len(task.data.train), config.batch.size, config.seed)
    total = total_steps(config, len(task.data.train))
    sampler = MicroBatchSampler(
        order,
        task.data.train,
        runtime.data_parallel_size,
        total,
        first=first_step,
        # How many fit is tried on the model; until then one at a time does.
        micro=1 if config.batch.micro == "auto" else limits.samples if limits else config.batch.samples,
        tokens=limits.tokens if limits else config.batch.micro_tokens,
        balance=config.batch.balance,
    )
    loader = build_loader(sampler, task, config.seed, order.steps_per_epoch, pinned=runtime.has_own_memory)
    built = build_and_prepare(task, config, runtime, loader, unused, folder)
    warnings: list[str] = []
    seen = Seen([], packs=False)
    what_fits: WhatFits | None = None
    changing_buffers: list[str] = []
    mine = islice(sampler, runtime.data_parallel_rank, None, runtime.data_parallel_size)
    plans = list(takewhile(lambda plan: plan.step == first_step, mine))
    if plans:  # none where all steps were done before this start
        batches = MicroBatches(task.data.train, task, config.seed, order.steps_per_epoch)
        try:
            with as_written(built.model):
                tried = try_first_batch(task, runtime, built.model, batches, plans, begins=first_step == 0)
        except OutOfMemoryError as error:
            if config.batch.micro != "auto":
                raise
            raise SharedUserError(does_not_fit(task, config, runtime, str(error))) from None
        if found := tried.unused:
            # Begun again, as if that had been known: distributed data parallel counts the gradients that it waits for
            # when it wraps a model, and the digest of frozen weights needs them whole. The first model goes before.
            unused, saved_bytes = sorted({*unused, *found}), built.saved_bytes
            del built
            runtime.accelerator.free_memory()
            runtime.phase(PREPARING, patient=True)
            built = replace(build_and_prepare(task, config, runtime, loader, unused), saved_bytes=saved_bytes)
        changing_buffers = tried.changing_buffers
        if isinstance(built.model, DistributedDataParallel):
            built.model.broadcast_buffers = bool(changing_buffers)
        with as_written(built.model):
            seen = try_few_samples(task, runtime, built.model, batches, order.global_batch(first_step))
        if is_compiled(built.model):
            try_compiled(task, runtime, built.model, batches, plans[0])
        what_fits, plans = settle_cut(task, config, runtime, built, batches, sampler, seen, known_cost)
        if what_fits is not None and what_fits.limits != Limits():
            # What fits with gradients fits without them.
            at_once = config.batch.eval or min(what_fits.samples, config.batch.evaluated)
            config = replace(config, batch=replace(config.batch, eval=at_once))
        if (
            folder is not None
            and not isinstance(task.loss, GlobalBatchLoss)
            and (warning := check_loss_rule(task, runtime, built.model, batches, plans[0]))
        ):
            warnings.append(warning)
        runtime.phase(PREPARING, patient=True)
    digests = runtime.on_main(lambda: digests)
    power_sgd = None
    if config.batch.compress == "powersgd":
        names = parameter_names(runtime.accelerator.unwrap_model(built.model))
        power_sgd = PowerSGD(
            built.optimizer.optimizer, names, config.batch.compress_rank, config.seed, runtime.data_parallel_size
        )
    return TrainState(
        task,
        config,
        runtime,
        built.model,
        built.optimizer,
        built.loader,
        order,
        total,
        first_step,
        sampler=sampler,
        data=digests,
        frozen=built.frozen,
        unused=unused,
        drawn_by_topology=seen.random,
        packs=seen.packs,
        saved_bytes=built.saved_bytes,
        changing_buffers=changing_buffers,
        power_sgd=power_sgd,
        warnings=warnings,
        remember_limits=what_fits.remember if what_fits is not None else None,
        step=first_step,
    )


def settle_cut(
    task: Task,
    config: Config,
    runtime: Runtime,
    built: Prepared,
    batches: MicroBatches,
    sampler: MicroBatchSampler,
    seen: Seen,
    known_cost: int | None,
) -> tuple[WhatFits | None, list[MicroBatch]]:
    """Tell the sampler what decides how global batches are cut: padding, memory, and what a pass through the model
    costs. Return what fits into memory, where that was tried, and this process's micro-batches of its first step.

    Raises:
        SharedUserError: the model is to compute without padding and can't, or not even one sample fits.
    """
    if config.batch.pack == "always" and not seen.packs:
        raise SharedUserError(
            "batch.pack is always, but the task's batches do not say how long their rows are "
            "(toolkit.batch_layout.note_padding), so that padding can't be taken out; leave it out"
        )
    sampler.packed, what_fits, step = seen.packs, None, sampler.first
    if config.batch.micro == "auto":
        optimizer = built.optimizer.optimizer
        what_fits = find_limits(task, config, runtime, built.model, optimizer, batches, sampler, step)
        sampler.micro, sampler.tokens = what_fits.limits.samples, what_fits.limits.tokens
    plans = sampler.of_step(step)[runtime.data_parallel_rank :: runtime.data_parallel_size]
    if config.batch.balance and not sampler.packed:
        sampler.call_cost = known_cost or call_cost(task, config, runtime, built.model, batches, plans)
    return what_fits, plans


def build_and_prepare(
    task: Task,
    config: Config,
    runtime: Runtime,
    loader: Any,
    unused: Sequence[str],
    folder: RunFolder | None = None,
) -> Prepared:
    """Build the model, shard it, and have Accelerate prepare it; with a `folder` its export is tried there before."""
    model = runtime.together(lambda: build_model(task, config, runtime, unused))
    compare_models(runtime.gather_all, model, runtime.strategy.keeps_own_values)
    # Before the weights are sharded: here the main process holds all of them.
    saved_bytes = 0
    if folder is not None and task.export is not None:
        export, results = task.export, results_for_export(task, config, Unknown(loss=0.0), Unknown(), 0)
        saved_bytes, intact = runtime.on_main(lambda: try_export(export, model, folder, results))
        if not intact:
            kept = None if runtime.is_main else model
            del model  # before another one is built: two may be more than the memory takes
            model = runtime.together(lambda: build_model(task, config, runtime, unused) if kept is None else kept)
    frozen = digest_of_frozen(model) if runtime.is_main else None
    runtime.together(lambda: check_layers(config.optim, model))
    runtime.together(lambda: shard_model(model, runtime), talking=True)
    return Prepared(*prepare_together(model, config, loader, runtime), frozen, saved_bytes)


def shard_model(model: torch.nn.Module, runtime: Runtime) -> None:
    """Do to a model what has to be done before Accelerate prepares it: split its layers and shard it, if that is asked
    for.

    Raises:
        UserError: the model can't be sharded in the way that the launch configuration asks for.
    """
    strategy = runtime.strategy
    check_compiles(model, strategy)
    if strategy.checkpoint_activations:
        checkpoint_activations(model)
    if strategy.sharded:
        check_units(model)
    if strategy.tensor > 1:
        split_layers(model, runtime.mesh["tp"])
    if strategy.sharded:
        mesh, plugin = runtime.sharding_mesh, runtime.accelerator.state.fsdp_plugin
        if strategy.built_by_main:
            shard_from_main(model, lambda model: shard(model, mesh, plugin), runtime)
        else:
            shard(model, mesh, plugin)


def prepare_together(
    model: torch.nn.Module, config: Config, loader: Any, runtime: Runtime
) -> tuple[torch.nn.Module, AcceleratedOptimizer, Any]:
    """Return model, optimizer (over the shards of the weights) and loader as Accelerate prepares them."""
    accelerator = runtime.accelerator
    if runtime.strategy.sharded:
        # Accelerate takes a sharded model only beside an optimizer, whose parameters it would look up by their
        # addresses in memory: empty shards all have the same. It gets an empty one, which is thrown away.
        placeholder = torch.optim.SGD([{"params": []}], lr=0.0)
        model, placeholder, loader = accelerator.prepare(model, placeholder, loader)
        accelerator._optimizers.remove(placeholder)
        optimizer = accelerator.prepare_optimizer(build_optimizer(config.optim, model, runtime.precision))
    else:
        model, optimizer, loader = accelerator.prepare(
            model,
            build_optimizer(config.optim, model, runtime.precision),
            loader,
            device_placement=[True, True, False],
        )
    begin_averages(optimizer.optimizer)
    compress_sent(model, config.batch.compress)
    return model, optimizer, loader


def prepare_for_evaluation(task: Task, config: Config, runtime: Runtime) -> torch.nn.Module:
    """Build the model, prepared for evaluation alone.

    Raises:
        UserError: it can't be built, or not be sharded as the launch configuration asks for.
    """
    model = runtime.together(lambda: build_model(task, config, runtime))
    compare_models(runtime.gather_all, model, runtime.strategy.keeps_own_values)
    runtime.together(lambda: shard_model(model, runtime), talking=True)
    if runtime.strategy.sharded:
        return model  # as Accelerate would leave it
    prepared: torch.nn.Module = runtime.accelerator.prepare(model)
    return prepared


def whole_model(state: TrainState) -> torch.nn.Module | None:
    """Return the trained model whole, for export: in the main process; None in the others where it is sharded.

    All processes call it together. A sharded model is built once more in the main process, whole, and given the
    trained weights.
    """
    runtime, task = state.runtime, state.task
    if not runtime.strategy.is_sharded:
        module: torch.nn.Module = runtime.accelerator.unwrap_model(state.model)
        return module
    trained = whole_weights(state.model, runtime)
    if not runtime.is_main:
        return None
    model = build_model(task, state.config, runtime, state.unused)
    places = model.state_dict(keep_vars=True)
    filled = {id(places[name]) for name in trained}
    missing = [name for name, place in places.items() if id(place) not in filled]
    if missing:
        raise RuntimeError(f"the trained model has nothing for {', '.join(missing)}")
    model.load_state_dict(trained, strict=False)
    return model


def build_model(task: Task, config: Config, runtime: Runtime, unused: Sequence[str] = ()) -> torch.nn.Module:
    """Return the task's module in training mode, new weights drawn from the seed alone, and `unused` ones frozen."""
    runtime.seed(seed_for(config.seed, "new weights"))
    model = build_on_main(lambda: task.model(runtime), runtime).train()
    know_samples(model)
    watch_attention()
    pack_rows(model, task, config)
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


def pack_rows(model: torch.nn.Module, task: Task, config: Config) -> None:
    """Have a model compute without padding where it can; otherwise the plan says why not.

    Raises:
        UserError: it can't, and `batch.pack` is always.
    """
    if config.batch.pack == "never":
        return
    reason = take_padding_out(model)
    if reason is not None and config.batch.pack == "always":
        raise UserError(f"batch.pack is always, but this model can't compute without padding: {reason}; leave it out")
    if reason is not None and task.data.train.lengths(np.zeros(1, dtype=np.int64)) is not None:
        remark(model, {"packing": f"padded to the longest text of a micro-batch: {reason}"})


def check_fit(task: Task, config: Config, runtime: Runtime) -> None:
    """Hold the configuration against the data and the processes.

    Raises:
        UserError: they do not fit.
    """
    problems = []
    size, processes = config.batch.size, runtime.data_parallel_size
    if len(task.data.train) == 0:
        problems.append("there is no training sample")
    if processes > size:
        apart = "" if runtime.strategy.tensor == 1 else f" in {processes} groups that see different samples"
        problems.append(
            f"{runtime.size} processes were started{apart}, but the global batch has only {size} sample(s) "
            "(batch.size); start at most that many processes or enlarge the batch"
        )
    problems += problems_of_tokens(task, config, runtime)
    problems += unfit_for(config.batch.compress, runtime.strategy, runtime.precision)
    derived = accumulation(size, processes, config.batch.samples)
    asked = runtime.launch.accumulation
    if asked is not None and (config.batch.micro == "auto" or config.batch.micro_tokens is not None):
        given = f"batch.micro {config.batch.micro}, batch.micro_tokens {config.batch.micro_tokens or 'not set'}"
        problems.append(
            f"the launch configuration sets gradient_accumulation_steps to {asked}, but with {given} their number is "
            "found by the toolkit and changes from step to step; remove it there"
        )
    elif asked not in (None, derived):
        problems.append(
            f"the launch configuration sets gradient_accumulation_steps to {asked}, but a global batch of {size} over "
            f"{processes} process(es) with batch.micro {config.batch.micro or 'not set'} takes {derived}; remove it "
            "there, the toolkit derives it"
        )
    if runtime.strategy.offloaded and config.optim.name in ("adafactor", "muon"):
        problems.append(
            f"optim.name is {config.optim.name}, which gathers whole matrices on the device, and the launch "
            "configuration offloads the weights to the host (fsdp_offload_params); set that to false, or take adamw"
        )
    if problems:
        raise UserError(*problems)


def problems_of_tokens(task: Task, config: Config, runtime: Runtime) -> Iterator[str]:
    """Yield why micro-batches can't be bounded as they are asked to be."""
    batch = config.batch
    if batch.micro == "auto" and runtime.size > 1 and runtime.strategy.is_sharded:
        yield (
            f"batch.micro is auto, and the launch configuration asks for {runtime.strategy.description}: its processes "
            "exchange weights in each layer, so that none could try alone what fits; give a number, or "
            "batch.micro_tokens"
        )
    if batch.micro_tokens is None or len(task.data.train) == 0:
        return
    ids, lengths = longest_samples(task.data.train, 1)
    if lengths is None:
        yield (
            f"batch.micro_tokens is {batch.micro_tokens}, but the samples of this task have no length; give batch.micro"
        )
    elif lengths[0] > batch.micro_tokens:
        shorter = ", or ".join(
            f"a smaller data.{name}"
            for name in ("max_length", "max_target_length", "block")
            if getattr(getattr(config, "data", None), name, None) is not None
        )
        yield (
            f"batch.micro_tokens is {batch.micro_tokens:,}, but the longest training sample (id {ids[0]}) has "
            f"{lengths[0]:,} tokens; give --batch.micro_tokens {lengths[0]} or more"
            + (f", or {shorter}" if shorter else "")
        )


def limits_found(saved: Mapping[str, Any], config: Config) -> Limits | None:
    """Return from a checkpoint's state what the run has found to fit into memory; None if it is told now how to cut
    batches."""
    settings = saved.get("config", {}).get("batch", {})
    same = all(settings.get(name) == getattr(config.batch, name) for name in ("micro", "micro_tokens", "balance"))
    if not same or "micro" not in saved or config.batch.micro == "auto":
        return None
    return Limits(**saved["micro"])
