"""The forward and backward passes of a step in a pipeline, which takes the micro-batches of the step all at once."""

import torch

from toolkit.data.loader import LoadedMicroBatch
from toolkit.distributed.phase import PIPELINE
from toolkit.distributed.pipeline import Stage
from toolkit.errors import UserError
from toolkit.grad_cache import loss_of_batch
from toolkit.randomness import seed_for
from toolkit.train_state import TrainState

TOKENS = "input_ids"


def run_through_stages(
    stage: Stage, state: TrainState, step: int, micro_batches: list[LoadedMicroBatch], units: float
) -> torch.Tensor:
    """Add up the gradients of a step, whose loss is averaged over `units`, and return its summed loss.

    That is 0 in all stages but the last one.
    """
    task, runtime, model = state.task, state.runtime, state.model
    losses = [runtime.zero]

    def loss_of(number: int) -> torch.Tensor:
        micro = micro_batches[number]
        runtime.seed(seed_for(state.config.seed, "dropout", step, runtime.data_parallel_rank, number))
        with runtime.drawing_from(micro.dropout_rows):
            loss = loss_of_batch(task, model, runtime.to_device(micro.batch))
        losses.append(loss.detach())
        return loss / (units or 1)

    # One phase for all: which stage waits for which changes from micro-batch to micro-batch.
    tokens = [tokens_of(micro) for micro in micro_batches]
    runtime.phase(PIPELINE, step + 1, batch=micro_batches[tokens.index(max(tokens))])
    stage.run(tokens, loss_of)
    return torch.stack(losses).sum()


def tokens_of(micro: LoadedMicroBatch) -> int:
    """Return how many tokens a micro-batch has, padding included.

    Raises:
        UserError: it has no tokens.
    """
    if TOKENS not in micro.batch:
        raise UserError(
            f"batch.stages is for tasks whose batches have {TOKENS}, and these have {', '.join(micro.batch)}; leave it "
            "out, and use fsdp2_one_node.yaml of accelerate_configs/"
        )
    return micro.batch[TOKENS].numel()
