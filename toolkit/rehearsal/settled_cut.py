"""How global batches are cut into micro-batches: what is known of it, and what is tried before the first step.

It decides only the speed. What one more pass through the model costs is measured, and remembered on this machine
(`toolkit.data.cache`) for each model, device and precision.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import log2
from time import perf_counter
from typing import Any

import torch

from toolkit.config.schema import Config
from toolkit.data.cache import remember, remembered
from toolkit.data.loader import MicroBatches, MicroBatchSampler
from toolkit.data.micro_batches import Limits, MicroBatch
from toolkit.distributed.runtime import Runtime
from toolkit.errors import SharedUserError
from toolkit.rehearsal.micro_batch_size import WhatFits, find_limits, key_of, run_backward
from toolkit.task import GlobalBatchLoss, Task

CALL_COSTS = "call_costs"
"""The folder of the cache."""
SECONDS, REPEATS = 0.5, 8
"""How often a pass is measured: until one of the two is reached."""


@dataclass(frozen=True)
class KnownCut:
    """What a run has found before of how its batches are cut: with the same cut sums are rounded in the same way."""

    limits: Limits | None = None
    """What fits into memory; None where `batch` says it."""
    call_cost: int | None = None
    """What one more pass through the model costs, in elements; None where that is to be measured."""

    def limits_at_first(self, config: Config) -> Limits:
        """Return the limits until more is known: how many fit is tried on the model, and until then one does."""
        if config.batch.micro == "auto":
            return Limits(samples=1)
        return self.limits or Limits(config.batch.samples, config.batch.micro_tokens)


def known_cut(saved: Mapping[str, Any], config: Config, device: torch.device) -> KnownCut:
    """Return what a checkpoint's state tells of it; nothing of what is asked for in another way now, or of another kind
    of device."""
    settings = saved.get("config", {}).get("batch", {})
    same = all(settings.get(name) == getattr(config.batch, name) for name in ("micro", "micro_tokens", "balance"))
    measured = saved.get("call_cost", {})
    return KnownCut(
        Limits(**saved["micro"]) if same and "micro" in saved and config.batch.micro != "auto" else None,
        measured.get("elements") if measured.get("device") == device.type else None,
    )


def settle_cut(
    task: Task,
    config: Config,
    runtime: Runtime,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: MicroBatches,
    sampler: MicroBatchSampler,
    packs: bool,
    known: KnownCut,
) -> WhatFits | None:
    """Tell the sampler what decides how global batches are cut: padding, memory, and what a pass through the model
    costs. Return what fits into memory, where that was tried.

    Raises:
        SharedUserError: the model is to compute without padding and can't, or not even one sample fits.
    """
    if config.batch.pack == "always" and not packs:
        raise SharedUserError(
            "batch.pack is always, but the task's batches do not say how long their rows are "
            "(toolkit.batch_layout.note_padding), so that padding can't be taken out; leave it out"
        )
    sampler.packed, what_fits, step = packs, None, sampler.first
    if config.batch.micro == "auto":
        what_fits = find_limits(task, config, runtime, model, optimizer, batches, sampler, step)
        sampler.micro, sampler.tokens = what_fits.limits.samples, what_fits.limits.tokens
    if config.batch.balance and not sampler.packed:
        plans = own_plans(sampler, runtime)
        sampler.call_cost = known.call_cost or call_cost(task, config, runtime, model, batches, plans)
    return what_fits


def own_plans(sampler: MicroBatchSampler, runtime: Runtime) -> list[MicroBatch]:
    """Return this process's micro-batches of the sampler's first step, as it would cut them now."""
    return sampler.of_step(sampler.first)[runtime.data_parallel_rank :: runtime.data_parallel_size]


def call_cost(
    task: Task, config: Config, runtime: Runtime, model: torch.nn.Module, batches: MicroBatches, plans: Sequence[Any]
) -> int | None:
    """Return what one more pass through the model costs beside its elements, in elements, the same in all processes;
    None where batches are never cut finer for that.

    Two of this process's micro-batches are timed, the first one whole and its first sample alone; the main process's
    figure counts, rounded to a power of two, so that it seldom changes from run to run.

    Args:
        task: what is trained. Of a global-batch loss every further micro-batch costs another forward pass.
        config: its settings.
        runtime: where. Every micro-batch of a sharded model gathers it once more.
        model: as Accelerate prepared it.
        batches: makes micro-batches of plans.
        plans: those of this process, of one step.
    """
    if isinstance(task.loss, GlobalBatchLoss) or runtime.strategy.is_sharded:
        return None
    # Known to all processes alike: the first micro-batch is as large in each.
    whole = max(plans, key=lambda plan: plan.padded)
    if not all(runtime.gather_all(whole.padded > 0 and len(whole.ids) > 1)):
        return None
    module = runtime.accelerator.unwrap_model(model)
    key = key_of(task, config, runtime, module, runtime.threads)
    known = runtime.on_main(lambda: remembered(CALL_COSTS, key))
    if known is None:
        runtime.phase("measuring what a pass through the model costs", whole.step + 1, patient=True)
        measured = runtime.together(lambda: measure_call(task, runtime, module, batches, whole))
        known = runtime.on_main(lambda: remember(CALL_COSTS, key, {"elements": measured}))
    elements: int | None = known["elements"]
    return elements


def measure_call(
    task: Task, runtime: Runtime, module: torch.nn.Module, batches: MicroBatches, whole: MicroBatch
) -> int | None:
    """Return the cost of a call in elements, a power of two; None if more elements take no longer, or a single sample
    can't be trained on, as by a batch norm."""
    alone = replace(whole, ids=whole.ids[:1], padded=whole.padded // len(whole.ids))
    tried = [batches.__getitems__(plan) for plan in (whole, alone)]
    seconds, begun = [float("inf")] * 2, perf_counter()
    # One after the other, since the machine may have other work; the first passes take what only first ones take.
    for number in range(1 + REPEATS):
        for place, micro in enumerate(tried):
            start = perf_counter()
            try:
                run_backward(task, runtime, module, micro)
            except ValueError:
                return None
            finally:
                module.zero_grad(set_to_none=True)
            if number:
                seconds[place] = min(seconds[place], perf_counter() - start)
        if number and perf_counter() - begun > SECONDS:
            break
    each = (seconds[0] - seconds[1]) / (whole.padded - alone.padded)
    return 2 ** round(log2(max(1.0, seconds[1] / each - alone.padded))) if each > 0 else None
