"""From a task to something that can be trained: model, optimizer and loader, prepared by Accelerate."""

import os
from itertools import islice
from typing import Any

import numpy as np
import torch
from accelerate.optimizer import AcceleratedOptimizer

from toolkit.agreement import compare_data, compare_models, digests_of_data
from toolkit.config import Config
from toolkit.console import amount
from toolkit.cut import accumulation
from toolkit.errors import UserError
from toolkit.first_batch import active_dropout, batch_norms, check_first_batch
from toolkit.loading import MicroBatches, MicroBatchSampler, build_loader
from toolkit.model_from_main import build_on_main, shard_from_main
from toolkit.optimizer import begin_averages, build_optimizer
from toolkit.order import ShuffledOrder
from toolkit.randomness import seed_for
from toolkit.restoring import digest_of_frozen, weights_of
from toolkit.runtime import Runtime
from toolkit.schedules import warmup_steps
from toolkit.sharding import check_units, checkpoint_activations, shard, units
from toolkit.spreading import whole_weights
from toolkit.task import JointLoss, Task
from toolkit.tensor_parallel import split_layers
from toolkit.training import Training

# On CPU one more pass through a model costs about as much as so many elements of padding; a GPU is kept waiting by small
# micro-batches, and is given them only where memory demands it.
CALL_COST_ON_CPU = 64
# Running averages of the size of the weights that an optimizer keeps.
AVERAGES = {"adamw": 2, "sgd": 1}
TORCHRUN_GRACE = 30.0


def prepare(task: Task, config: Config, runtime: Runtime, first_step: int = 0) -> Training:
    """Build the model and everything around it, and try one micro-batch without changing anything.

    The loader begins at `first_step`; weights and optimizer are those of the beginning.

    Raises:
        UserError: the configuration does not fit the data or the number of processes, or the model can't be trained.
    """
    # Once per machine: it may mean to read all of the data.
    reads = runtime.accelerator.is_local_main_process
    digests = runtime.together(lambda: digests_of_data(task) if reads else {})
    compare_data(runtime.gather_all, task, digests)
    runtime.together(lambda: check_fit(task, config, runtime))
    order = ShuffledOrder(len(task.train), config.batch.size, config.seed)
    total = config.steps if config.steps is not None else max(1, round((config.epochs or 0) * order.steps_per_epoch))
    model = runtime.together(lambda: build_model(task, config, runtime))
    compare_models(runtime.gather_all, model, runtime.strategy.keeps_own_values)
    # Before the weights are spread: here the main process holds all of them.
    frozen = digest_of_frozen(model) if runtime.is_main else None
    runtime.together(lambda: spread(model, runtime), talking=True)
    sampler = MicroBatchSampler(
        order,
        task.train,
        runtime.data_parallel_size,
        total,
        first=first_step,
        micro=config.batch.micro,
        balance=config.batch.balance,
        # Of a joint loss every further micro-batch costs another forward pass.
        call_cost=CALL_COST_ON_CPU if runtime.device.type == "cpu" and not isinstance(task.loss, JointLoss) else None,
    )
    loader = build_loader(sampler, task, config.seed, order.steps_per_epoch)
    model, optimizer, loader = prepare_together(model, config, loader, runtime)
    mine = next(islice(sampler, runtime.data_parallel_rank, None), None)
    if mine is not None:  # None where all steps were done before this start
        batches = MicroBatches(task.train, task, config.seed, order.steps_per_epoch)
        batch = runtime.together(lambda: batches.__getitems__(mine))
        runtime.together(lambda: check_first_batch(task, runtime, model, batch), talking=True)
    digests = runtime.on_main(lambda: digests)
    return Training(
        task, config, runtime, model, optimizer, loader, order, total, first_step, data=digests, frozen=frozen
    )


def spread(model: torch.nn.Module, runtime: Runtime) -> None:
    """Do to a model what has to be done before Accelerate prepares it: split its layers and shard it, if that is asked for.

    Raises:
        UserError: the model can't be spread in the way that the launch configuration asks for.
    """
    strategy = runtime.strategy
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
    """Return model, optimizer and loader as Accelerate prepares them; the optimizer is over the weights as they are spread."""
    accelerator = runtime.accelerator
    if runtime.strategy.sharded:
        # Accelerate takes a sharded model only beside an optimizer, whose parameters it would look up by their addresses in
        # memory: empty shards all have the same. It gets an empty one, which is thrown away.
        placeholder = torch.optim.SGD([{"params": []}], lr=0.0)
        model, placeholder, loader = accelerator.prepare(model, placeholder, loader)
        accelerator._optimizers.remove(placeholder)
        optimizer = accelerator.prepare_optimizer(build_optimizer(config.optim, model))
    else:
        model, optimizer, loader = accelerator.prepare(
            model, build_optimizer(config.optim, model), loader, device_placement=[True, True, False]
        )
    begin_averages(optimizer.optimizer)
    return model, optimizer, loader


def prepare_for_evaluation(task: Task, config: Config, runtime: Runtime) -> torch.nn.Module:
    """Build the model, prepared for evaluation alone.

    Raises:
        UserError: it can't be built, or not be spread as the launch configuration asks for.
    """
    model = runtime.together(lambda: build_model(task, config, runtime))
    compare_models(runtime.gather_all, model, runtime.strategy.keeps_own_values)
    runtime.together(lambda: spread(model, runtime), talking=True)
    if runtime.strategy.sharded:
        return model  # as Accelerate would leave it
    prepared: torch.nn.Module = runtime.accelerator.prepare(model)
    return prepared


def whole_model(training: Training) -> torch.nn.Module | None:
    """Return the trained model whole, for export: in the main process; None in the others where the model is spread.

    All processes call it together. A spread model is built once more in the main process, as if nothing were to be spread,
    and given the trained weights.
    """
    runtime, task = training.runtime, training.task
    if not runtime.strategy.spreads:
        module: torch.nn.Module = runtime.accelerator.unwrap_model(training.model)
        return module
    trained = whole_weights(training.model, runtime)
    if not runtime.is_main:
        return None
    model = build_model(task, training.config, runtime)
    places = model.state_dict(keep_vars=True)
    filled = {id(places[name]) for name in trained}
    lacking = [name for name, place in places.items() if id(place) not in filled]
    if lacking:
        raise RuntimeError(f"the trained model has nothing for {', '.join(lacking)}")
    model.load_state_dict(trained, strict=False)
    return model


def build_model(task: Task, config: Config, runtime: Runtime) -> torch.nn.Module:
    """Return the task's module, with new weights drawn from the seed alone, in training mode."""
    runtime.seed(seed_for(config.seed, "new weights"))
    model = build_on_main(lambda: task.model(runtime), runtime).train()
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UserError("the model has no trainable parameter; leave at least one with requires_grad")
    dtypes = {parameter.dtype for parameter in model.parameters() if parameter.requires_grad}
    if runtime.precision != "no" and dtypes - {torch.float32}:
        raise UserError(
            f"the launch configuration asks for mixed precision {runtime.precision}, and the weights are "
            f"{', '.join(sorted(str(d).removeprefix('torch.') for d in dtypes))}; mixed precision needs float32 weights: "
            "set model.dtype to float32, or mixed_precision to no in the launch file"
        )
    return model


def check_fit(task: Task, config: Config, runtime: Runtime) -> None:
    """Hold the configuration against the data and the processes.

    Raises:
        UserError: they do not fit.
    """
    problems = []
    size, processes = config.batch.size, runtime.data_parallel_size
    if len(task.train) == 0:
        problems.append("there is no training sample")
    if processes > size:
        apart = "" if runtime.strategy.tensor == 1 else f" in {processes} groups that see different samples"
        problems.append(
            f"{runtime.size} processes were started{apart}, but the global batch has only {size} sample(s) (batch.size); "
            "start at most that many processes or enlarge the batch"
        )
    derived = accumulation(size, processes, config.batch.micro)
    asked = runtime.launch.accumulation
    if asked not in (None, derived):
        problems.append(
            f"the launch configuration sets gradient_accumulation_steps to {asked}, but a global batch of {size} over {processes} "
            f"process(es) with batch.micro {config.batch.micro or 'not set'} takes {derived}; remove it there, the toolkit derives it"
        )
    if problems:
        raise UserError(*problems)


def plan(training: Training) -> dict[str, str]:
    """Return what is going to happen, line by line, before any of it does."""
    task, config, runtime = training.task, training.config, training.runtime
    size, processes = config.batch.size, runtime.data_parallel_size
    fewest = accumulation(size, processes, config.batch.micro)
    by_length = config.batch.balance and task.train.lengths(np.zeros(1, dtype=np.int64)) is not None
    parameters = list(training.model.parameters())
    trainable = sum(p.numel() for p in parameters if p.requires_grad)
    optim = config.optim
    held_out = f", {len(task.evaluate):,} for evaluation" if task.evaluate is not None else ", none for evaluation"
    facts = dict(task.facts)
    facts["samples"] = f"{len(task.train):,} for training{held_out}"
    group = "process(es)" if runtime.strategy.tensor == 1 else f"group(s) of {runtime.strategy.tensor} processes"
    facts["global batch"] = (
        f"{size} = {processes} {group} x {fewest} micro-batch(es) of about {amount(size / processes / fewest)}"
    )
    if by_length:
        finer = ", and into more where that saves padding" if runtime.device.type == "cpu" else ""
        facts["global batch"] += f", cut by length{finer}"
    epochs = amount(training.total_steps / training.steps_per_epoch)
    facts["steps"] = (
        f"{training.total_steps:,} ({epochs} epochs of {training.steps_per_epoch:,}), "
        f"evaluation every {config.evaluate.every or training.steps_per_epoch:,}"
    )
    if training.first_step:
        facts["steps"] += f"; {training.first_step:,} are done, {training.total_steps - training.first_step:,} are left"
    facts["checkpoints"] = checkpoint_facts(training)
    facts["optimizer"] = (
        f"{optim.name}, lr {optim.lr:g}, {warmup_steps(optim, training.total_steps):,} warm-up steps, then {optim.schedule}; "
        f"weight decay {optim.weight_decay:g}, clip {optim.clip if optim.clip is not None else 'off'}"
    )
    dtypes = ", ".join(sorted({str(p.dtype).removeprefix("torch.") for p in parameters}))
    facts["parameters"] = f"{sum(p.numel() for p in parameters):,} ({trainable:,} trainable), {dtypes}"
    facts["device"] = f"{runtime.device.type}, mixed precision {runtime.precision}" + (
        f", {runtime.threads} thread(s) per process" if runtime.device.type == "cpu" else ""
    )
    if runtime.size > 1 or runtime.strategy.spreads:
        facts["strategy"] = runtime.strategy.description
    if runtime.strategy.sharded:
        facts["strategy"] += f", in {units(training.model)} unit(s) that are gathered one after another"
    facts["launch file"] = runtime.launch.description
    dropout = active_dropout(training.model)
    if dropout:
        facts["note"] = f"dropout {dropout:g}: numbers repeat on the same topology only"
    norms = batch_norms(training.model)
    if norms:
        facts["batch norm"] = (
            f"{len(norms)} layer(s) in training mode ({norms[0]}, ...): their statistics depend on how the batch is cut, "
            "so numbers differ between topologies"
        )
    return facts


def checkpoint_facts(training: Training) -> str:
    """Say how often a checkpoint is written, what it costs, and what stops the run."""
    config = training.config.checkpoint
    size = state_bytes(training)
    every = config.every or training.steps_per_epoch
    runtime = training.runtime
    parts = runtime.strategy.shard * runtime.strategy.tensor
    if parts == 1:
        copies = f"their copy in the memory of the main process takes {in_bytes(size)} more"
    else:
        copies = f"{parts} processes write a part each, whose copy in memory takes about {in_bytes(size // parts)} more"
    said = f"every {every:,} steps, {in_bytes(size)} each; the newest {config.keep} and the one with the {config.best} are kept; {copies}"
    # torchrun, which `accelerate launch` uses for several processes, kills 30 s after it has sent SIGTERM.
    if config.grace is not None and config.grace > TORCHRUN_GRACE and "TORCHELASTIC_RUN_ID" in os.environ:
        said += f". Warning: checkpoint.grace is {config.grace:g} s, but this launcher kills {TORCHRUN_GRACE:g} s after its SIGTERM"
    return said


def state_bytes(training: Training) -> int:
    """Return the size of weights and optimizer state together: what a checkpoint and its copy in memory take."""
    tensors = weights_of(training.runtime.accelerator.unwrap_model(training.model)).values()
    trained = sum(t.numel() * t.element_size() for t in tensors if t.requires_grad)
    return sum(t.numel() * t.element_size() for t in tensors) + AVERAGES[training.config.optim.name] * trained


def in_bytes(size: int) -> str:
    """Return a size in kB, MB or GB."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6)):
        if size >= scale:
            return f"{size / scale:,.1f} {unit}"
    return f"{size / 1e3:,.1f} kB"
