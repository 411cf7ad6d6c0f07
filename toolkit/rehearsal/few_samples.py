"""What a few samples show of a model before any step: what in it is random, and whether it computes padding."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from toolkit.batch_layout import ON_THE_LEFT, Trial, layout
from toolkit.data.loader import MicroBatches
from toolkit.data.micro_batches import MicroBatch
from toolkit.data.order import Ids
from toolkit.distributed.pipeline import one_pass
from toolkit.distributed.runtime import Runtime
from toolkit.dropout import SampleDropout, remember_callers
from toolkit.grad_cache import loss_of_batch
from toolkit.models.parameters import buffers_kept, canonical, reshard
from toolkit.task import Source, Task

SAMPLES = 3
"""Of fewer than two, a row is not told from a tensor that all rows share."""
THE_LOSS = "the task's loss"
THE_LEFT = "texts that are padded on the left (the tokenizer's padding_side)"


@dataclass(frozen=True)
class Seen:
    """What was found, the same in every process."""

    random: list[str]
    """The names of what draws random numbers without regard to the samples."""
    packs: bool
    """Whether it computes batches without their padding."""


@torch.no_grad()
def try_few_samples(task: Task, runtime: Runtime, model: torch.nn.Module, batches: MicroBatches, ids: Ids) -> Seen:
    """Run the same few samples of `ids` through the model in every process, in training mode, and change nothing.

    From then on the modules that call dropout as a function are known, so that it is drawn by their names.
    """
    chosen = shortest(batches.source, ids)
    micro = runtime.together(lambda: batches.__getitems__(MicroBatch(0, 1, chosen)))
    runtime.phase("trying a few samples", 1, patient=True, batch=micro)
    devices = runtime.devices if runtime.has_own_memory else ()

    def state() -> list[torch.Tensor]:
        on_devices = [torch.get_device_module(device).get_rng_state(device) for device in devices]
        return [torch.get_rng_state(), *on_devices]

    found: list[str] = []
    whole = runtime.accelerator.unwrap_model(model)
    trial = Trial()

    def run() -> None:
        before = state()
        with buffers_kept(whole), runtime.drawing_from(micro.dropout_rows), watching(whole, trial, state, found):
            layout().trial = trial
            with one_pass(model):
                loss_of_batch(task, model, runtime.to_device(micro.batch))
        if not found and not same(before, state()):
            found.append(THE_LOSS)

    runtime.together(run, talking=True)
    reshard(model)
    parts = parts_of_layers(runtime, whole, trial) if runtime.strategy.tensor > 1 else set()
    for name, module in whole.named_modules():
        if isinstance(module, SampleDropout):
            module.is_unknown |= name in parts
        elif module in trial.callers - trial.strangers and name not in parts:
            remember_callers(module)
        known = not (module.is_unknown and module.p) if isinstance(module, SampleDropout) else name not in parts
        found += [] if known else [canonical(name)]
    if ON_THE_LEFT in micro.batch and any(isinstance(m, SampleDropout) and m.p for m in whole.modules()):
        found.append(THE_LEFT)
    everywhere = dict.fromkeys(name for names in runtime.gather_all(found) for name in names)
    return Seen(list(everywhere), trial.knows_lengths)


def parts_of_layers(runtime: Runtime, model: torch.nn.Module, trial: Trial) -> set[str]:
    """Return the names of what drops something out of parts of tensors that several processes share.

    All have seen the same samples: what is whole is equal in all of them. (The heads of Transformers' attention are
    counted over the processes; which features a part has is not known.)
    """
    sums = {name: torch.stack(trial.given[m]).tolist() for name, m in model.named_modules() if m in trial.given}
    first, *others = runtime.gather_all(sums)
    return {name for name, given in first.items() if any(other.get(name) != given for other in others)}


def shortest(source: Source, ids: Ids) -> tuple[int, ...]:
    """Return the ids of a few samples, the shortest where lengths are known, in their order."""
    lengths = source.lengths(ids)
    if lengths is None:
        return tuple(ids[:SAMPLES].tolist())
    order = lengths.argsort(kind="stable")
    return tuple(ids[order[:SAMPLES]].tolist())


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    """Return whether the states of some generators are equal."""
    return all(torch.equal(mine, yours) for mine, yours in zip(one, other, strict=True))


@contextmanager
def watching(model: torch.nn.Module, trial: Trial, state: Any, found: list[str]) -> Iterator[None]:
    """Note in this block which modules are running, and add to `found` those that draw from torch's generators."""
    handles: list[Any] = []
    begun: list[tuple[Any, int]] = []

    def begin(module: torch.nn.Module, _: Any) -> None:
        trial.running.append(module)
        begun.append((state(), len(found)))

    def end(module: torch.nn.Module, _: Any, __: Any, name: str) -> None:
        trial.running.pop()
        before, known = begun.pop()
        # The innermost module is named, and none of those around it.
        if len(found) == known and not same(before, state()):
            found.append(canonical(name))

    for name, module in model.named_modules():
        handles.append(module.register_forward_pre_hook(begin))
        handles.append(module.register_forward_hook(partial(end, name=name or type(model).__name__)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
