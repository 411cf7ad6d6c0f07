"""What distributed data parallel keeps and sends, and gradients that are sent in fewer bytes."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from launching import ROOT, TINY, launch
from safetensors.torch import load_file
from tiny_recipe import Tiny, task
from trial import run_here

from toolkit import BatchConfig
from toolkit.distributed.compression import PowerSGD, unfit_for
from toolkit.distributed.mesh import Strategy

FLOAT64 = 8
PARAMETERS = 16 * 4 + 16 + 3 * 16 + 3


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What two processes saw."""
    output = tmp_path_factory.mktemp("facts") / "facts.json"
    done = launch(ROOT / "tests" / "helpers" / "data_parallel_facts.py", str(output))
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(output.read_text(encoding="utf-8"))
    return found


def test_gradients_lie_in_the_buffers_that_are_sent_and_nowhere_else(seen: dict[str, Any]) -> None:
    assert seen["memory"] == dict.fromkeys(("gradients", "sent", "both"), FLOAT64 * PARAMETERS)


def test_buffers_are_sent_where_a_forward_pass_changes_them(seen: dict[str, Any]) -> None:
    assert seen["sends buffers"] == {"none": False, "batch_norm": True}


def test_what_is_sent_in_bf16_is_rounded_and_no_more(seen: dict[str, Any]) -> None:
    whole, rounded = (torch.tensor(seen["gradients"][name], dtype=torch.float64) for name in ("none", "bf16"))
    assert len(whole) == PARAMETERS
    # Each number is rounded to eight bits, once in each process and once in their sum.
    assert 1e-4 < (whole - rounded).norm() / whole.norm() < 2**-8


def test_a_run_with_power_sgd_has_the_same_numbers_on_one_and_two_processes_and_after_a_resume(tmp_path: Path) -> None:
    settings = ("--threads", "1", "--batch.compress", "powersgd", "--batch.compress_rank", "1")
    one, passed, plain = tmp_path / "one", tmp_path / "passed", tmp_path / "plain"
    run_here(Tiny, task, settings, one).done()
    run_here(Tiny, task, settings[:2], plain).done()
    words = (*settings, "--output", str(passed))
    done = launch(TINY, *words, "--batch.micro", "2", TINY_STOP_AFTER="5")
    assert json.loads((passed / "run.json").read_text())["status"] == "preempted", done.stderr
    kept = load_file(passed / "checkpoints" / "step-000005" / "optimizer.safetensors")
    assert kept["inner.weight/power_sgd_unsent"].norm() > 0
    assert kept["inner.weight/power_sgd_directions"].shape == (4, 1)
    run_here(Tiny, task, words, passed).done().says("PowerSGD of rank 1: 58 numbers stand for 131 in each step")
    whole, same, other = (
        torch.cat([tensor.flatten() for tensor in load_file(folder / "model" / "model.safetensors").values()])
        for folder in (one, passed, plain)
    )
    assert (same - whole).norm() / whole.norm() < 1e-12
    assert (other - whole).norm() / whole.norm() > 1e-3


def network() -> tuple[torch.nn.Linear, PowerSGD]:
    """Return a layer of (12, 10) weights, and what averages its gradients with rank 2."""
    torch.manual_seed(1)
    layer = torch.nn.Linear(10, 12, dtype=torch.float64)
    names: dict[torch.Tensor, str] = {parameter: name for name, parameter in layer.named_parameters()}
    return layer, PowerSGD(torch.optim.SGD(layer.parameters()), names, rank=2, seed=3, processes=1)


def given(layer: torch.nn.Linear, *gradients: torch.Tensor) -> None:
    """Set the gradients of weight and bias."""
    for parameter, gradient in zip(layer.parameters(), gradients, strict=True):
        parameter.grad = gradient.clone()


def test_power_sgd_sends_the_nearest_matrices_in_time_and_loses_nothing() -> None:
    """Of one gradient again and again the directions come to be the largest singular ones; what is sent adds up."""
    layer, averaging = network()
    assert (averaging.sent, averaging.whole) == (2 * (12 + 10) + 12, 132)
    rows, columns = torch.linalg.qr(torch.randn(12, 10, dtype=torch.float64)).Q, torch.eye(10, dtype=torch.float64)
    strengths = torch.tensor([8.0, 4.0, *[0.01] * 8], dtype=torch.float64)
    gradient, bias = rows @ torch.diag(strengths) @ columns, torch.arange(12, dtype=torch.float64)
    sent = torch.zeros_like(gradient)
    for step in range(1, 9):
        given(layer, gradient, bias)
        averaging.average_gradients()
        assert layer.weight.grad is not None
        assert layer.bias.grad is not None
        assert torch.equal(layer.bias.grad, bias)
        assert torch.linalg.matrix_rank(layer.weight.grad) == 2
        sent += layer.weight.grad
        torch.testing.assert_close(sent + averaging.unsent[layer.weight], step * gradient, rtol=0, atol=1e-12)
        if step == 3:
            best = rows[:, :2] @ torch.diag(strengths[:2]) @ columns[:2]
            torch.testing.assert_close(layer.weight.grad, best, rtol=0, atol=0.05)


@pytest.mark.parametrize("spoilt", ["weight", "bias"])
def test_nothing_of_a_gradient_that_is_not_finite_is_kept(spoilt: str) -> None:
    layer, averaging = network()
    given(layer, torch.randn(12, 10, dtype=torch.float64), torch.ones(12, dtype=torch.float64))
    averaging.average_gradients()
    before = {name: getattr(averaging, name)[layer.weight].clone() for name in ("unsent", "directions")}
    given(layer, torch.randn(12, 10, dtype=torch.float64), torch.ones(12, dtype=torch.float64))
    getattr(layer, spoilt).grad.view(-1)[0] = torch.inf
    averaging.average_gradients()
    assert not all(torch.isfinite(p.grad).all() for p in layer.parameters() if p.grad is not None)
    assert all(torch.equal(tensor, getattr(averaging, name)[layer.weight]) for name, tensor in before.items())


def test_what_can_not_be_compressed_is_refused_by_name() -> None:
    assert list(BatchConfig(compress="powersgd").problems()) == []
    (both,) = BatchConfig(compress="bf16", reduce_each=True).problems()
    assert both.startswith("batch.compress is bf16, and batch.reduce_each sends gradients after each micro-batch")
    (rank,) = BatchConfig(compress="powersgd", compress_rank=0).problems()
    assert rank == "batch.compress_rank is 0; it must be 1 or greater"
    (sharded,) = unfit_for("bf16", Strategy(sharded=True, shard=2), "no")
    assert "asks for FSDP2: sharded over 2 process(es): only gradients of distributed data parallel are" in sharded
    (split,) = unfit_for("powersgd", Strategy(tensor=2), "bf16")
    assert "asks for tensor parallel: each layer split over 2: only gradients" in split
    (scaled,) = unfit_for("powersgd", Strategy(replicate=2), "fp16")
    assert "set mixed_precision to bf16 or no in the launch file, or batch.compress to bf16" in scaled
    assert unfit_for("bf16", Strategy(replicate=2), "fp16") == unfit_for("none", Strategy(sharded=True), "no") == []
