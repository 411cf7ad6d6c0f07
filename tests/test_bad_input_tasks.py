"""Tasks of one's own that can't be trained: found before the first step, or at the step that shows it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import ROOT
from line import Forgetful, Line, Points, TwoHeads, squares, task
from trial import Outcome, run_here, run_outside


def run(folder: Path, *arguments: str, **changes: Any) -> Outcome:
    return run_here(Line, lambda config: task(**changes), ["--threads", "1", *arguments], folder)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "run"


def failed(outcome: Outcome) -> Outcome:
    """Check that the folder says what stderr says, and holds no model."""
    assert outcome.record["status"] == "failed"
    assert all(problem in outcome.errors for problem in outcome.record["problems"])
    assert not any("partial" in name or name == "model" for name in outcome.files)
    return outcome


def test_the_task_itself_is_good(folder: Path) -> None:
    outcome = run(folder, "--epochs", "1").done()
    assert (outcome.record["status"], outcome.record["step"]) == ("finished", 4)


def test_all_parameters_frozen(folder: Path) -> None:
    run(folder, model=lambda runtime: torch.nn.Linear(1, 1).requires_grad_(False)).refused(
        "the model has no trainable parameter; leave at least one with requires_grad"
    )


def test_no_training_sample(folder: Path) -> None:
    class Nothing(Points):
        def __len__(self) -> int:
            return 0

    run(folder, train=Nothing()).refused("there is no training sample")


FORGOTTEN = (
    "the source was asked for 4 samples and returned 3 (the first id is ",
    "fetch has to return one sample for each id, in their order",
)


def test_a_source_that_returns_too_few_samples(folder: Path) -> None:
    run(folder, train=Forgetful(0)).refused(*FORGOTTEN)


def test_a_source_that_returns_too_few_samples_later(folder: Path) -> None:
    failed(run(folder, "--rehearse", "false", train=Forgetful(3)).told(*FORGOTTEN))


IN_A_WORKER = f"""
import gc, sys
gc.disable()  # by chance it may free what keeps a worker alive
sys.path.insert(0, {str(ROOT / "tests" / "helpers")!r})
from line import Forgetful, Line, collate, task
from toolkit import fine_tune

def defective(samples):
    collate.calls = getattr(collate, "calls", 0) + 1
    return collate(samples) if collate.calls < 4 else 1 / 0

changes = {{"collate": defective}} if sys.argv.pop(1) == "defect" else {{"train": Forgetful(3)}}
fine_tune(Line, lambda config: task(workers=1, **changes))
"""


@pytest.mark.parametrize("kind", ["error of the user", "defect"])
def test_an_error_in_a_worker_of_the_loader_ends_the_run(folder: Path, kind: str) -> None:
    """A worker ignores the signal that Python would end it with: the run must not wait for it."""
    outcome = run_outside(["python", "-c", IN_A_WORKER, kind, "--threads", "1", "--rehearse", "false"], folder)
    if kind == "defect":
        assert outcome.code == 1
        assert "ZeroDivisionError: Caught ZeroDivisionError in DataLoader worker process 0" in outcome.errors
        assert outcome.record["status"] == "failed"
    else:
        failed(outcome.told(*FORGOTTEN))


def test_a_recipe_that_cannot_load_a_model_does_not_score_new_weights(folder: Path) -> None:
    run(folder, "--evaluate.only").refused("evaluate.only needs a recipe that can load a saved model")


@pytest.mark.parametrize(
    ("loss", "returned"),
    [
        (lambda model, batch: squares(model, batch).mean(0), "a tensor of shape (1,)"),
        (squares, "a tensor of shape (4, 1)"),
        (lambda model, batch: squares(model, batch).sum().item(), "a float"),
        (
            lambda model, batch: squares(model, batch).sum().detach(),
            "a scalar that no gradient flows through (detached",
        ),
    ],
)
def test_loss_that_is_no_scalar_of_the_weights(folder: Path, loss: Any, returned: str) -> None:
    run(folder, loss=loss).refused(
        f"the task's loss returned {returned}", "a scalar tensor that depends on the weights: the sum (never the mean)"
    )


def test_parameter_without_gradient_is_named_before_the_first_step(folder: Path) -> None:
    run(folder, model=lambda runtime: TwoHeads()).refused(
        "2 trainable parameter(s) get no gradient from the loss: forgotten.weight, forgotten.bias",
        "freeze them (requires_grad_(False)), remove them, or let the loss depend on them",
    )


def test_gradient_that_is_not_finite_stops_at_its_step(folder: Path) -> None:
    # One step of this size makes weights whose squared error no float32 holds.
    outcome = run(folder, "--optim.lr", "1e30", "--optim.clip", "null", "--optim.warmup", "0").told(
        "the gradient of step 2 is not finite", "the weights were not changed by it", "a lower optim.lr"
    )
    assert "step 2" in failed(outcome).record["problems"][0]


def test_loss_that_is_not_a_number_stops_at_the_first_step(folder: Path) -> None:
    outcome = run(folder, loss=lambda model, batch: squares(model, batch).sum() * torch.nan)
    failed(outcome.told("the gradient of step 1 is not finite (its norm is nan)"))


def test_batch_norm_in_training_mode_is_told(folder: Path) -> None:
    layers = torch.nn.Sequential(torch.nn.Linear(1, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1))
    run(folder, "--epochs", "1", model=lambda runtime: layers).done().says(
        "batch norm", "1 layer(s) in training mode (1, ...): their statistics depend on how the batch is cut"
    )
    frozen = torch.nn.Sequential(torch.nn.Linear(1, 3), torch.nn.Linear(3, 1))
    assert "batch norm" not in run(folder.with_name("other"), "--epochs", "1", model=lambda runtime: frozen).output


def test_defect_keeps_its_traceback_and_exit_code(folder: Path) -> None:
    def broken(model: torch.nn.Module, batch: Any) -> torch.Tensor:
        raise KeyError("pixels")

    outcome = run(folder, loss=broken)
    assert outcome.code == 1
    assert "Traceback" in outcome.errors
    assert outcome.record["status"] == "failed"
