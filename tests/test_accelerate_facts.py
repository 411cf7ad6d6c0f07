"""What the toolkit relies on in Accelerate and torch: an upgrade that changes one of these is noticed here."""

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import accelerate.commands.launch
import pytest
import torch
from accelerate import Accelerator
from accelerate.data_loader import BatchSamplerShard
from accelerate.utils import GradientAccumulationPlugin
from launching import ROOT

from toolkit.config.schema import Config
from toolkit.distributed.launch import launch_of
from toolkit.distributed.start_runtime import start_runtime


@pytest.fixture
def accelerator() -> Iterator[Accelerator]:
    accelerator = start_runtime(Config()).accelerator
    yield accelerator
    accelerator.free_memory()


def test_backward_divides_by_the_accumulation(accelerator: Accelerator) -> None:
    weight = torch.nn.Parameter(torch.ones(()))
    accelerator.gradient_accumulation_steps = 4
    accelerator.backward(weight * 8.0)
    assert weight.grad == 2.0


def test_accumulate_synchronises_on_the_last_of_a_changing_number(accelerator: Accelerator) -> None:
    """Only because both the number and the count are set at the start of each step."""
    model = torch.nn.Linear(1, 1)
    synchronised = []
    for count in (3, 1, 2, 5):
        accelerator.gradient_accumulation_steps = count
        accelerator.step = 0
        for _ in range(count):
            with accelerator.accumulate(model):
                synchronised.append(accelerator.sync_gradients)
    assert synchronised == [False, False, True, True, False, True, False, False, False, False, True]


def test_the_optimizer_acts_only_where_gradients_are_synchronised(accelerator: Accelerator) -> None:
    weight = torch.nn.Parameter(torch.ones(()))
    optimizer = accelerator.prepare(torch.optim.SGD([weight], lr=1.0))
    weight.grad = torch.ones(())
    accelerator.sync_gradients = False
    optimizer.step()
    optimizer.zero_grad()
    assert (weight.item(), weight.grad.item()) == (1.0, 1.0)
    accelerator.sync_gradients = True
    optimizer.step()
    optimizer.zero_grad()
    assert (weight.item(), weight.grad) == (0.0, None)


def test_an_optimizer_step_looks_for_no_package_on_the_disk(
    accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would for one that is not installed, twice in each step, unless Python is told that there is none."""
    looked_for: list[str] = []

    class Finder:
        def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
            looked_for.append(name)

    weight = torch.nn.Parameter(torch.ones(()))
    optimizer = accelerator.prepare(torch.optim.SGD([weight], lr=1.0))
    weight.grad = torch.ones(())
    optimizer.step()
    monkeypatch.setattr("sys.meta_path", [Finder(), *sys.meta_path])
    optimizer.step()
    assert looked_for == []
    monkeypatch.delitem(sys.modules, "lomo_optim")
    optimizer.step()
    assert looked_for == ["lomo_optim"] * 2


class Batches:
    """Batches of changing sizes, their number a multiple of the process count."""

    drop_last = False

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        yield from ((0,), (1, 2), (3, 4, 5), (6,), (7, 8), (9,))

    def __len__(self) -> int:
        return 6


def test_batches_are_dealt_one_by_one_and_never_repeated() -> None:
    whole: Any = Batches()
    shares = [list(BatchSamplerShard(whole, 3, rank, even_batches=False)) for rank in range(3)]
    assert shares == [[(0,), (6,)], [(1, 2), (7, 8)], [(3, 4, 5), (9,)]]


@pytest.mark.parametrize("make", [torch.optim.AdamW, torch.optim.SGD])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_fused_optimizer_leaves_everything_alone_where_found_inf_is_set(make: Any, dtype: torch.dtype) -> None:
    weight = torch.nn.Parameter(torch.ones(3, dtype=dtype))
    optimizer = make([weight], lr=0.1, weight_decay=0.5, fused=True)
    weight.grad = torch.full((3,), float("nan"), dtype=dtype)
    optimizer.found_inf = torch.tensor(1.0)
    optimizer.step()
    assert weight.tolist() == [1.0, 1.0, 1.0]
    weight.grad = torch.ones(3, dtype=dtype)
    optimizer.found_inf = torch.tensor(0.0)
    optimizer.step()
    assert (weight < 1).all()


def test_accumulation_does_not_look_at_the_end_of_a_loader() -> None:
    assert "sync_with_dataloader" in inspect.signature(GradientAccumulationPlugin).parameters
    assert start_runtime(Config()).accelerator.gradient_state.sync_with_dataloader is False


def test_the_request_is_read_with_accelerates_own_parser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = str(ROOT / "accelerate_configs" / "cpu.yaml")
    assert launch_of(["--config_file", cpu, "recipes/classify.py", "--batch.size", "4"], None, None).processes == 2
    asked = launch_of(["--config_file", cpu, "--num_processes", "4", "x.py"], None, None)
    assert (asked.processes, asked.use_cpu, asked.remembered) == (4, True, False)
    one = launch_of(["--config_file", str(ROOT / "accelerate_configs" / "one_gpu.yaml"), "x.py"], None, None)
    assert (one.processes, one.use_cpu) == (1, False)
    assert launch_of(["--cpu", "--num_processes", "2", "x.py"], True, None).processes == 2
    assert launch_of(["x.py", "--num_processes", "9"], None, None).processes is None
    assert accelerate.commands.launch.launch_command_parser is not None
