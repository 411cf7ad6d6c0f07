"""What a task can say beyond a loss per sample: global-batch losses, random transforms, predictions that are finished
later."""

import json
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from resuming import stopping
from safetensors.torch import load_file
from test_loop import relative
from tiny_recipe import Network, Sequences, Tiny, collate, task
from trial import run_here

from toolkit.config.batch import BatchConfig
from toolkit.config.optim import OptimConfig
from toolkit.config.schema import EvaluateConfig
from toolkit.data.order import ShuffledOrder
from toolkit.distributed.start_runtime import start_runtime
from toolkit.evaluation import evaluate_model
from toolkit.loop import train
from toolkit.metrics import accuracy
from toolkit.optimizer import build_optimizer
from toolkit.output.evaluation_file import Evaluation
from toolkit.output.ledger import LedgerRow
from toolkit.prepare import prepare
from toolkit.randomness import seed_for
from toolkit.schedules import learning_rate
from toolkit.task import Batch, GlobalBatchLoss, Postprocessed, Task


@dataclass(frozen=True)
class Ran:
    weights: dict[str, torch.Tensor]
    rows: list[LedgerRow]
    last: Evaluation


def run(made: Task, config: Tiny) -> Ran:
    """Train a task in this process."""
    runtime = start_runtime(config)
    training = prepare(made, config, runtime)
    training.output.rows = rows = []
    last = train(training)
    weights = {name: tensor.clone() for name, tensor in training.model.state_dict().items()}
    runtime.accelerator.free_memory()
    return Ran(weights, rows, last)


def embed(model: torch.nn.Module, batch: Batch) -> torch.Tensor:
    return model(batch["values"], batch["mask"])  # type: ignore[no-any-return]


def contrast(embeddings: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Samples of one label are to lie close: a sum over samples that every other sample of the batch is in."""
    normal = F.normalize(embeddings, dim=-1)
    alike = 5 * normal @ normal.T
    same = (labels[:, None] == labels[None, :]).double()
    return -(same * F.log_softmax(alike, dim=-1)).sum()


def joint(config: Tiny) -> Task:
    together = GlobalBatchLoss(embed, contrast, extra=lambda batch: batch["labels"])
    return replace(task(config), loss=together)


def by_hand(config: Tiny) -> tuple[dict[str, torch.Tensor], list[float]]:
    """Train on each whole global batch at once, without any toolkit."""
    torch.manual_seed(seed_for(config.seed, "new weights"))
    model, source = Network(), Sequences(config.data.samples, 0)
    optimizer = build_optimizer(config.optim, model)
    order = ShuffledOrder(len(source), config.batch.size, config.seed)
    total, losses = round((config.epochs or 0) * order.steps_per_epoch), []
    for step in range(total):
        batch = collate(source.fetch(order.global_batch(step).tolist()))
        loss = contrast(embed(model, batch), batch["labels"]) / len(batch["labels"])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.optim.clip or float("inf"))
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(config.optim, step, total)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return model.state_dict(), losses


@pytest.mark.parametrize("micro", [None, 1, 3, 8])
def test_a_joint_loss_spans_the_global_batch_whatever_the_cut(micro: int | None) -> None:
    config = Tiny(batch=BatchConfig(size=8, micro=micro, eval=5), optim=OptimConfig(lr=0.05, warmup=3))
    ran, (weights, losses) = run(joint(config), config), by_hand(config)
    assert relative(ran.weights, weights) < 1e-13
    assert [row.loss for row in ran.rows] == pytest.approx(losses, rel=1e-13)
    # The cut does change what is computed on each part alone: the gathering is what makes them equal.
    torch.manual_seed(seed_for(0, "new weights"))
    assert relative(Network().state_dict(), weights) > 0.02


@pytest.mark.parametrize("size", [1, 4, 23])
def test_the_joint_loss_of_an_evaluation_is_taken_in_blocks_of_the_global_batch(size: int) -> None:
    config = Tiny(batch=BatchConfig(size=8, eval=size))
    runtime = start_runtime(config)
    training = prepare(joint(config), config, runtime)
    found = evaluate_model(training.task, config, runtime, training.model)
    source, expected = Sequences(config.data.held_out, 10_000), 0.0
    for start in range(0, len(source), 8):
        batch = collate(source.fetch(range(start, min(start + 8, len(source)))))
        with torch.no_grad():
            expected += float(contrast(embed(training.model, batch), batch["labels"]))
    runtime.accelerator.free_memory()
    assert found is not None
    assert found.metrics["loss"] == pytest.approx(expected / len(source), rel=1e-13)


def shifted(config: Tiny, seen: list[tuple[int, float]]) -> Task:
    """A task that moves every training sample by a random amount, and writes it down."""

    def transform(sample: Any, generator: np.random.Generator) -> Any:
        shift = float(generator.normal())
        seen.append((sample["id"], shift))
        return {**sample, "values": sample["values"] + shift}

    return replace(task(config), transform=transform)


def test_a_random_transform_depends_on_seed_epoch_and_sample_alone() -> None:
    def drawn(**changes: Any) -> tuple[list[tuple[int, float]], Ran]:
        seen: list[tuple[int, float]] = []
        config = Tiny(**{"batch": BatchConfig(size=8, micro=3, eval=5), **changes})
        ran = run(shifted(config, seen), config)
        # One batch is tried before the first step.
        return seen[-2 * config.data.samples :], ran

    seen, ran = drawn()
    again, other_cut = drawn(batch=BatchConfig(size=8, micro=None, balance=False, eval=5))
    assert sorted(seen) == sorted(again)
    assert relative(ran.weights, other_cut.weights) < 1e-13
    # Two epochs, two different shifts for each sample; another seed draws others.
    assert set(Counter(number for number, _ in seen).values()) == {2}
    assert len(set(seen)) == len(seen)
    assert not set(drawn(seed=1)[0]) & set(seen)


def test_samples_of_an_evaluation_are_transformed_alike_each_time_and_those_of_training_not() -> None:
    seen: list[tuple[int, float]] = []
    config = Tiny(evaluate=EvaluateConfig(every=6))
    made = shifted(config, seen)
    run(replace(made, transform=None, evaluate_transform=made.transform), config)
    assert len(seen) == 2 * config.data.held_out
    assert len(set(seen)) == config.data.held_out


def finishing(config: Tiny) -> Task:
    """A task whose samples are windows of two of a longer text: the metric counts pairs."""

    def postprocess(predictions: Any) -> Postprocessed:
        assert list(predictions) == list(range(config.data.held_out))
        pairs = [predictions[n] + predictions[n + 1] for n in range(0, config.data.held_out - 1, 2)]
        return Postprocessed(pairs, [2] * len(pairs), baseline=[2] * len(pairs))

    return replace(
        task(config),
        postprocess=postprocess,
        baseline=None,
        metrics=[accuracy],
        from_loss=lambda loss, units: {"twice": 2 * loss, "units": units},
        baseline_scores=lambda: {"twice": 7.0},
        show=lambda number, prediction, reference: {"pair": number, "sum": prediction, "wanted": reference},
    )


@pytest.mark.parametrize("size", [1, 5, 64])
def test_predictions_are_finished_all_together_in_the_order_of_the_samples(size: int) -> None:
    config = Tiny(batch=BatchConfig(size=8, eval=size), evaluate=EvaluateConfig(show=4))
    last = run(finishing(config), config).last
    sums = [example["sum"] for example in last.examples]
    assert [example["sample"] for example in last.examples] == [0, 3, 7, 10]
    assert [example["pair"] for example in last.examples] == [0, 3, 7, 10]
    assert 0 < last.metrics["accuracy"] < 1
    assert last.metrics["twice"] == 2 * last.metrics["loss"]
    assert last.metrics["units"] == config.data.held_out
    assert last.baseline == {"accuracy": 1.0, "twice": 7.0}
    assert all(0 <= total <= 4 for total in sums)


def test_predictions_are_written_where_a_reader_finds_them(tmp_path: Path) -> None:
    outcome = run_here(Tiny, finishing, ["--threads", "1", "--evaluate.show", "3"], tmp_path / "run").done()
    lines = (outcome.folder / "predictions.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["pair"] for line in lines] == [0, 5, 10]
    assert "predictions.jsonl" in outcome.output


class Partly(Network):
    """A network with a frozen half, drawn with the other weights."""

    def __init__(self, shift: float = 0.0) -> None:
        super().__init__()
        self.inner.requires_grad_(False)
        with torch.no_grad():
            self.inner.weight += shift


def test_frozen_weights_are_not_in_a_checkpoint_and_others_are_refused(tmp_path: Path) -> None:
    def half_frozen(shift: float = 0.0) -> Any:
        return lambda config: replace(task(config), model=lambda runtime: Partly(shift))

    whole = run_here(Tiny, half_frozen(), ["--threads", "1"], tmp_path / "whole").done().folder
    held = load_file(whole / "checkpoints" / "step-000012" / "weights.safetensors")
    assert sorted(held) == ["outer.bias", "outer.weight"]
    place = tmp_path / "asked"

    def build(config: Tiny) -> Task:
        return replace(stopping(place, training=5)(config), model=lambda runtime: Partly())

    assert run_here(Tiny, build, ["--threads", "1"], place).code == 75
    other = run_here(Tiny, half_frozen(1.0), ["--threads", "1"], place)
    other.told("the weights that are not trained are not those beside which")
    run_here(Tiny, half_frozen(), ["--threads", "1"], place).done()
    for name, tensor in load_file(place / "model" / "model.safetensors").items():
        assert torch.equal(tensor, load_file(whole / "model" / "model.safetensors")[name])
