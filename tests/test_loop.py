"""The loop's numbers: against a hand-written loop, over cuts, over processes; and what it does with odd batches."""

import gc
import json
from collections import Counter
from dataclasses import replace
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from launching import TINY, launch
from safetensors.torch import load_file
from tiny_recipe import Network, Sequences, Tiny, collate, task
from trial import run_here

from toolkit.config.batch import BatchConfig
from toolkit.config.optim import OptimConfig
from toolkit.data.order import ShuffledOrder, fingerprint
from toolkit.distributed.counts import Counts
from toolkit.distributed.phase import PhaseTracker
from toolkit.distributed.runtime import Runtime
from toolkit.distributed.start_runtime import start_runtime
from toolkit.errors import UserError
from toolkit.loop import train
from toolkit.optimizer import begin_averages, build_optimizer
from toolkit.output.ledger import LedgerRow, read_ledger
from toolkit.prepare import prepare
from toolkit.randomness import seed_for
from toolkit.schedules import learning_rate
from toolkit.step_log import PendingStep, StepValues
from toolkit.train_state import MOST_SKIPS_IN_FP16, TrainState


def run(config: Tiny) -> tuple[dict[str, torch.Tensor], list[LedgerRow]]:
    """Train in this process and return the final weights and the ledger's rows."""
    runtime = start_runtime(config)
    training = prepare(task(config), config, runtime)
    training.output.rows = rows = []
    train(training)
    weights = {name: tensor.clone() for name, tensor in training.model.state_dict().items()}
    runtime.accelerator.free_memory()
    return weights, rows


def relative(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """Return ||one - other|| / ||other|| over all weights together."""
    a, b = (torch.cat([w[name].flatten() for name in sorted(other)]) for w in (one, other))
    return float((a - b).norm() / b.norm())


def by_hand(config: Tiny) -> tuple[dict[str, torch.Tensor], list[dict[str, float]]]:
    """Train as one would without any toolkit: the whole global batch at once, the mean over its units."""
    torch.manual_seed(seed_for(config.seed, "new weights"))
    model, source = Network(), Sequences(config.data.samples, 0, config.data.unlabelled_below)
    optimizer = build_optimizer(config.optim, model)
    order = ShuffledOrder(len(source), config.batch.size, config.seed)
    total = round(config.epochs * order.steps_per_epoch) if config.epochs else 0
    rows = []
    for step in range(total):
        batch = collate(source.fetch(order.global_batch(step).tolist()))
        loss = F.cross_entropy(model(batch["values"], batch["mask"]), batch["labels"])
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), config.optim.clip or float("inf"))
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(config.optim, step, total)
        optimizer.step()
        optimizer.zero_grad()
        rows.append({"loss": loss.item(), "norm": norm.item()})
    return model.state_dict(), rows


@pytest.mark.parametrize("name", ["adamw", "sgd"])
@pytest.mark.parametrize(
    ("micro", "balance"), [(None, True), (None, False), (1, True), (3, True), (3, False), (8, False)]
)
def test_any_cut_gives_what_a_hand_written_loop_gives(name: Any, micro: int | None, balance: bool) -> None:
    config = Tiny(
        batch=BatchConfig(size=8, micro=micro, balance=balance, eval=5),
        optim=OptimConfig(name=name, lr=0.05, warmup=3, clip=0.3),
    )
    weights, rows = run(config)
    expected, expected_rows = by_hand(config)
    assert relative(weights, expected) < 1e-13
    assert [row.loss for row in rows] == pytest.approx([row["loss"] for row in expected_rows], rel=1e-13)
    assert [row.gradient_norm for row in rows] == pytest.approx([row["norm"] for row in expected_rows], rel=1e-12)
    assert [row.step for row in rows] == list(range(1, 13))
    assert rows[5].epoch == 1.0
    # The weights went somewhere, so that equal numbers mean something.
    torch.manual_seed(seed_for(0, "new weights"))
    assert relative(Network().state_dict(), expected) > 0.02


def test_the_ledger_says_which_samples_a_step_saw() -> None:
    config = Tiny(batch=BatchConfig(size=8, micro=3, eval=5))
    _, rows = run(config)
    order = ShuffledOrder(45, 8, 0)
    assert [row.fingerprint for row in rows] == [f"{fingerprint(order.global_batch(s)):016x}" for s in range(12)]
    assert [row.samples for row in rows] == [8, 8, 8, 8, 8, 5] * 2
    assert all(0 <= row.padding < 0.6 for row in rows if row.padding is not None)


def test_units_are_counted_and_a_step_without_any_changes_nothing_but_advances() -> None:
    """All samples of some steps carry no label: no decay, no momentum; order and schedule go on."""
    config = Tiny(
        optim=OptimConfig(lr=0.05, weight_decay=0.5, warmup=3),
        data=replace(Tiny().data, unlabelled_below=45),
        steps=3,
        epochs=None,
    )
    weights, rows = run(config)
    torch.manual_seed(seed_for(0, "new weights"))
    assert relative(weights, Network().state_dict()) == 0
    assert [(row.units, row.skipped, row.loss) for row in rows] == [(0, True, None)] * 3

    some = replace(config, data=replace(config.data, unlabelled_below=20), steps=None, epochs=2)
    weights, rows = run(some)
    expected, _ = by_hand(some)
    assert relative(weights, expected) < 1e-13
    assert sum(row.units for row in rows) == 2 * 25


def test_a_gradient_that_is_not_finite_stops_the_run_before_it_reaches_the_weights() -> None:
    """The fifth loss is nan: one try on the first batch, then step 4."""
    config = Tiny(model=replace(Tiny().model, flaw="nan"))
    runtime = start_runtime(config)
    training = prepare(task(config), replace(config, batch=replace(config.batch, balance=False)), runtime)
    with pytest.raises(UserError, match=r"gradient of step 4 is not finite.*weights were not changed"):
        train(training)
    assert all(torch.isfinite(parameter).all() for parameter in training.model.parameters())
    runtime.accelerator.free_memory()


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_a_first_step_without_a_finite_gradient_leaves_a_sound_optimizer(name: Any) -> None:
    model = Network()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    optimizer = build_optimizer(OptimConfig(name=name, lr=0.1), model)
    begin_averages(optimizer)
    for gradient in (float("nan"), 0.0):
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, gradient)
        optimizer.found_inf = torch.tensor(float(gradient != gradient))  # type: ignore[attr-defined]
        optimizer.step()
    # The second gradient is zero: what the weights move by now is decay alone.
    assert relative(model.state_dict(), before) < 0.002


def test_an_error_of_one_process_speaks_and_ends_all(tmp_path: Path) -> None:
    """The other process is in a collective by then; nobody may wait for it."""
    result = launch(TINY, "--output", str(tmp_path / "run"), "--model.flaw", "lone", timeout=60)
    assert result.returncode == 1
    # At once, and again below the launcher's trace.
    assert result.stderr.count("process 1: this file of this process alone is broken") == 2


def test_a_step_that_fp16_skips_is_counted_and_the_run_goes_on() -> None:
    """The gradient scaler tries a loss scale that is too large now and then; no accelerator is needed to see the
    rule."""
    device = torch.device("cpu")
    runtime: Any = SimpleNamespace(precision="fp16", phase=PhaseTracker(), device=device, devices=(device,))
    nothing: Any = None
    order = ShuffledOrder(45, 8, 0)
    model = Network()
    state = TrainState(nothing, Tiny(), runtime, model, nothing, nothing, order, total_steps=18, sampler=nothing)
    pending = PendingStep(2, StepValues(lambda: [4.0, float("inf")], 0.1), Counts(units=8, samples=8), 1.0, 0.0)
    row = state.row_of(pending, 4.0)
    assert (row.step, row.skipped, row.loss) == (3, True, 0.5)
    state.record(row)
    assert state.skipped == 1
    # Where no loss scale is left to try, the gradient itself is not finite.
    state.skipped_in_a_row = MOST_SKIPS_IN_FP16
    with pytest.raises(UserError, match="gradient of step 3 is not finite"):
        state.row_of(pending, 4.0)


@pytest.mark.parametrize("every", [None, 5])
def test_evaluation_comes_when_it_is_due_and_equals_a_plain_one(every: int | None) -> None:
    config = Tiny(evaluate=replace(Tiny().evaluate, every=every))
    weights, rows = run(config)
    assert [row.step for row in rows if row.evaluation] == ([6, 12] if every is None else [5, 10, 12])
    model, batch = Network(), collate(Sequences(23, 10_000).fetch(range(23)))
    model.load_state_dict(weights)
    logits = model(batch["values"], batch["mask"])
    assert rows[-1].evaluation == pytest.approx(
        {
            "loss": F.cross_entropy(logits, batch["labels"]).item(),
            "accuracy": float((logits.argmax(-1) == batch["labels"]).double().mean()),
        },
        rel=1e-13,
    )


def test_the_size_of_an_evaluation_batch_changes_no_metric() -> None:
    results = [run(Tiny(batch=BatchConfig(size=8, eval=size)))[1][-1].evaluation for size in (1, 7, 23, 100)]
    for result in results[1:]:
        assert result == pytest.approx(results[0], rel=1e-14)


def test_loader_workers_change_nothing() -> None:
    alone, rows = run(Tiny())
    helped, helped_rows = run(Tiny(data=replace(Tiny().data, workers=2)))
    assert relative(helped, alone) == 0
    assert [row.loss for row in helped_rows] == [row.loss for row in rows]


def test_a_run_repeats_bit_for_bit_and_another_seed_does_not() -> None:
    config = Tiny(model=replace(Tiny().model, flaw="dropout"))
    first, _ = run(config)
    again, _ = run(config)
    other, _ = run(replace(config, seed=1))
    assert relative(again, first) == 0
    assert relative(other, first) > 0.01


@pytest.mark.parametrize(("processes", "micro"), [(2, "2"), (4, "1")])
def test_real_processes_give_the_numbers_of_one(processes: int, micro: str, tmp_path: Path) -> None:
    """45 samples, batches of 8 and a last one of 5: with 4 processes and micro-batches of 1 there are spare ones."""
    output = tmp_path / "run"
    seen = tmp_path / "seen"
    seen.mkdir()
    result = launch(TINY, "--output", str(output), "--batch.micro", micro, processes=processes, TINY_SEEN=str(seen))
    assert result.returncode == 0, result.stderr
    expected, expected_rows = run(Tiny())
    rows = list(read_ledger(output / "ledger.jsonl"))
    assert relative(load_file(output / "model" / "model.safetensors"), expected) < 1e-13
    assert [row["loss"] for row in rows] == pytest.approx([row.loss for row in expected_rows], rel=1e-12)
    assert [row["gradient_norm"] for row in rows] == pytest.approx([r.gradient_norm for r in expected_rows], rel=1e-11)
    assert [row["fingerprint"] for row in rows] == [row.fingerprint for row in expected_rows]
    assert rows[-1]["evaluation"] == pytest.approx(expected_rows[-1].evaluation, rel=1e-12)
    record = json.loads((output / "run.json").read_text())
    assert (record["status"], record["topology"][0]["processes"]) == ("finished", processes)

    # What really passed through the model. Tail of 5 on 4 processes: 2 rounds of 4 micro-batches, of which 3 are spare,
    # in each of two epochs.
    dummies = 6 if processes == 4 else 0
    calls = [[json.loads(line) for line in path.read_text().splitlines()] for path in sorted(seen.iterdir())]
    assert len(calls) == processes
    assert len({len(one_process) for one_process in calls}) == 1
    # Before the first step samples are only tried.
    steps = next(
        taken
        for tried in range(2, len(calls[0]))
        if sum(map(len, chain(*(taken := [one[tried:] for one in calls])))) == 90 + dummies
    )
    passed = Counter(number for one_process in steps for batch in one_process for number in batch)
    if not dummies:
        assert passed == dict.fromkeys(range(45), 2)
        whole = sum(int(row["fingerprint"], 16) for row in rows) % 2**64
        ids = np.array(list(passed.elements()))
        assert whole == fingerprint(ids)


def test_model_and_optimizer_are_gone_before_the_process_groups_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What DDP wraps holds a group; a group that is destroyed under it now and then ends the process by SIGABRT."""
    alive: list[int] = []
    close = Runtime.close

    def counting(runtime: Runtime) -> None:
        gc.collect()
        alive.append(sum(isinstance(thing, TrainState) for thing in gc.get_objects()))
        close(runtime)

    gc.collect()
    before = sum(isinstance(thing, TrainState) for thing in gc.get_objects())
    monkeypatch.setattr(Runtime, "close", counting)
    run_here(Tiny, task, ["--threads", "1"], tmp_path / "run").done()
    assert alive == [before]
