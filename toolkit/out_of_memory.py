"""A step for which memory did not suffice is done again, in smaller micro-batches, to the same numbers.

A process whose memory runs out can't tell the others at once: they wait for its gradients. So it sends what is no
number in their place. Then no process changes its weights, as with any gradient that is not finite, and in the small
all-reduce that comes next they learn why.
"""

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from math import isfinite, nan
from time import monotonic
from typing import Any

import torch
from torch.distributed import ProcessGroup
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parallel import DistributedDataParallel

from toolkit.data.loader import LoadedMicroBatch
from toolkit.data.micro_batches import Limits
from toolkit.distributed.memory import Lack, OutOfMemoryError, StepLacksMemoryError, lacks_memory
from toolkit.distributed.phase import BACKWARD_PASS, FORWARD_PASS, Phase
from toolkit.schedules import learning_rate
from toolkit.step_log import StepValues
from toolkit.task import GlobalBatchLoss
from toolkit.train_state import TrainState


class BeforeTheStep:
    """What a step changes of a run although it fails: buffers such as those of batch norms, and the loss scale of
    fp16."""

    def __init__(self, state: TrainState) -> None:
        self.scaler: Any = state.runtime.accelerator.scaler
        self.scale: tuple[torch.Tensor | None, ...] = ()
        self.buffers = list(state.model.buffers())
        # Kernels write the statistics of a norm without counting up their version.
        norms = [module for module in state.model.modules() if isinstance(module, _NormBase)]
        self.statistics = {id(buffer) for norm in norms for buffer in norm.buffers()}
        self.versions = [buffer._version for buffer in self.buffers]
        self.copies = [buffer.clone() for buffer in self.buffers]
        self.is_first = True

    def note(self) -> None:
        """Copy it, on the device. From the second step on only what the first one has changed."""
        if self.is_first:
            self.is_first = False
        elif self.versions:
            versions = zip(self.buffers, self.versions, strict=True)
            self.buffers = [b for b, version in versions if b._version != version or id(b) in self.statistics]
            self.copies, self.versions = [buffer.clone() for buffer in self.buffers], []
        elif self.buffers:
            torch._foreach_copy_(self.copies, self.buffers)
        if self.scaler is not None:
            scale = (self.scaler._scale, self.scaler._growth_tracker)
            self.scale = tuple(None if tensor is None else tensor.clone() for tensor in scale)

    @torch.no_grad()
    def restore(self) -> None:
        """Undo what the step has changed."""
        for buffer, copy in zip(self.buffers, self.copies, strict=True):
            buffer.copy_(copy)
        self.versions = [buffer._version for buffer in self.buffers] if self.versions else []
        if self.scaler is not None:
            self.scaler._scale, self.scaler._growth_tracker = self.scale


def withstand(
    state: TrainState, step: int, micro_batches: Sequence[LoadedMicroBatch], work: Callable[[], StepValues]
) -> StepValues:
    """Run a step, counted from 0; if this process lacks the memory, see to it that no process changes its weights.

    Raises:
        StepLacksMemoryError: no process has changed its weights, and all raise this.
        Exception: memory ran out where the others can't be told, as in the middle of the collectives of a sharded
            model.
    """
    state.gathers = "later" if isinstance(state.task.loss, GlobalBatchLoss) else "no more"
    added = AddedUp(state.model, len(micro_batches))
    try:
        with added:
            return work()
    except Exception as error:
        place = place_of(state, micro_batches)
        if not lacks_memory(error) or place is None or not can_stand_in(state, *place, micro_batches):
            raise
        # Nothing of the error is kept: its trace holds all activations.
        state.lack = Lack.of(error, state.runtime.phase.phase)
    free(state)
    runtime, number = state.runtime, place[1]
    if runtime.size == 1:
        raise StepLacksMemoryError(step)
    if state.gathers == "later":
        if len(micro_batches) == 1 and isinstance(state.model, DistributedDataParallel):
            state.model.reducer._rebuild_buckets()  # as the others did before their forward pass
        runtime.gather_all(None)
        raise StepLacksMemoryError(step)
    assert isinstance(state.model, DistributedDataParallel)
    begun = place[0] == BACKWARD_PASS and number == len(micro_batches) - 1
    send_no_numbers(state.model, begun, added.complete)
    state.model.zero_grad(set_to_none=True)
    return StepValues(lambda: [0.0, nan], learning_rate(state.config.optim, step, state.total_steps))


def place_of(state: TrainState, micro_batches: Sequence[LoadedMicroBatch]) -> tuple[str, int] | None:
    """Return in which pass of which micro-batch this process is; None outside of both passes."""
    phase = state.runtime.phase.phase
    numbers = [number for number, micro in enumerate(micro_batches) if micro is phase.batch]
    return (phase.what, numbers[0]) if numbers and phase.what in (FORWARD_PASS, BACKWARD_PASS) else None


def can_stand_in(state: TrainState, what: str, number: int, micro_batches: Sequence[LoadedMicroBatch]) -> bool:
    """Return whether this process can still do all that the others wait for in this step."""
    runtime, model = state.runtime, state.model
    if runtime.strategy.zero is not None:
        return False
    if runtime.size == 1:
        return True
    if not isinstance(model, DistributedDataParallel) or state.config.batch.reduce_each or state.gathers == "now":
        return False
    # A hook with a memory of its own, such as PowerSGD's, would never lose what is no number.
    keeps_errors = any(not isinstance(kept, ProcessGroup | None) for _, kept in model._comm_hooks)
    unknown = model.find_unused_parameters or model.static_graph or state.power_sgd is not None
    if keeps_errors or unknown:
        return False
    last = what == BACKWARD_PASS and number == len(micro_batches) - 1
    # Buffers are sent before a forward pass; whether that was done for this one can't be told.
    return last or not (model.broadcast_buffers and model.modules_buffers)


class AddedUp(AbstractContextManager["AddedUp"]):
    """Which gradients are complete, while DDP has yet to sort its buckets by the order in which they come.

    Each may tell it once that it has come. Later on DDP refuses to be told twice, and needs none of this.
    """

    def __init__(self, model: torch.nn.Module, micro_batches: int) -> None:
        self.micro_batches = micro_batches
        self.times: dict[torch.Tensor, int] = {}
        is_first = isinstance(model, DistributedDataParallel) and not model._has_rebuilt_buckets
        self.parameters = [p for p in model.parameters() if p.requires_grad] if is_first else []
        self.handles: list[Any] = []

    def __enter__(self) -> "AddedUp":
        for parameter in self.parameters:
            self.handles.append(parameter.register_post_accumulate_grad_hook(self.note))  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self.handles:
            handle.remove()

    def note(self, parameter: torch.Tensor) -> None:
        """Count one micro-batch of a parameter."""
        self.times[parameter] = self.times.get(parameter, 0) + 1

    @property
    def complete(self) -> set[torch.Tensor]:
        """The parameters to which every micro-batch has added its part."""
        return {parameter for parameter, times in self.times.items() if times == self.micro_batches}


def send_no_numbers(model: DistributedDataParallel, begun: bool, complete: Collection[torch.Tensor]) -> None:
    """Take part in the all-reduce of the gradients with gradients that are no number.

    Args:
        model: as DDP wraps it.
        begun: whether the backward pass had begun whose gradients are sent: some may be on their way.
        complete: the parameters whose gradients are, as far as that is known.
    """
    if not begun:
        model.reducer._rebuild_buckets()  # as the others do before a forward pass; nothing if that is done
        model.reducer.prepare_for_backward([])
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in reversed(parameters):
        if begun and parameter in complete:
            continue
        try:
            # Nothing but the hook that DDP has set where the gradient of this parameter is added up.
            own = parameter.sum()
            torch.autograd.backward(own, torch.full_like(own, nan))
        except RuntimeError as error:
            if not begun or "ready only once" not in str(error):
                raise


def free(state: TrainState) -> None:
    """Give back the memory of what nothing refers to any more."""
    if state.runtime.size == 1:
        state.model.zero_grad(set_to_none=True)
    state.runtime.free_memory()


def begin_again(state: TrainState, step: int, before: BeforeTheStep) -> None:
    """Make the run ready to do a step again, in micro-batches of half the size; all processes together.

    Raises:
        OutOfMemoryError: each micro-batch is a single sample already.
    """
    runtime, sampler, log = state.runtime, state.sampler, state.step_log
    own, state.lack = state.lack, None
    runtime.phase("making room after memory ran out", step + 1, patient=True)
    tried = [pending for pending in log.pending if pending.step == step]
    changed = [own is None and pending.counts.units > 0 and isfinite(pending.values.read()[1]) for pending in tried]
    for pending in tried:
        log.pending.remove(pending)
    found = runtime.gather_all((own, any(changed), runtime.phase.phase.place))
    lack = next(lack for lack, _, _ in found if lack is not None)
    # Which is a defect: it would be worse to take the step twice.
    if any(has_changed for _, has_changed, _ in found) or not sampler.halve(step):
        runtime.phase.phase = lack.phase
        ranks = [rank for rank, (other, _, _) in enumerate(found) if other is not None]
        raise OutOfMemoryError(lack.text if runtime.size == 1 else f"process {ranks[0]}: {lack.text}")
    free(state)
    before.restore()
    limits = Limits(sampler.micro, sampler.tokens)
    if state.remember_limits is not None and runtime.is_main:
        state.remember_limits(limits)
    if state.output.display is not None:
        state.output.display.line(
            f"step {step + 1:,} is done again, since {lack.text} {lack.phase.what}; from here on {in_words(limits)}"
        )
    # What was read ahead is cut as before.
    sampler.first = step
    state.loader.end()
    # Who lacked the memory has begun fewer phases than the others.
    place = max(place for _, _, place in found)
    runtime.phase.phase = Phase("waiting for data", step + 1, False, monotonic(), place)


def in_words(limits: Limits) -> str:
    """Return limits in words."""
    parts = [
        f"{number:,} {what}{'s' if number > 1 else ''}"
        for number, what in ((limits.samples, "sample"), (limits.tokens, "token"))
        if number is not None
    ]
    return f"at most {' and '.join(parts)} at once in each process" if parts else "any number at once in each process"
