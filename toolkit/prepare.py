"""From a task to something that can be trained: model, optimizer and loader, prepared by Accelerate."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from accelerate.data_loader import prepare_data_loader
from accelerate.optimizer import AcceleratedOptimizer
from torch.nn.parallel import DistributedDataParallel

from toolkit.checkpoint.sharded import whole_weights
from toolkit.config.learning_rates import with_learning_rate
from toolkit.config.schema import Config
from toolkit.data.loader import MicroBatches, MicroBatchSampler, build_loader
from toolkit.data.micro_batches import Limits, MicroBatch
from toolkit.data.order import Ids, ShuffledOrder
from toolkit.distributed.compression import PowerSGD, compress_sent
from toolkit.distributed.memory import OutOfMemoryError
from toolkit.distributed.phase import PREPARING
from toolkit.distributed.preflight import compare_data, compare_models, digests_of_data
from toolkit.distributed.runtime import Runtime
from toolkit.distributed.zero import compute_in_bf16, prepare_with_engine
from toolkit.errors import SharedUserError
from toolkit.models.build import build_model, shard_model
from toolkit.models.compiled import as_written, is_compiled
from toolkit.models.parameters import attach_masters, digest_of_frozen, parameter_names
from toolkit.optimizer import begin_averages, build_optimizer, check_layers
from toolkit.output.run_folder import RunFolder
from toolkit.rehearsal.end_of_run import UNTRAINED, results_for_export, try_export
from toolkit.rehearsal.few_samples import Seen, try_few_samples
from toolkit.rehearsal.first_batch import FirstBatch, try_compiled, try_first_batch
from toolkit.rehearsal.loss_is_a_sum import check_loss_rule
from toolkit.rehearsal.micro_batch_size import WhatFits, does_not_fit
from toolkit.rehearsal.settings_fit import check_fit
from toolkit.rehearsal.settled_cut import KnownCut, own_plans, settle_cut
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


@dataclass(frozen=True)
class Tried:
    """What was found by trying a model before the first step, the same in every process."""

    config: Config
    """The settings; those that were to be found are set."""
    seen: Seen = field(default_factory=lambda: Seen([], packs=False))
    fits: WhatFits | None = None
    """What fits into memory at once, where that was tried."""
    warnings: list[str] = field(default_factory=list)


def prepare(
    task: Task,
    config: Config,
    runtime: Runtime,
    first_step: int = 0,
    unused: Sequence[str] = (),
    folder: RunFolder | None = None,
    known: KnownCut | None = None,
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
        known: what this run has found before of how its batches are cut.

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
    known = known or KnownCut()
    limits, processes = known.limits_at_first(config), runtime.data_parallel_size
    sampler = MicroBatchSampler(
        order,
        task.data.train,
        processes,
        total,
        first=first_step,
        micro=limits.samples,
        tokens=limits.tokens,
        balance=config.batch.balance,
    )
    loader = build_loader(sampler, task, config.seed, order.steps_per_epoch, pinned=runtime.has_own_memory)
    batches = MicroBatches(task.data.train, task, config.seed, order.steps_per_epoch)
    built = build_and_prepare(task, config, runtime, loader, unused, folder)
    changing_buffers: list[str] = []
    tried = Tried(config)
    if first_step < total:  # otherwise all steps were done before this start
        found = first_batch(task, config, runtime, built.model, batches, own_plans(sampler, runtime))
        if found.unused:
            # Begun again, as if that had been known: distributed data parallel counts the gradients that it waits for
            # when it wraps a model, and the digest of frozen weights needs them whole. The first model goes before.
            unused, saved_bytes = sorted({*unused, *found.unused}), built.saved_bytes
            del built
            runtime.accelerator.free_memory()
            runtime.phase(PREPARING, patient=True)
            built = replace(build_and_prepare(task, config, runtime, loader, unused), saved_bytes=saved_bytes)
        changing_buffers = found.changing_buffers
        if isinstance(built.model, DistributedDataParallel):
            built.model.broadcast_buffers = bool(changing_buffers)
        ids = order.global_batch(first_step)
        tried = try_out(task, config, runtime, built, batches, ids, sampler, known, rehearses=folder is not None)
        runtime.phase(PREPARING, patient=True)
    module, optimizer = runtime.accelerator.unwrap_model(built.model), built.optimizer.optimizer
    power_sgd = None
    if config.batch.compress == "powersgd":
        rank = config.batch.compress_rank
        power_sgd = PowerSGD(optimizer, parameter_names(module), rank, config.seed, processes)
    return TrainState(
        task,
        tried.config,
        runtime,
        built.model,
        built.optimizer,
        built.loader,
        order,
        total,
        first_step,
        sampler=sampler,
        data=runtime.on_main(lambda: digests),
        frozen=built.frozen,
        unused=unused,
        drawn_by_topology=tried.seen.random,
        saved_bytes=built.saved_bytes,
        changing_buffers=changing_buffers,
        power_sgd=power_sgd,
        warnings=tried.warnings,
        remember_limits=tried.fits.remember if tried.fits is not None else None,
        step=first_step,
    )


def first_batch(
    task: Task,
    config: Config,
    runtime: Runtime,
    model: torch.nn.Module,
    batches: MicroBatches,
    plans: Sequence[MicroBatch],
) -> FirstBatch:
    """Try this process's micro-batches of the first step; see `try_first_batch`.

    Raises:
        SharedUserError: not even one sample fits into memory, where it was to be found how many do.
    """
    try:
        with as_written(model):
            return try_first_batch(task, runtime, model, batches, plans, begins=plans[0].step == 0)
    except OutOfMemoryError as error:
        if config.batch.micro != "auto":
            raise
        raise SharedUserError(does_not_fit(task, config, runtime, str(error))) from None


def try_out(
    task: Task,
    config: Config,
    runtime: Runtime,
    built: Prepared,
    batches: MicroBatches,
    ids: Ids,
    sampler: MicroBatchSampler,
    known: KnownCut,
    rehearses: bool,
) -> Tried:
    """Find out by a few passes through the model what decides how it is trained, and change nothing of it.

    `ids` are the samples of the first step.

    Raises:
        UserError: it can't be trained as it is asked for.
    """
    model = built.model
    with as_written(model):
        seen = try_few_samples(task, runtime, model, batches, ids)
    check_repeats(config, runtime, seen)
    if is_compiled(model):
        try_compiled(task, runtime, model, batches, own_plans(sampler, runtime)[0])
    optimizer = built.optimizer.optimizer
    fits = settle_cut(task, config, runtime, model, optimizer, batches, sampler, seen.packs, known)
    if fits is not None and fits.limits != Limits():
        # What fits with gradients fits without them.
        at_once = config.batch.eval or min(fits.samples, config.batch.evaluated)
        config = replace(config, batch=replace(config.batch, eval=at_once))
    warning = None
    if rehearses and not isinstance(task.loss, GlobalBatchLoss):
        warning = check_loss_rule(task, runtime, model, batches, own_plans(sampler, runtime)[0])
    return Tried(config, seen, fits, [warning] if warning else [])


def check_repeats(config: Config, runtime: Runtime, seen: Seen) -> None:
    """Refuse what would not draw the same numbers when activations are computed again.

    Torch then sets back the generator of the GPU that a layer was given its input from, which for the first layer on a
    GPU is another one.

    Raises:
        UserError: something in the model draws from a GPU's generator, and is checkpointed on several GPUs.
    """
    again = getattr(getattr(config, "model", None), "checkpoint_activations", False)
    if runtime.strategy.devices > 1 and again and seen.random:
        raise SharedUserError(
            f"model.device_map and model.checkpoint_activations are both given, and {seen.random[0]} draws random "
            "numbers without regard to the samples, which would not be drawn again alike; leave one of them out, or "
            "train without dropout (--model.dropout 0)"
        )


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
        export, results = task.export, results_for_export(task, config, UNTRAINED)
        saved_bytes, intact = runtime.on_main(lambda: try_export(export, model, folder, results))
        if not intact:
            kept = None if runtime.is_main else model
            del model  # before another one is built: two may be more than the memory takes
            model = runtime.together(lambda: build_model(task, config, runtime, unused) if kept is None else kept)
    frozen = digest_of_frozen(model) if runtime.is_main else None
    runtime.together(lambda: check_layers(config.optim, model))
    runtime.together(lambda: shard_model(model, runtime), talking=True)
    return Prepared(*prepare_together(model, config, loader, runtime), frozen, saved_bytes)


def prepare_together(
    model: torch.nn.Module, config: Config, loader: Any, runtime: Runtime
) -> tuple[torch.nn.Module, AcceleratedOptimizer, Any]:
    """Return model, optimizer (over the shards of the weights) and loader as Accelerate prepares them."""
    accelerator = runtime.accelerator
    if runtime.strategy.zero is not None:
        names, module = parameter_names(model), model
        if runtime.precision == "bf16":
            compute_in_bf16(model, runtime.device)
        built = build_optimizer(config.optim, model, runtime.precision)
        model, masters, loader = prepare_with_engine(model, built, loader, accelerator, names)
        attach_masters(module, masters)
        return model, AcceleratedOptimizer(masters, device_placement=False), loader
    if runtime.strategy.sharded:
        # Accelerate takes a sharded model only beside an optimizer, whose parameters it would look up by their
        # addresses in memory: empty shards all have the same. It gets an empty one, which is thrown away.
        placeholder = torch.optim.SGD([{"params": []}], lr=0.0)
        model, placeholder, loader = accelerator.prepare(model, placeholder, loader)
        accelerator._optimizers.remove(placeholder)
        optimizer = accelerator.prepare_optimizer(build_optimizer(config.optim, model, runtime.precision))
    elif runtime.strategy.stages > 1:
        # Accelerate knows no pipeline. It computes in the precision that is asked for; to train, it would wrap each
        # stage for distributed data parallel, and deal out the batch.
        model = accelerator.prepare_model(model, device_placement=False, evaluation_mode=True)
        optimizer = accelerator.prepare_optimizer(build_optimizer(config.optim, model, runtime.precision))
        loader = prepare_data_loader(loader, num_processes=1, process_index=0, put_on_device=False)
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


def prepare_for_evaluation(task: Task, config: Config, runtime: Runtime, unused: Sequence[str] = ()) -> torch.nn.Module:
    """Build the model, prepared for evaluation alone; `unused` parameters are frozen, as a training found them to be.

    Raises:
        UserError: it can't be built, or not be sharded as the launch configuration asks for.
    """
    model = runtime.together(lambda: build_model(task, config, runtime, unused))
    compare_models(runtime.gather_all, model, runtime.strategy.keeps_own_values)
    runtime.together(lambda: shard_model(model, runtime), talking=True)
    if runtime.strategy.zero is not None:
        if runtime.precision == "bf16":
            compute_in_bf16(model, runtime.device)
        return model.to(runtime.device)  # nothing is stepped: it stays whole in each process
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
    module: torch.nn.Module = runtime.accelerator.unwrap_model(state.model)
    if not runtime.strategy.is_sharded:
        return module
    trained = whole_weights(module, runtime)
    if not runtime.is_main:
        return None
    model = build_model(task, state.config, runtime, state.unused)
    places = model.state_dict(keep_vars=True)
    filled = {id(places[name]) for name in trained}
    # Under ZeRO those that are not trained were left out.
    missing = [
        name
        for name, place in places.items()
        if id(place) not in filled and (place.requires_grad or runtime.strategy.zero is None)
    ]
    if missing:
        raise RuntimeError(f"the trained model has nothing for {', '.join(missing)}")
    model.load_state_dict(trained, strict=False)
    return model
