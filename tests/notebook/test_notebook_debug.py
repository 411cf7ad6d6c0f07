"""The debugging notebook finds what it claims, and its functions leave no trace on a training or a kernel."""

import json
import os
import random
import signal
import sys
import threading
import time
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_chat
import small_language
import torch
from launching import CLASSIFY, CPU, ROOT, TINY
from notebooks_running import NOTEBOOKS, outputs_in, run_notebook
from tiny_recipe import Tiny
from tiny_recipe import task as tiny_task
from trial import run_here

from toolkit import UserError
from toolkit.errors import Preempted
from toolkit.loop import train_step
from toolkit.losses import NOT_COUNTED
from toolkit.notebook import (
    Recipe,
    first_batch,
    gradient_norms,
    launch,
    learning_rate_range,
    loss_per_token,
    open_recipe,
    overfit,
    prepared,
    profile_step,
    run,
    run_with_plot,
)
from toolkit.notebook.batches import micro_batches_of, some_samples
from toolkit.notebook.launching import problems_in, run_and_show
from toolkit.notebook.learning import values_of
from toolkit.notebook.session import as_it_was, generator_states
from toolkit.notebook.token_losses import TokenLoss, coloured
from toolkit.output.ledger import read_ledger
from toolkit.output.run_folder import RunFolder, is_locked
from toolkit.train_state import TrainState

NOTEBOOK = NOTEBOOKS / "debug_on_one_gpu.ipynb"
TRIED = (
    first_batch,
    lambda training: overfit(training, steps=3),
    lambda training: learning_rate_range(training, steps=4),
    lambda training: gradient_norms(training, steps=2),
    profile_step,
)


def open_tiny(folder: Path, settings: str = "") -> Recipe:
    return open_recipe(TINY, f"--threads 1 --output {folder} {settings}")


def everything(training: TrainState) -> list[Any]:
    """Return all that a step may change, as plain values."""
    optimizer = training.optimizer.optimizer
    states = generator_states()
    return [
        [(name, tensor.tolist()) for name, tensor in training.model.state_dict().items()],
        [p.grad is None for p in training.model.parameters()],
        [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups],
        [{key: torch.as_tensor(value).tolist() for key, value in optimizer.state[p].items()} for p in optimizer.state],
        [module.training for module in training.model.modules()],
        states["python"],
        states["numpy"][1].tolist(),
        states["torch"].tolist(),
    ]


def test_the_notebook_finds_what_it_says() -> None:
    found = run_notebook(NOTEBOOK)
    assert found["rows"] == len(found["labels"]) == 16
    assert {label.partition(" ")[2] for label in found["labels"]} >= {"(os)", "(math)"}
    assert 0.05 < found["padding"] < 0.5
    begun, learned = found["overfit"]
    assert begun > 1
    assert learned < 0.01
    assert found["suggested"] == pytest.approx(found["lowest"] / 10)
    assert 1e-4 < found["suggested"] < 1e-1
    for norms, total in zip(found["norms"], found["totals"], strict=True):
        assert len(norms) == len(found["layers"])
        assert sum(norm**2 for norm in norms) ** 0.5 == pytest.approx(total, rel=1e-5)
    assert found["phases"] == [
        "fetching and collating",
        "in the forward pass",
        "in the backward pass",
        "in the optimizer step",
    ]
    assert found["accuracy"] > found["baseline"] + 0.2
    # To the last digit: what was tried before the run had left nothing behind.
    assert found["first"] == [begun, found["totals"][0]]
    summed, total, counted, units = found["tokens"]
    assert summed == pytest.approx(total, rel=1e-5)
    assert counted == units == 3 * 64
    assert found["apart"] < 1e-5
    assert found["accuracies"][0] == found["accuracies"][1] == found["accuracy"]
    assert "leave fork out" in found["fork"]


def test_the_notebook_is_kept_without_outputs() -> None:
    assert outputs_in(NOTEBOOK) == 0


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_what_is_tried_leaves_the_training_as_it_was(tmp_path: Path, optimizer: str) -> None:
    training = prepared(open_tiny(tmp_path / "run", f"--model.flaw dropout --optim.name {optimizer}"))
    # In the middle of a training: there are averages, and the generators have been drawn from.
    values_of(training, 0, micro_batches_of(training, 0))
    before = everything(training)
    for tried in TRIED:
        tried(training)
        assert everything(training) == before

    def failing() -> None:
        with as_it_was(training):
            train_step(training, 0, micro_batches_of(training, 0), 8)
            random.random(), np.random.rand(), torch.rand(1)
            training.model.eval()
            assert everything(training) != before
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failing()
    assert everything(training) == before


def test_a_run_after_all_of_it_has_the_numbers_of_a_run_alone(tmp_path: Path) -> None:
    settings = "--model.flaw dropout"
    alone = run(open_tiny(tmp_path / "alone", settings))
    recipe = open_tiny(tmp_path / "after", settings)
    training = prepared(recipe)
    for tried in TRIED:
        tried(training)
    after = run_with_plot(recipe)
    assert after.metrics == alone.metrics
    numbers = [
        [(row["loss"], row["gradient_norm"], row["fingerprint"]) for row in read_ledger(result.output / "ledger.jsonl")]
        for result in (alone, after)
    ]
    assert numbers[0] == numbers[1]
    weights = [(result.output / "model" / "model.safetensors").read_bytes() for result in (alone, after)]
    assert weights[0] == weights[1]
    # And the other way round: a run leaves a training that was prepared before it alone.
    assert overfit(training, steps=2).losses == overfit(prepared(recipe), steps=2).losses


def test_a_kernel_has_several_runs_each_with_its_own_precision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(open_tiny(tmp_path / "one"))
    training = prepared(open_tiny(tmp_path / "looked-at"))
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    with pytest.raises(UserError, match="mixed precision bf16"):
        run(open_tiny(tmp_path / "two"))
    record = json.loads((tmp_path / "two" / "run.json").read_text())
    assert record["status"] == "refused"
    assert "mixed precision bf16" in record["problems"][0]
    # Nor does what the notebook still holds take the precision of the next one.
    assert training.runtime.precision == "no"
    assert overfit(training, steps=1).losses[1] < overfit(training, steps=1).losses[0]
    monkeypatch.delenv("ACCELERATE_MIXED_PRECISION")
    assert run(open_tiny(tmp_path / "two")).steps == 12


def test_a_refusal_is_shown_in_sentences() -> None:
    with pytest.raises(UserError) as refused:
        open_recipe(TINY, "--batch.size 0 --seed -1")
    opening, *sentences = refused.value._render_traceback_()
    assert opening == "This can't go on:"
    assert [sentence[:4] for sentence in sentences] == ["  - "] * 2
    assert "batch.size is 0" in sentences[0]
    with pytest.raises(UserError, match="--help"):
        open_recipe(TINY, "--help")
    with pytest.raises(UserError, match="close the quotes"):
        open_recipe(TINY, "--output 'here")


def test_a_stopped_run_goes_on_in_the_same_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # As in a kernel: whoever was asked to stop does not go deaf to the next request.
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    calls = 0

    def interrupted(config: Tiny) -> Any:
        made = tiny_task(config)

        def loss(model: Any, batch: Any) -> torch.Tensor:
            nonlocal calls
            calls += 1
            if calls == 5:
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0.2)
            return made.loss(model, batch)  # type: ignore[operator]

        return replace(made, loss=loss)

    recipe = Recipe("tiny", Tiny(threads=1, rehearse=False, output=str(tmp_path / "run")), interrupted)
    with pytest.raises(Preempted) as stopped:
        run(recipe)
    assert 0 < stopped.value.step < 12
    assert "the same cell goes on" in stopped.value._render_traceback_()[0]
    resumed = run(recipe)
    assert resumed.steps == 12
    assert resumed.metrics == run(replace(recipe, task=tiny_task).into(tmp_path / "whole")).metrics
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_interrupt_ends_the_run_and_not_the_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)

    def impatient(config: Tiny) -> Any:
        made = tiny_task(config)

        def loss(model: Any, batch: Any) -> torch.Tensor:
            if torch.is_grad_enabled() and (tmp_path / "run" / "ledger.jsonl").exists():
                for _ in range(2):
                    os.kill(os.getpid(), signal.SIGINT)
                    time.sleep(0.3)
            return made.loss(model, batch)  # type: ignore[operator]

        return replace(made, loss=loss)

    recipe = Recipe("tiny", Tiny(threads=1, output=str(tmp_path / "run")), impatient)
    with pytest.raises(KeyboardInterrupt):
        run(recipe)
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "failed"
    assert not is_locked(tmp_path / "run")
    assert run(replace(recipe, task=tiny_task)).steps == 12


def test_gradient_norms_are_those_of_the_whole_global_batch(tmp_path: Path) -> None:
    training = prepared(open_tiny(tmp_path / "run", "--batch.micro 3"))
    assert len(micro_batches_of(training, 0)) > 1
    found = gradient_norms(training)
    whole = prepared(open_tiny(tmp_path / "run", "--batch.balance false"))
    (micro,) = micro_batches_of(whole, 0)
    (whole.task.loss(whole.model, micro.batch) / micro.units).backward()  # type: ignore[operator]
    layers = {"inner": 0.0, "outer": 0.0}
    for name, parameter in whole.model.named_parameters():
        layers[name.partition(".")[0]] += float(parameter.grad.square().sum())  # type: ignore[union-attr]
    assert found.layers == list(layers)
    assert found.norms[0] == pytest.approx([square**0.5 for square in layers.values()], rel=1e-12)


def test_the_range_test_rises_evenly_and_begins_as_the_run_does(tmp_path: Path) -> None:
    recipe = open_tiny(tmp_path / "run")
    training = prepared(recipe)
    found = learning_rate_range(training, 1e-4, 1e-1, steps=4)
    assert found.rates == pytest.approx([1e-4, 1e-3, 1e-2, 1e-1])
    run(recipe)
    assert found.losses[0] == next(read_ledger(tmp_path / "run" / "ledger.jsonl"))["loss"]
    assert len(learning_rate_range(training, 1.0, 1e6, steps=30).rates) < 30
    with pytest.raises(UserError, match="two rates above 0"):
        learning_rate_range(training, 1.0, 0.1)


@pytest.mark.parametrize("objective", ["causal", "masked"])
def test_the_loss_of_tokens_adds_up_to_that_of_the_recipe(tmp_path: Path, objective: str) -> None:
    arguments = small_language.arguments(tmp_path, objective)
    recipe = ROOT / "recipes" / "language.py"
    training = prepared(open_recipe(recipe, " ".join([*arguments, f"--threads 1 --output {tmp_path}/run"])))
    shown = loss_per_token(training, samples=4)
    assert sum(token.loss or 0.0 for token in shown.worst) == pytest.approx(shown.total, rel=1e-9)
    assert len(shown.worst) == shown.units
    # The whole text is there, in its order, and not what hides it.
    texts = ["".join(token.text for token in text) for text in shown.texts]
    corpus = "".join(path.read_text() for path in sorted((tmp_path / "texts").iterdir()))
    inner = [text.replace("[CLS]", "").replace("[SEP]", "").strip() for text in texts]
    assert "[MASK]" not in "".join(inner)
    if objective == "causal":
        assert [[token.loss is None for token in text].count(True) for text in shown.texts] == [1] * 4
        assert all(text[0].loss is None for text in shown.texts)
        assert all(part in corpus for text in inner for part in text.split("\n")[1:-1])


def test_the_loss_of_a_chat_lies_on_the_replies(tmp_path: Path) -> None:
    arguments = small_chat.arguments(tmp_path)
    training = prepared(
        open_recipe(
            ROOT / "recipes" / "chat.py", " ".join([*map(str, arguments), f"--threads 1 --output {tmp_path}/run"])
        )
    )
    shown = loss_per_token(training, samples=2)
    assert sum(token.loss or 0.0 for token in shown.worst) == pytest.approx(shown.total, rel=1e-5)
    assert len(shown.worst) == shown.units
    labels = some_samples(training, 2).batch["labels"]
    for row, text in zip(labels, shown.texts, strict=True):
        wanted = training.task.decode(row[row != NOT_COUNTED].tolist())  # type: ignore[misc]
        assert "".join(token.text for token in text if token.loss is not None) == wanted
        assert any(token.loss is None for token in text)


def test_a_loss_that_is_not_of_tokens_is_not_shown_on_them(tmp_path: Path, encoder: Path, table: Path) -> None:
    with pytest.raises(UserError, match="has no `decode`"):
        loss_per_token(prepared(open_tiny(tmp_path / "run")))
    settings = f"--model.name {encoder} --data.train {table} --threads 1 --output {tmp_path}/run"
    classify = prepared(open_recipe(CLASSIFY, settings))
    with pytest.raises(UserError, match="every token of a batch has a label"):
        loss_per_token(classify)
    batch = first_batch(classify)
    assert "[CLS] " in batch.rows[0]["text"]
    assert batch.padding == pytest.approx(
        sum(row["padding"] for row in batch.rows)
        / sum(shape["input_ids"][0] * shape["input_ids"][1] for shape in batch.shapes)
    )


def test_a_token_is_text_and_never_markup() -> None:
    shown = coloured(TokenLoss("<script>&", 1.0), 2.0)
    assert "<script>" not in shown
    assert "<script>&" in unescape(shown)
    assert "0.42" in shown  # half of the deepest colour


def test_a_kernel_is_not_forked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = open_tiny(tmp_path / "run")
    with pytest.raises(UserError, match="lacks the threads"):
        launch(recipe, CPU, fork=True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with pytest.raises(UserError, match="has used CUDA already"):
        launch(recipe, CPU, fork=True)
    assert not (tmp_path / "run").exists()
    # If the kernel is forked by other means, the fork prints the message.
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    run_here(Tiny, tiny_task, ["--threads", "1"], tmp_path / "forked").refused("forked from one that had used CUDA")


def test_what_can_not_be_launched_is_refused(tmp_path: Path) -> None:
    recipe = open_tiny(tmp_path / "run")
    with pytest.raises(UserError, match="is written in this notebook"):
        launch(replace(recipe, path=None), CPU)
    with pytest.raises(UserError, match="no launch file"):
        launch(recipe, tmp_path / "none.yaml")


def test_what_the_processes_say_is_shown_and_their_refusal_understood(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    refusal = "import sys; print('\\ntiny can\\'t go on:\\n  - too small', file=sys.stderr); sys.exit(2)"
    script = f"print('begun', flush=True); {refusal}"
    code, lines = run_and_show([sys.executable, "-c", script], RunFolder(tmp_path))
    assert code == 2
    assert list(problems_in(lines)) == ["too small"]
    assert "begun" in capfd.readouterr().out


def test_an_interrupt_asks_the_processes_to_stop_and_another_one_ends_them(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "new")
    waiting = "import time, pathlib\nwhile not pathlib.Path({0!r}).exists(): time.sleep(0.05)\nprint('sealed')\n{1}"
    interrupt = (os.getpid(), signal.SIGINT)
    threading.Timer(0.8, os.kill, interrupt).start()
    code, lines = run_and_show([sys.executable, "-c", waiting.format(str(folder.stop_file), "")], folder)
    assert (code, lines) == (0, ["sealed\n"])
    assert not folder.stop_file.exists()
    for seconds in (0.8, 1.3):
        threading.Timer(seconds, os.kill, interrupt).start()
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_and_show([sys.executable, "-c", waiting.format(str(folder.stop_file), "time.sleep(60)")], folder)
    assert time.monotonic() - begun < 30
