"""One of two processes that each hold some of a model's layers. The notebook starts both:

    torchrun --nproc-per-node 2 one_batch_pipeline.py RESULTS

RESULTS/pipeline.json gets what was measured; RESULTS/<model>, <schedule>, process <number>.safetensors the gradients
of the layers that a process holds, and RESULTS/<model>.safetensors those of the whole model, of one pass in one
process.
"""

import gc
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from one_batch_model import gradients_of
from one_batch_stages import MODELS, WIDTH, MicroBatch, Stage, capacity_of, micro_batches_of, summed, units_in
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B

RAGGED = (3, 2, 1, 2)
"""Sentences in each micro-batch of a step; each is as long as its own longest sentence."""
REPEATS = 6
"""Of so many runs of a step the quickest is looked at: on a machine that does other things too, the least disturbed."""
SCHEDULES = {"GPipe": ScheduleGPipe, "1F1B": Schedule1F1B, "interleaved 1F1B": ScheduleInterleaved1F1B}


@dataclass
class Measured:
    """What a process did when, in seconds of the machine's clock, and how many bytes it sent."""

    slots: list[dict[str, Any]] = field(default_factory=list)
    sent: int = 0
    held: int = 0
    """Micro-batches whose activations wait for their backward pass, at most."""

    def note(self, what: str, stage: int, micro: int, begin: float) -> None:
        """Write down a piece of work that ends now."""
        slot = {"stage": stage, "process": dist.get_rank(), "what": what, "micro": micro}
        self.slots.append({**slot, "begin": begin, "end": perf_counter()})


class MeasuredStage(PipelineStage):  # type: ignore[misc]
    """torch's stage, with a watch."""

    measured: Measured

    def forward_one_chunk(self, fwd_chunk_id: int, *others: Any, **options: Any) -> Any:
        """Run the forward pass of a micro-batch."""
        begin = perf_counter()
        output = super().forward_one_chunk(fwd_chunk_id, *others, **options)
        self.measured.note("forward", self.stage_index, fwd_chunk_id, begin)
        self.measured.held = max(self.measured.held, len(self.fwd_cache))
        return output

    def backward_one_chunk(self, bwd_chunk_id: int, *others: Any, **options: Any) -> None:
        """Run the backward pass of a micro-batch."""
        begin = perf_counter()
        super().backward_one_chunk(bwd_chunk_id, *others, **options)
        self.measured.note("backward", self.stage_index, bwd_chunk_id, begin)

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        """Return what is sent to the next stage."""
        return self.counted(super().get_fwd_send_ops(fwd_chunk_id))

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        """Return what is sent to the stage before."""
        return self.counted(super().get_bwd_send_ops(bwd_chunk_id))

    def counted(self, operations: list[dist.P2POp]) -> list[dist.P2POp]:
        """Count the bytes of what is sent."""
        self.measured.sent += sum(operation.tensor.nbytes for operation in operations)
        return operations


def run_pipeline(
    name: str, schedule: str, micro_batches: list[MicroBatch], repeats: int = 1
) -> tuple[dict[str, Tensor], Measured]:
    """Run the micro-batches of a step through both processes, and return the gradients of this one's layers.

    Of `repeats` runs the one counts that was the first to end; the gradients are those of each of them.
    """
    rank, processes = dist.get_rank(), dist.get_world_size()
    parts_of_each = 2 if schedule == "interleaved 1F1B" else 1
    indices = range(rank, parts_of_each * processes, processes)
    stages, units = parts_of_each * processes, units_in(micro_batches)
    capacity = capacity_of(micro_batches)
    modules = [Stage(MODELS[name](), index, stages, micro_batches) for index in indices]
    between = torch.empty(capacity, WIDTH, dtype=torch.float64, requires_grad=True)
    loss = torch.empty((), dtype=torch.float64, requires_grad=True)
    staged = [
        MeasuredStage(
            module,
            index,
            stages,
            torch.device("cpu"),
            # Shapes that are given are not found out by a pass of their own through all stages.
            input_args=() if module.is_first else (between,),
            output_args=(loss if module.is_last else between,),
        )
        for module, index in zip(modules, indices, strict=True)
    ]
    # The sum is divided by the units of the step; torch would divide it by the number of micro-batches besides.
    count = len(micro_batches)
    pipeline = SCHEDULES[schedule](
        staged if parts_of_each > 1 else staged[0],
        n_microbatches=count,
        loss_fn=lambda summed_loss, _: summed_loss / units,
        scale_grads=False,
    )
    numbers = torch.arange(count)
    runs: list[tuple[float, Measured]] = []
    for _ in range(repeats):
        measured = Measured()
        for stage in staged:
            stage.measured = measured
        for module in modules:
            module.zero_grad()
        dist.barrier()
        begin = perf_counter()
        pipeline.step(number=numbers, target=numbers, return_outputs=False)
        seconds = torch.tensor(perf_counter() - begin)
        dist.all_reduce(seconds, dist.ReduceOp.MAX)
        runs.append((float(seconds), measured))
    gradients = {name: gradient for module in modules for name, gradient in gradients_of(module.model).items()}
    return gradients, min(runs, key=lambda run: run[0])[1]


def in_one_process(name: str) -> dict[str, Tensor]:
    """Return the gradients of the eight sentences, all at once."""
    (micro,) = micro_batches_of(name, [8])
    model = MODELS[name]().model
    (
        summed(model(micro["tokens"], attention_mask=micro["mask"]).logits, micro["labels"]) / units_in([micro])
    ).backward()
    return gradients_of(model)


def everywhere(measured: Measured) -> dict[str, Any]:
    """Return what both processes measured."""
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, measured)
    return {
        "slots": [slot for one in everyone for slot in one.slots],
        "sent": [one.sent for one in everyone],
        "held": [one.held for one in everyone],
    }


def main(results: Path) -> None:
    """Run every schedule with ragged micro-batches, and then with equal ones to look at the times."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found: dict[str, Any] = {"units": {}, "capacity": {}, "ragged": {}, "equal": {}}
    for name in MODELS:
        micro_batches = micro_batches_of(name, RAGGED)
        found["units"][name] = [units_in([micro]) for micro in micro_batches]
        found["capacity"][name] = capacity_of(micro_batches)
        for schedule in SCHEDULES:
            repeats = REPEATS if name == "decoder" else 1
            gradients, measured = run_pipeline(name, schedule, micro_batches, repeats)
            save_file(gradients, results / f"{name}, {schedule}, process {dist.get_rank()}.safetensors")
            found["ragged"][f"{name}, {schedule}"] = everywhere(measured)
        if dist.get_rank() == 0:
            save_file(in_one_process(name), results / f"{name}.safetensors")
    for count in (2, 4, 8):
        micro_batches = micro_batches_of("decoder", [8 // count] * count, equal=True)
        for schedule in SCHEDULES if count == 4 else ("GPipe", "1F1B"):
            _, measured = run_pipeline("decoder", schedule, micro_batches, REPEATS)
            found["equal"][f"{schedule}, {count} micro-batches"] = everywhere(measured)
    if dist.get_rank() == 0:
        (results / "pipeline.json").write_text(json.dumps(found), encoding="utf-8")
    # All meet, then what holds the group goes, then the group: a process that left earlier would make the other one
    # abort.
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
