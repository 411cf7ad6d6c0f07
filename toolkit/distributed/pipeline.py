"""Pipeline parallel: each process holds some consecutive layers of a model (a stage), and micro-batches go through all.

Every process runs the task's own code and the model's own forward pass on the micro-batches, which all of them have
loaded: masks and positions are made in each. `toolkit/models/stages.py` puts what is here in the place of the layers
that other stages hold. What comes from the stage before enters right before the first own layer, and after the last
one the pass ends: only the last stage has a loss, predictions and an evaluation.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch
import torch.nn.functional as F
from torch.distributed import P2POp, ProcessGroup, all_reduce, batch_isend_irecv, irecv, isend, new_group

from toolkit.errors import UserError

ATTRIBUTE = "pipeline_stage"


class StageEndError(Exception):
    """The layers of this stage have done their part of a pass; raised through the task's code, which has no more."""

    def __init__(self, hidden: torch.Tensor) -> None:
        super().__init__("the next stage computes the rest")
        self.hidden = hidden


class Stage:
    """This process among the stages of a pipeline, which are all processes, in their order.

    Args:
        index: its number, from 0.
        stages: how many there are.
        width: the last dimension of what goes from stage to stage.
        dtype: the type of it.
        device: where it lies.
        shared: the weights that the first and the last stage both hold, in each of the two; all processes make a
            `Stage` together.
    """

    def __init__(
        self,
        index: int,
        stages: int,
        width: int,
        dtype: torch.dtype,
        device: torch.device,
        shared: Sequence[torch.nn.Parameter] = (),
    ) -> None:
        self.index, self.stages = index, stages
        self.width, self.dtype, self.device = width, dtype, device
        trained = [parameter for parameter in shared if parameter.requires_grad]
        self.shared = trained if index in (0, stages - 1) else []
        self.ends: ProcessGroup | None = new_group([0, stages - 1]) if trained else None
        self.scheduled = False
        """Whether torch's schedule sends and receives; otherwise each pass does so by itself."""
        self.received: torch.Tensor | None = None
        """Under a schedule, what the stage before has sent of this micro-batch: (tokens, width), filled up."""
        self.has_entered = False

    @property
    def is_last(self) -> bool:
        """Whether this stage has the loss."""
        return self.index == self.stages - 1

    def enter(self, hidden: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        """Stand for the layer before the first own one: return what the stage before has computed.

        `hidden` has its shape, and nothing else of it.
        """
        if self.has_entered:
            raise UserError(
                "the task runs the model more than once for a micro-batch, which a pipeline can't (batch.stages); "
                "leave batch.stages out, and use fsdp2_one_node.yaml of accelerate_configs/"
            )
        self.has_entered = True
        if self.scheduled:
            assert self.received is not None
            return self.received[: hidden.shape[:-1].numel()].view(hidden.shape)
        found = torch.empty(hidden.shape, dtype=self.dtype, device=self.device)
        exchange(P2POp(irecv, found, self.index - 1))
        return found

    def leave(self, hidden: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        """Stand for the layer after the last own one: hand over what was computed, and end the pass.

        Raises:
            StageEndError: always.
        """
        if hidden.dtype != self.dtype or hidden.shape[-1] != self.width:
            raise UserError(
                f"the layers of the model hand on {hidden.dtype} of width {hidden.shape[-1]}, and its weights are "
                f"{self.dtype}, its width {self.width}: such a model is not trained in a pipeline; leave batch.stages "
                "out, and use fsdp2_one_node.yaml of accelerate_configs/"
            )
        if not self.scheduled:
            exchange(P2POp(isend, hidden.detach().contiguous(), self.index + 1))
        raise StageEndError(hidden)

    def run(self, tokens: Sequence[int], loss_of: Callable[[int], torch.Tensor]) -> None:
        """Run the forward and the backward passes of a step, in the order of a schedule.

        Args:
            tokens: how many of them each micro-batch has at most, padding included.
            loss_of: computes a micro-batch, by its number, through the task's code, and returns what to run backward
                from: a scalar.

        Raises:
            UserError: the task runs other tokens through the model than those of the batch.
            BaseException: whatever a pass raises.
        """
        from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

        between = torch.empty(max(tokens), self.width, dtype=self.dtype, device=self.device, requires_grad=True)
        loss = torch.empty((), device=self.device, requires_grad=True)
        # Shapes that are given are not found out by a pass of their own. They hold for a step; the next has others.
        stage = PipelineStage(
            Passes(self, max(tokens), loss_of),
            self.index,
            self.stages,
            self.device,
            input_args=() if self.index == 0 else (between,),
            output_args=(loss if self.is_last else between,),
        )
        # 1F1B keeps the activations of fewer micro-batches, and wants at least one for each stage.
        kind = Schedule1F1B if len(tokens) >= self.stages else ScheduleGPipe
        schedule = kind(stage, n_microbatches=len(tokens), loss_fn=lambda loss, _: loss, scale_grads=False)
        # All that the schedule is given are numbers: every stage has the micro-batches themselves.
        numbers = torch.arange(len(tokens))
        self.scheduled = True
        try:
            schedule.step(number=numbers, target=numbers, return_outputs=False)
        except RuntimeError as error:
            # torch wraps what is raised in a pass.
            if error.__cause__ is not None:
                raise error.__cause__ from None
            raise
        finally:
            self.scheduled, self.received = False, None
        for parameter in self.shared:
            all_reduce(parameter.grad, group=self.ends)

    def clip(self, parameters: Sequence[torch.nn.Parameter], most: float | None) -> torch.Tensor:
        """Clip the gradients of all stages together to a norm of at most `most`, and return what it was."""
        held_before = {id(parameter) for parameter in self.shared} if self.index > 0 else set()
        own = [p.grad for p in parameters if p.grad is not None and id(p) not in held_before]
        squared = torch.zeros((), dtype=self.dtype, device=self.device)
        if own:
            squared += torch.nn.utils.get_total_norm(own) ** 2
        all_reduce(squared)
        norm = squared.sqrt()
        if most is not None:
            torch.nn.utils.clip_grads_with_norm_(parameters, most, norm)
        return norm


class Passes(torch.nn.Module):
    """What torch's schedule takes for the module of a stage: computes a micro-batch, by its number."""

    def __init__(self, stage: Stage, tokens: int, loss_of: Callable[[int], torch.Tensor]) -> None:
        super().__init__()
        self.stage, self.tokens, self.loss_of = stage, tokens, loss_of

    def forward(self, *received: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
        """Return the loss in the last stage, and what the next one gets (tokens, width) in the others.

        torch sends one shape in a step: micro-batches go as one row of tokens, filled up to those of the largest.
        """
        self.stage.received, self.stage.has_entered = (received[0] if received else None), False
        try:
            # Of one type, whatever the task's is: torch runs backward from it, and nobody reads it.
            return self.loss_of(int(number)).float()
        except StageEndError as end:
            # Where nothing before is trained, torch still wants to run backward.
            hidden = (end.hidden if end.hidden.requires_grad else end.hidden.requires_grad_()).flatten(0, -2)
            if len(hidden) <= self.tokens:
                return F.pad(hidden, (0, 0, 0, self.tokens - len(hidden)))
            raise UserError(
                f"the task runs {len(hidden):,} tokens at once through the model, and the input_ids of its batch has "
                f"{self.tokens:,}: it is not trained in a pipeline; leave batch.stages out, and use "
                "fsdp2_one_node.yaml of accelerate_configs/"
            ) from None


def stage_of(model: torch.nn.Module) -> Stage | None:
    """Return the stage that a model was divided for; None where it was not."""
    return getattr(model, ATTRIBUTE, None)


def one_pass(model: torch.nn.Module) -> suppress:
    """Let a model run forward in a `with` block, at most once: all stages one after another, each until its last layer.

    In all stages but the last one the block ends there.
    """
    stage = stage_of(model)
    if stage is not None:
        stage.has_entered = False
    return suppress(StageEndError)


def exchange(operation: P2POp) -> None:
    """Send or receive a tensor, and wait until that is done."""
    for work in batch_isend_irecv([operation]):
        work.wait()
