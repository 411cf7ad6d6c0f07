"""Exact evaluation: every sample once, whatever the number of processes and the batch size."""

import math
from typing import Any, cast

import numpy as np
import torch
from accelerate.data_loader import prepare_data_loader

from toolkit.config.schema import Config
from toolkit.data.loader import LoadedMicroBatch, MicroBatchSampler, build_loader, started
from toolkit.data.order import fingerprint
from toolkit.distributed.counts import Counts
from toolkit.distributed.memory import lacks_memory
from toolkit.distributed.phase import PREDICTING
from toolkit.distributed.pipeline import one_pass, stage_of
from toolkit.distributed.runtime import Runtime
from toolkit.errors import UserError
from toolkit.evaluation_metrics import needs_probabilities
from toolkit.evaluation_order import LongestFirst
from toolkit.evaluation_scores import Collector, Scored, evenly, to_host
from toolkit.grad_cache import embed
from toolkit.models.parameters import reshard
from toolkit.output.console import Display
from toolkit.output.evaluation_file import Evaluation
from toolkit.task import GlobalBatchLoss, Task

# Predictions that wait in a process before they are gathered: a bound on its memory; the main process holds them all.
HELD_SAMPLES = 4096


class SynchronisedGeneration:
    """Stands for the `generate` of a sharded model while one batch is evaluated: all processes take part in every
    forward pass.

    Each process may have other texts to write, of other lengths, or none. So before each call of `generate` the
    processes agree that one of them has something to write, and whoever has nothing writes a token that nobody reads.
    """

    def __init__(self, runtime: Runtime, module: Any) -> None:
        self.runtime = runtime
        self.module = module

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """Generate as the module does, together with all other processes, until the last of them is done."""
        self.runtime.any_of(True)
        return self.module.generate(*args, **kwargs, synced_gpus=True)

    def keep_up(self, ids: Any) -> None:
        """Take part in what the others still generate; `ids` are token ids of any text, shape (rows, tokens)."""
        while self.runtime.any_of(False):
            self.module.generate(
                input_ids=ids[:1, :1], max_new_tokens=1, num_beams=1, do_sample=False, synced_gpus=True
            )


class OneForward:
    """Stands for the model while one batch is evaluated, so that `loss` and `predict` share a forward pass.

    Both call the model with the same tensors; the second call gets the first one's answer, which neither may change in
    place. Everything else, such as `generate`, goes to the module itself, without what Accelerate wrapped around it.
    """

    def __init__(
        self, model: torch.nn.Module, unwrapped: torch.nn.Module, synchronised: SynchronisedGeneration | None = None
    ) -> None:
        self.model = model
        self.unwrapped = unwrapped
        if synchronised is not None:
            self.generate = synchronised.generate
        self.asked: tuple[Any, ...] | None = None
        self.answer: Any = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        asked = (*args, *kwargs, *kwargs.values())
        if self.asked is None or len(asked) != len(self.asked) or not all(map(is_same, asked, self.asked)):
            self.asked, self.answer = asked, self.model(*args, **kwargs)
        return self.answer

    def __getattr__(self, name: str) -> Any:
        if name == "generate" and stage_of(self.unwrapped) is not None:
            raise UserError(
                "this task generates texts to evaluate the model, which a pipeline can't (batch.stages); leave "
                "batch.stages out, and use fsdp2_one_node.yaml of accelerate_configs/"
            )
        return getattr(self.unwrapped, name)


def is_same(one: Any, other: Any) -> bool:
    """Return whether two arguments are the same tensor, or equal words."""
    return one is other or (isinstance(one, str | int | bool) and one == other)


def evaluate_model(
    task: Task,
    config: Config,
    runtime: Runtime,
    model: torch.nn.Module,
    last: bool = False,
    most: int | None = None,
    display: Display | None = None,
) -> Evaluation | None:
    """Return loss and metrics over all evaluation samples, in every process; None if the run was asked to stop
    meanwhile.

    Args:
        task: what is evaluated; it has evaluation samples.
        config: `batch.evaluated` is the size of a batch in one process.
        runtime: where.
        model: the model as it was prepared.
        last: also score the task's trivial prediction, and show samples.
        most: evaluate so many samples alone, to try it; None is returned where predictions or metrics of so few say
            nothing.
        display: shows how far it is, in the main process.

    Raises:
        RuntimeError: the samples that came in are not each sample once; a defect.
    """
    assert task.data.evaluate is not None
    source, size = task.data.evaluate, config.batch.evaluated * runtime.data_parallel_size
    order = LongestFirst(task.data, size, most)
    sampler = MicroBatchSampler(order, source, runtime.data_parallel_size, order.steps_per_epoch)
    # The same sharding as `Accelerator.prepare`, which would also keep every loader of every evaluation.
    loader = prepare_data_loader(
        build_loader(sampler, task, config.seed, pinned=runtime.has_own_memory),
        num_processes=runtime.data_parallel_size,
        process_index=runtime.data_parallel_rank,
        even_batches=False,
        put_on_device=False,
    )
    shown = config.evaluate.show if last else 0
    wanted = evenly(np.sort(order.ids), shown) if task.show is not None else set()
    # Known to all processes alike: in these rounds each asks how sure the model is.
    shown_rounds = {number for number, ids in enumerate(order.rounds) if wanted and wanted.intersection(ids.tolist())}
    # Which samples its items are of, only `postprocess` knows; and the worst are known when all are.
    if (wanted and task.postprocess is not None) or (last and task.quality is not None):
        shown_rounds = set(range(order.steps_per_epoch))
    # Metrics live in the main process alone; made together, so that a missing package stops all processes and hangs
    # none.
    collector = runtime.together(
        lambda: Collector(task, config.batch.size, last, shown, wanted) if runtime.is_main else None
    )

    was_training = model.training
    share_buffers(model, runtime)
    model.eval()
    phase = runtime.phase
    phase("preparing an evaluation")
    loss = torch.zeros((), dtype=torch.float64)
    units: float = 0
    by_part: dict[int, tuple[float, float]] = {}
    samples = seen = 0
    held: list[Scored | None] = []
    for number, micro in enumerate(started(loader), start=1):
        phase(f"agreeing with the others before batch {number:,} of an evaluation")
        if runtime.all_reduce_counts(Counts(stop=int(runtime.stop.requested))).stop:
            model.train(was_training)
            reshard(model)
            return None
        phase(f"evaluating batch {number:,}", batch=micro)
        total, scored = evaluate_batch(task, runtime, model, micro, micro.plan.step in shown_rounds)
        if not micro.plan.dummy:
            loss += total
            units += micro.units
            part = order.part(micro.plan.step)
            before = by_part.get(part, (0.0, 0))
            by_part[part] = before[0] + total, before[1] + micro.units
            samples += len(micro.ids)
            seen += micro.plan.fingerprint
        held.append(None if micro.plan.dummy else scored)
        # Every process counts alike, so that the decision to gather needs no agreement.
        if number == order.steps_per_epoch or len(held) * size >= HELD_SAMPLES:
            phase(f"gathering predictions after batch {number:,} of an evaluation", patient=True)
            gathered = runtime.counted(runtime.gather(held))
            runtime.on_main(lambda gathered=gathered: feed(collector, gathered))  # type: ignore[misc]
            held.clear()
        if display is not None:
            display.evaluated(number, order.steps_per_epoch)
    model.train(was_training)
    reshard(model)
    phase("computing metrics", patient=True)

    whole = runtime.all_reduce_counts(Counts(units, samples, fingerprint=seen % 2**64, earlier_loss=float(loss)))
    if whole.samples != len(order.ids) or whole.fingerprint != fingerprint(order.ids):
        raise RuntimeError(f"evaluation saw {whole.samples} samples of {len(order.ids)}, or not each of them once")
    summed = whole.earlier_loss
    if isinstance(task.loss, GlobalBatchLoss):
        summed = runtime.on_main(lambda: collector.global_batch_loss() if collector else 0.0)
    mean = summed / whole.units if whole.units else math.nan
    of_groups = {}
    if task.data.groups and not isinstance(task.loss, GlobalBatchLoss):
        of_groups = order.of_groups(added(runtime.counted(runtime.gather_all(by_part))))
    from_loss = dict(task.from_loss(mean, whole.units)) if task.from_loss is not None else {}

    def compute() -> tuple[dict[str, float], dict[str, float]] | None:
        assert collector is not None
        if not collector.postprocess(are_all=most is None):
            return None
        try:
            found = collector.compute(("loss", *from_loss), of_groups)
        except Exception as error:
            if most is None or isinstance(error, UserError) or lacks_memory(error):
                raise
            return None
        # What is for the reader stays in this process.
        examples[:] = found.examples
        details.update(found.details)
        quality.update(found.quality)
        undefined.update(found.undefined)
        return found.scores, found.baseline

    examples: list[dict[str, Any]] = []
    details: dict[str, Any] = {}
    undefined: dict[str, str] = {}
    quality: dict[str, Any] = {}
    computed = runtime.on_main(compute)
    if computed is None:
        return None
    scores, trivial = computed
    return Evaluation({"loss": mean, **from_loss, **scores}, trivial, examples, details, quality, undefined)


def added(sums: list[dict[int, tuple[float, float]]]) -> dict[int, tuple[float, float]]:
    """Return the losses and units of each part, summed over the processes."""
    whole: dict[int, tuple[float, float]] = {}
    for own in sums:
        for part, (loss, units) in own.items():
            before = whole.get(part, (0.0, 0.0))
            whole[part] = before[0] + loss, before[1] + units
    return whole


def share_buffers(model: torch.nn.Module, runtime: Runtime) -> None:
    """Give all processes the main one's running averages (batch norms), which are those of a checkpoint.

    Distributed data parallel does so before every forward pass, where it was told to.
    """
    if runtime.strategy.is_sharded or not getattr(model, "broadcast_buffers", True):
        for buffer in model.buffers():
            runtime.share(buffer)


@torch.no_grad()
def evaluate_batch(
    task: Task, runtime: Runtime, model: torch.nn.Module, micro: LoadedMicroBatch, shown: bool = False
) -> tuple[float, Scored]:
    """Return the summed loss of one batch (0 for a global-batch loss, which is taken later), and its predictions beside
    its references; 0 and nothing where another stage of a pipeline has them.

    With `shown`, samples of it are shown, and it is said how sure the model is.
    """
    with one_pass(model):
        return score_batch(task, runtime, model, micro, shown)
    return 0.0, Scored(micro.ids, None, None, None, None, None, None)


def score_batch(
    task: Task, runtime: Runtime, model: torch.nn.Module, micro: LoadedMicroBatch, shown: bool
) -> tuple[float, Scored]:
    """Do what `evaluate_batch` says, in a stage that has the loss."""
    batch = runtime.to_device(micro.batch)
    module = runtime.accelerator.unwrap_model(model)
    synchronised = (
        SynchronisedGeneration(runtime, module)
        if runtime.strategy.gathers_weights and hasattr(module, "generate")
        else None
    )
    once = cast(torch.nn.Module, OneForward(model, module, synchronised))
    total, predictions, references, embeddings, extra, probabilities = 0.0, None, None, None, None, None
    if isinstance(task.loss, GlobalBatchLoss):
        tensor, known = embed(task.loss, once, batch)
        embeddings, extra = tensor.cpu(), None if known is None else known.cpu()
    else:
        total = float(task.loss(once, batch))
    if task.predict is not None:
        runtime.phase(PREDICTING, batch=micro)
        predictions = to_host(task.predict(once, batch))
        if synchronised is not None and "input_ids" in batch:
            synchronised.keep_up(batch["input_ids"])
        references = to_host(task.references(batch)) if task.postprocess is None else None
    if task.probabilities is not None and needs_probabilities(task):
        probabilities = to_host(task.probabilities(once, batch))
    scores = task.scores(once, batch) if task.scores is not None and shown else None
    return total, Scored(micro.ids, predictions, references, embeddings, extra, scores, probabilities)


def feed(collector: Collector | None, gathered: list[list[Scored | None]]) -> None:
    """Give what all processes found to the metrics, in the order of the samples: by round, and in it by process."""
    if collector is None:
        return
    for one_round in zip(*gathered, strict=True):
        for scored in one_round:
            if scored is not None:
                collector.add(scored)
