"""What a run is going to do, and what looks like a mistake in it: shown before the first step."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from math import prod

import numpy as np
import torch

from toolkit.checkpoint.staging import in_bytes
from toolkit.config.learning_rates import about_rate, trained, unusual_rate
from toolkit.data.micro_batches import accumulation
from toolkit.distributed.fsdp import units
from toolkit.distributed.start_runtime import usable_cores
from toolkit.models.parameters import (
    canonical,
    held_of,
    layer_numbers,
    layer_stacks,
    parameter_names,
    size_of,
    weights_of,
)
from toolkit.optimizer import kept_bytes
from toolkit.output.console import amount
from toolkit.schedules import in_words, warmup_steps
from toolkit.train_state import TrainState

TORCHRUN_GRACE = 30.0
NAMED = 8
LOWER_IS_BETTER = {"loss", "perplexity", "bits_per_byte", "rmse", "mse", "mae"}
LOWER_IS_BETTER |= {"wer", "cer", "ter", "log_loss", "brier"}
HIGHER_IS_BETTER = re.compile(
    r"(?:^|_)(?:accuracy|f1|precision|recall|exact_match|bleu|chrf|meteor|rouge\w*|mrr|ndcg|map|auc|triplets|pearson|"
    r"spearman|matthews\w*)(?:$|[_@])"
)
"""The names of metrics whose direction is known. There is no warning of others, such as a task's own or a reward."""


def plan(state: TrainState) -> dict[str, str]:
    """Return what is going to happen, line by line, before any of it does."""
    task, config, runtime = state.task, state.config, state.runtime
    size, processes = config.batch.size, runtime.data_parallel_size
    sampler = state.sampler
    fewest = accumulation(size, processes, sampler.micro)
    by_length = config.batch.balance and task.data.train.lengths(np.zeros(1, dtype=np.int64)) is not None
    parameters = list(state.model.parameters())
    trainable = sum(size_of(p) for p in parameters if p.requires_grad)
    optim = config.optim
    held_out = (
        f", {len(task.data.evaluate):,} for evaluation" if task.data.evaluate is not None else ", none for evaluation"
    )
    summary = {**task.summary, **task.data.summary}
    summary["samples"] = f"{len(task.data.train):,} for training{held_out}"
    group = "process(es)" if runtime.strategy.together == 1 else f"group(s) of {runtime.strategy.together} processes"
    summary["global batch"] = (
        f"{size} = {processes} {group} x {fewest} micro-batch(es) of about {amount(size / processes / fewest)}"
    )
    if sampler.tokens is not None:
        summary["global batch"] = (
            f"{size} over {processes} {group}, at most {sampler.tokens:,} tokens at once in each"
            + (f" and at most {sampler.micro:,} samples" if sampler.micro else "")
        )
    if config.batch.micro == "auto":
        summary["global batch"] += ", which was found to fit into memory"
    if by_length:
        finer = ""
        if sampler.call_cost is not None:
            finer = (
                f", and into more where that saves padding (a further pass costs about {sampler.call_cost:,} tokens)"
            )
        summary["global batch"] += f", cut by length{finer}"
    epochs = amount(state.total_steps / state.steps_per_epoch)
    summary["steps"] = (
        f"{state.total_steps:,} ({epochs} epochs of {state.steps_per_epoch:,}), "
        f"evaluation every {config.evaluate.every or state.steps_per_epoch:,}"
        + (f", {config.batch.evaluated:,} samples at once in each process" if task.data.evaluate is not None else "")
    )
    if state.first_step:
        summary["steps"] += f"; {state.first_step:,} are done, {state.total_steps - state.first_step:,} are left"
    summary["checkpoints"] = checkpoint_line(state)
    if state.task.data.evaluate is not None:
        summary["saved"] = (
            f"the weights of the evaluation with the {config.checkpoint.best}"
            if config.exports_best
            else "the weights after the last step"
        )
        if config.evaluate.patience is not None:
            summary["saved"] += f"; the run ends after {config.evaluate.patience} evaluation(s) without a better one"
    summary["optimizer"] = (
        f"{optim.name}, {about_rate(config)}, {warmup_steps(optim, state.total_steps):,} warm-up steps, "
        f"then {in_words(optim, state.total_steps)}; weight decay {optim.weight_decay:g}, clip "
        f"{optim.clip if optim.clip is not None else 'off'}"
    )
    if optim.layer_decay is not None:
        summary["layers"] = layers_line(runtime.accelerator.unwrap_model(state.model), optim.layer_decay)
    if optim.average is not None:
        which = "averages are" if config.exports_average else "the weights themselves are"
        summary["average"] = f"of the weights, decay {optim.average:g}; {which} evaluated and saved"
    module = runtime.accelerator.unwrap_model(state.model)
    kinds = {(held_of(module, p) if p.requires_grad else p).dtype for p in parameters}  # type: ignore[union-attr]
    dtypes = ", ".join(sorted(str(kind).removeprefix("torch.") for kind in kinds))
    summary["parameters"] = f"{sum(size_of(p) for p in parameters):,} ({trainable:,} trainable), {dtypes}"
    if state.unused:
        module = runtime.accelerator.unwrap_model(state.model)
        size = sum(size_of(p) for p, name in parameter_names(module).items() if name in state.unused)
        parts = named(parts_of(module, state.unused))
        summary["frozen"] = (
            f"{len(state.unused)} tensor(s) of {size:,} parameters that this task leaves unused: {parts}"
        )
    summary["device"] = f"{runtime.device.type}, mixed precision {runtime.precision}" + (
        f", {runtime.threads} thread(s) per process"
        if runtime.device.type == "cpu" or runtime.strategy.offloaded or config.threads is not None
        else ""
    )
    if task.data.workers:
        summary["workers"] = f"{task.data.workers} per process fetch and collate"
    if runtime.size > 1 or runtime.strategy.is_sharded or runtime.strategy.devices > 1:
        summary["strategy"] = runtime.strategy.description
    if runtime.strategy.sharded:
        summary["strategy"] += f", in {units(state.model)} unit(s) that are gathered one after another"
    if compressed := about_gradients(state):
        summary["gradients"] = compressed
    if state.changing_buffers and runtime.keeps_gradients:
        summary["buffers"] = (
            f"{len(state.changing_buffers)} change in training ({state.changing_buffers[0]}, ...): those of the main "
            "process are sent before every forward pass"
        )
    summary["launch file"] = runtime.launch.description
    for part in state.model.modules():
        summary |= getattr(part, "plan_remarks", {})
    if state.sampler.packed:
        summary["packing"] = "without padding: inside the model the texts of a micro-batch lie end to end"
    if state.drawn_by_topology:
        summary["note"] = (
            f"what is random in {named(state.drawn_by_topology)} is not drawn for each sample, so numbers repeat on "
            "the same topology only"
        )
    elif dropout := active_dropout(state.model):
        summary["dropout"] = f"up to {dropout:g}, drawn for each sample: the same on any topology"
    norms = batch_norms(state.model)
    if norms:
        summary["batch norm"] = (
            f"{len(norms)} layer(s) in training mode ({norms[0]}, ...): their statistics depend on how the batch is "
            "cut, so numbers differ between topologies"
        )
    return summary


def layers_line(model: torch.nn.Module, decay: float) -> str:
    """Say which layers have which rate, so that a model which holds its parts in another order is noticed."""
    stacks, numbers, names = layer_stacks(model), layer_numbers(model), parameter_names(model)
    trained = {names[parameter]: number for parameter, number in numbers.items() if parameter.requires_grad}
    lowest, highest = (
        named(parts_of(model, [name for name, number in trained.items() if number == end]))
        for end in (min(trained.values()), max(trained.values()))
    )
    return (
        f"{sum(map(len, stacks.values()))} in {named(list(stacks))}, the rate of each {decay:g} of that of the one "
        f"above; the highest for {highest}, the lowest for {lowest}"
    )


def checkpoint_line(state: TrainState) -> str:
    """Say how often a checkpoint is written, what it costs, and what stops the run."""
    config = state.config.checkpoint
    size = state_bytes(state)
    every = config.every or state.steps_per_epoch
    runtime = state.runtime
    parts = runtime.strategy.shard * runtime.strategy.together
    if parts == 1:
        copies = f"their copy in the memory of the main process takes {in_bytes(size)} more"
    else:
        copies = f"{parts} processes write a part each, whose copy in memory takes about {in_bytes(size // parts)} more"
    kept = f"the newest {max(1, config.keep)} and the one with the {config.best} are kept"
    if config.keep == 0:
        kept += " until the run is finished, and then none"
    line = f"every {every:,} steps, {in_bytes(size)} each; {kept}; {copies}"
    # torchrun, which `accelerate launch` uses for several processes, kills 30 s after it has sent SIGTERM.
    if config.grace is not None and config.grace > TORCHRUN_GRACE and "TORCHELASTIC_RUN_ID" in os.environ:
        line += (
            f". Warning: checkpoint.grace is {config.grace:g} s, but this launcher kills {TORCHRUN_GRACE:g} s after "
            "its SIGTERM"
        )
    return line


def about_gradients(state: TrainState) -> str | None:
    """Say how gradients are sent, if they are compressed."""
    if state.power_sgd is not None:
        sent, whole = state.power_sgd.sent, state.power_sgd.whole
        return (
            f"PowerSGD of rank {state.config.batch.compress_rank}: {sent:,} numbers stand for {whole:,} in each step, "
            "and what they leave out is added to the next one; the same on any number of processes"
        )
    if state.config.batch.compress == "bf16":
        if state.runtime.size == 1:
            return "batch.compress bf16 rounds nothing here, where one process sends nothing; several would round"
        return "rounded to bf16 by each process, and summed so: numbers differ between topologies by that rounding"
    return None


def state_bytes(state: TrainState) -> int:
    """Return the size of weights and optimizer state together: what a checkpoint and its copy in memory take."""
    tensors = weights_of(state.runtime.accelerator.unwrap_model(state.model)).values()
    kept = kept_bytes(state.config.optim, state.optimizer.optimizer)
    unsent = sum(t.numel() * t.element_size() for t in state.power_sgd.matrices) if state.power_sgd else 0
    return sum(prod(held.shape) * held.dtype.itemsize for held in tensors) + kept + unsent


def parts_of(model: torch.nn.Module, chosen: Iterable[str]) -> list[str]:
    """Return parameters in the largest parts of a model that consist of them; `*` stands for the number of a layer."""
    names, chosen = parameter_names(model), set(chosen)
    left = {parameter for parameter in model.parameters() if names[parameter] in chosen}
    found = []
    for part, module in model.named_modules():  # the outer ones come first
        inside = set(module.parameters())
        if inside and inside <= left:
            found.append(canonical(part))
            left -= inside
    found += [names[parameter] for parameter in model.parameters() if parameter in left]
    return list(dict.fromkeys(re.sub(r"\.\d+(?=\.|$)", ".*", name) for name in found))


def named(names: Sequence[str]) -> str:
    """Return some of the names in words."""
    return ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")


def batch_norms(model: torch.nn.Module) -> list[str]:
    """Return the names of batch-norm layers that are in training mode: their statistics depend on the cut."""
    return [
        name
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm) and module.training
    ]


def active_dropout(model: torch.nn.Module) -> float:
    """Return the largest dropout probability in the model, as far as its layers tell."""
    features = [m.p for m in model.modules() if isinstance(m, torch.nn.modules.dropout._DropoutNd)]
    # What calls dropout as a function keeps its rate under one of these names; the last leaves out whole branches of
    # some samples (stochastic depth).
    names = ("dropout", "attention_dropout", "drop_prob")
    functions = [rate for m in model.modules() for name in names if isinstance(rate := getattr(m, name, None), float)]
    return max([*features, *functions], default=0.0)


def warnings_of(state: TrainState) -> list[str]:
    """Return what looks like a mistake before the first step, a sentence each."""
    config, data, found = state.config, state.task.data, []
    samples, warmup = len(data.train), warmup_steps(config.optim, state.total_steps)
    if config.batch.size > samples:
        found.append(
            f"the global batch ({config.batch.size:,} samples, batch.size) is larger than the training data "
            f"({samples:,}), so that each step sees all of it; give a smaller one for more steps"
        )
    if warmup >= state.total_steps > 1:
        found.append(
            f"the warm-up takes {warmup:,} steps (optim.warmup) and the run {state.total_steps:,}, so that the "
            f"learning rate never reaches {config.optim.rate:g}; give a shorter warm-up, or more epochs"
        )
    if unusual := unusual_rate(config.optim.rate, trained(config), config.optim.name):
        found.append(unusual)
    cores, local, threads = usable_cores(), int(os.environ.get("LOCAL_WORLD_SIZE", "1")), state.runtime.threads
    if data.workers * local > cores:
        found.append(
            f"data.workers is {data.workers}, and {local} process(es) with so many each share {cores} usable core(s) "
            f"of this machine, so that they wait for each other; give {cores // local}"
        )
    if state.runtime.device.type == "cpu" and local * threads > cores:
        found.append(
            f"{local} process(es) with {threads} thread(s) each share {cores} usable core(s) of this machine and will "
            f"wait for each other; start at most {cores}, with one thread each"
        )
    return found


def worse_than(baseline: Mapping[str, float], metrics: Mapping[str, float]) -> str | None:
    """Return a warning of the metrics in which a model is worse than the trivial baseline, if there are any."""
    worse = []
    for name, trivial in baseline.items():
        ahead = metrics.get(name, trivial) - trivial
        if ahead > 0 if name in LOWER_IS_BETTER else ahead < 0 and HIGHER_IS_BETTER.search(name):
            worse.append(f"{name} ({metrics[name]:.4f} against {trivial:.4f})")
    if not worse:
        return None
    return (
        f"the model is worse than the trivial baseline in {', '.join(worse)}; look at the loss in ledger.jsonl and at "
        "some predictions, and try another optim.lr or more epochs"
    )
