"""The work of `topology.py`: one task for each of its models, and the comparison of two layouts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from topology_models import DROPOUT, IGNORED, MODELS, Images, Sample, Source, collate
from torch.distributed.tensor import DTensor

from toolkit import Batch, BatchConfig, Config, OptimConfig, Task, TaskData
from toolkit.batch_layout import note_padding
from toolkit.distributed.runtime import Runtime
from toolkit.loop import train
from toolkit.losses import causal_logits, output_of
from toolkit.metrics import accuracy
from toolkit.output.evaluation_file import Evaluation
from toolkit.prepare import prepare
from toolkit.printed_plan import active_dropout
from toolkit.tasks.seq2seq.models import target_logits

GLOBAL_BATCH = 16
SAMPLES = 211
EVALUATION_SAMPLES = 53

Cut = Literal["padded", "cut by length", "packed"]
"""How a global batch is laid out: as the samples come; cut into micro-batches of similar lengths; and also without
padding."""


def cuts(name: str) -> tuple[Cut, ...]:
    """Return the ways to lay out a global batch that a model is tried with."""
    return ("padded", "cut by length", "packed") if MODELS[name].packs else ("padded", "cut by length")


def sources(name: str, samples: int = SAMPLES) -> tuple[Source | Images, Source | Images]:
    """Return the samples for training and for evaluation."""
    kind = MODELS[name].kind
    if kind == "images":
        return Images(samples, 1), Images(EVALUATION_SAMPLES, 2)
    by_token = kind != "texts"
    return Source(samples, 1, by_token), Source(EVALUATION_SAMPLES, 2, by_token)


def work_task(name: str, samples: int = SAMPLES) -> Task:
    """Return the task of one of `MODELS`."""
    work = MODELS[name]
    training, evaluation = sources(name, samples)
    of_classes = work.kind in ("texts", "images")

    def collate_and_note(rows: Sequence[Sample]) -> Batch:
        batch = collate(work.kind, rows)
        return {**batch, **note_padding([len(tokens) for tokens, _ in rows])} if "input_ids" in batch else batch

    def logits(model: torch.nn.Module, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        match work.kind:
            case "answers":
                return target_logits(model, batch)
            case "continuations":
                return causal_logits(model, batch)[:, :-1]
        answer = output_of(model, batch, "labels")
        return answer if isinstance(answer, torch.Tensor) else answer.logits

    def labels(batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return batch["labels"][:, 1:] if work.kind == "continuations" else batch["labels"]

    def loss(model: torch.nn.Module, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        flat = logits(model, batch).flatten(0, -2)
        return F.cross_entropy(flat, labels(batch).flatten(), ignore_index=IGNORED, reduction="sum")

    return Task(
        model=lambda runtime: work.build(),
        data=TaskData(train=training, evaluate=evaluation),
        collate=collate_and_note,
        units=lambda batch: int((labels(batch) != IGNORED).sum()),
        loss=loss,
        predict=(lambda model, batch: logits(model, batch).argmax(-1)) if of_classes else None,
        metrics=[accuracy] if of_classes else [],
    )


def work_config(micro: int, cut: Cut = "cut by length", epochs: int = 2) -> Config:
    """Return the settings of one layout. The evaluation is cut like the training, so that its cut is tried as well."""
    return Config(
        batch=BatchConfig(
            size=GLOBAL_BATCH,
            micro=micro,
            balance=cut != "padded",
            pack="always" if cut == "packed" else "never",
            eval=micro,
        ),
        optim=OptimConfig(lr=5e-3, weight_decay=0.01, clip=1.0, warmup=0.1),
        epochs=epochs,
    )


@dataclass(frozen=True)
class LayoutResult:
    """What one training came to; the same in every process."""

    weights: torch.Tensor
    """All that are trained in one row, on the host."""
    losses: list[float]
    """By step."""
    norms: list[float]
    """Gradient norms before clipping, by step."""
    metrics: list[dict[str, float]]
    """By evaluation."""
    fingerprints: list[str]
    """Of the samples of each step; empty where the method has none."""


def run_layout(
    runtime: Runtime, name: str, micro: int, cut: Cut, epochs: int = 2, samples: int = SAMPLES
) -> LayoutResult:
    """Train one layout with the toolkit, in all processes of `runtime`, and leave the runtime fit for the next."""
    training = prepare(work_task(name, samples), work_config(micro, cut, epochs), runtime)
    assert not training.drawn_by_topology, training.drawn_by_topology
    assert abs(active_dropout(training.model) - DROPOUT) < 1e-6
    assert training.sampler.packed == (cut == "packed")
    training.output.rows = rows = []
    last: Evaluation = train(training)
    evaluations = [row.evaluation for row in rows if row.evaluation is not None]
    assert evaluations[-1] == last.metrics
    weights = all_weights(runtime.accelerator.unwrap_model(training.model))
    runtime.accelerator.free_memory()
    return LayoutResult(
        weights,
        [row.loss for row in rows if row.loss is not None],
        [row.gradient_norm for row in rows],
        evaluations,
        [row.fingerprint for row in rows],
    )


def all_weights(model: torch.nn.Module) -> torch.Tensor:
    """Return all weights that are trained in one row, on the host."""
    trained = (whole(parameter).detach() for parameter in model.parameters() if parameter.requires_grad)
    return torch.cat([parameter.cpu().flatten() for parameter in trained])


def whole(parameter: torch.Tensor) -> torch.Tensor:
    """Return a parameter whole, of which this process may hold a part; all processes call it together."""
    if isinstance(parameter, DTensor):
        return parameter.full_tensor()
    if not hasattr(parameter, "ds_tensor"):
        return parameter
    import deepspeed

    with deepspeed.zero.GatheredParameters([parameter]):
        return parameter.detach().clone()


@dataclass(frozen=True)
class Difference:
    """How far one layout is from another; each figure relative, infinite where the number of steps differs."""

    weights: float
    """||a - b|| / ||b|| over all weights together: a single weight whose true gradient is zero is noise."""
    loss: float
    """The largest of all steps."""
    norm: float
    """The largest of all steps."""
    metrics: float
    """The largest of all evaluations and metrics."""
    same_samples: bool
    """Whether every step had the same samples."""

    @property
    def largest(self) -> float:
        """The worst of the four."""
        return max(self.weights, self.loss, self.norm, self.metrics)


def difference(result: LayoutResult, first: LayoutResult) -> Difference:
    """Return how far a layout is from the first one."""
    return Difference(
        float((result.weights - first.weights).norm() / first.weights.norm()),
        furthest(result.losses, first.losses),
        furthest(result.norms, first.norms),
        furthest(flat(result.metrics), flat(first.metrics)),
        result.fingerprints == first.fingerprints,
    )


def furthest(values: list[float], others: list[float]) -> float:
    """Return the largest relative difference of two lists, element by element; infinite if their lengths differ."""
    if len(values) != len(others):
        return float("inf")
    return max(0.0 if a == b else abs(a - b) / max(abs(b), 1e-300) for a, b in zip(values, others, strict=True))


def flat(evaluations: list[dict[str, float]]) -> list[float]:
    """Return all metrics of all evaluations, by name."""
    return [metrics[name] for metrics in evaluations for name in sorted(metrics)]
