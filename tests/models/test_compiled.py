"""Compiled layers: the same names and numbers, compiled few times, under every strategy; what fails is said at once."""

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
import torch._inductor.utils
import torch.nn.functional as F
from launching import CLASSIFY, ROOT, launch
from recipe_layouts import load_recipe
from safetensors.torch import load_file
from small_classify import arguments
from torch._dynamo.utils import counters
from trial import Outcome, run_here

from toolkit.batch_layout import drawing_from
from toolkit.config.model import ModelConfig
from toolkit.distributed.mesh import Strategy
from toolkit.dropout import know_samples
from toolkit.errors import UserError
from toolkit.models.compiled import check_compiles, compile_layers, stacks_of

SETTINGS = ("--threads", "1", "--model.dropout", "0.1", "--checkpoint.every", "2", "--checkpoint.keep", "9")
# Each kind of micro-batch takes seconds to compile: here there are at most two.
SHORT = ("--batch.balance", "false", "--threads", "1", "--model.dropout", "0.1")
COMPILED = ("--model.compile", "true")


@pytest.fixture(scope="module")
def recipe() -> Any:
    return load_recipe("classify")


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The flags of a run of six steps on texts of different lengths, with dropout, in float64."""
    return [*arguments(tmp_path_factory.mktemp("texts")), *SETTINGS]


@pytest.fixture(scope="module")
def plain(recipe: Any, words: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that compiles nothing."""
    folder = tmp_path_factory.mktemp("plain") / "run"
    run(recipe, words, folder).done()
    return folder


@pytest.fixture(autouse=True)
def nothing_compiled() -> Iterator[None]:
    """Compile for each test anew, and have no test after these know of it."""
    limit = torch._dynamo.config.recompile_limit
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
    torch._dynamo.config.recompile_limit = limit


def run(recipe: Any, words: list[str], folder: Path, *more: str) -> Outcome:
    return run_here(recipe.Classify, recipe.task, [*words, *more], folder)


def distance(folder: Path, other: Path) -> float:
    """Return how far apart the weights of two runs are, relative to their size; they have the same names."""
    one, two = (load_file(run / "model" / "model.safetensors") for run in (folder, other))
    assert list(one) == list(two)
    apart, size = (torch.cat([t.flatten() for t in ts]) for ts in ([one[n] - two[n] for n in one], two.values()))
    return float(apart.norm() / size.norm())


def test_a_run_may_be_compiled_for_a_while_and_keeps_names_and_numbers(
    recipe: Any, words: list[str], plain: Path, tmp_path: Path
) -> None:
    compiled, back = tmp_path / "compiled", tmp_path / "back"
    before = counters["stats"]["unique_graphs"]
    run(recipe, words, compiled, *COMPILED, "--resume", str(plain / "checkpoints" / "step-000002")).done()
    assert counters["stats"]["unique_graphs"] > before
    before = counters["stats"]["unique_graphs"]
    run(recipe, words, back, "--resume", str(compiled / "checkpoints" / "step-000004")).done()
    assert counters["stats"]["unique_graphs"] == before
    assert 0 < distance(compiled, plain) < 1e-12
    assert distance(back, plain) < 1e-12


@pytest.mark.parametrize("file", ["cpu", "cpu_fsdp2"])
def test_two_processes_compile_too(recipe: Any, tmp_path: Path, file: str) -> None:
    config = ROOT / "accelerate_configs" / f"{file}.yaml"
    given = [*arguments(tmp_path), *SHORT]
    given[given.index("--steps") + 1] = "2"
    given[given.index("--evaluate.every") + 1] = "2"
    run(recipe, given, tmp_path / "written").done()
    compiled = tmp_path / "compiled"
    done = launch(CLASSIFY, *given, *COMPILED, "--output", str(compiled), config=config, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "compiled" in done.stdout
    assert 0 < distance(compiled, tmp_path / "written") < 1e-12


def test_a_layer_that_can_not_be_compiled_ends_the_run_before_its_first_step(
    recipe: Any, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise NotImplementedError("no code for this\nand a long listing")

    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", fail)
    outcome = run(recipe, words, tmp_path / "run", *COMPILED).refused(
        "model.compile is true, but torch could not compile a layer of the model (NotImplementedError: no code for "
        "this); leave model.compile out"
    )
    assert "listing" not in outcome.errors


def test_a_missing_compiler_is_named(recipe: Any, words: list[str], tmp_path: Path) -> None:
    # (pytest's way of setting what is not set by anybody deletes it afterwards.)
    missing = torch._inductor.config.patch({"cpp.cxx": ("/no/such/compiler",)})
    with missing, torch._inductor.utils.fresh_cache():
        outcome = run(recipe, words, tmp_path / "run", *COMPILED)
    outcome.refused("model.compile is true, but torch finds no C++ compiler that works")


class Layer(torch.nn.Module):
    """A layer of a stack, with a rate that dropout leaves out."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.inner, self.outer = torch.nn.LayerNorm(8), torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)
        self.dropout = torch.nn.Dropout(0.5)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        inside = F.gelu(self.inner(self.norm(states)))
        out: torch.Tensor = states + self.dropout(self.outer(inside))
        return out


def test_what_was_compiled_serves_all_layers_lengths_and_numbers_of_rows() -> None:
    """What the first shapes took is all: one row is a kind of its own, and evaluation compiles nothing."""
    written = torch.nn.ModuleDict({"stack": torch.nn.ModuleList(Layer() for _ in range(3))}).double()
    know_samples(written)
    compiled = deepcopy(written)
    compile_layers(compiled)
    keys = torch.arange(7, dtype=torch.int32)
    graphs = []
    for rows, tokens in ((4, 5), (1, 12), (3, 9), (6, 33), (1, 40), (2, 64), (5, 17)):
        found = []
        for model in (written, compiled):
            states = torch.linspace(-1, 1, rows * tokens * 8, dtype=torch.float64).view(rows, tokens, 8)
            with drawing_from(keys[: rows + 1]):
                for layer in model["stack"]:
                    states = layer(states)
                model.zero_grad()
                states.square().sum().backward()
            found.append((states.detach(), *(parameter.grad for parameter in model.parameters())))
        for one, other in zip(*found, strict=True):
            assert (one - other).norm() <= 1e-12 * one.norm()
        graphs.append(counters["stats"]["unique_graphs"])
    assert graphs[0] < graphs[1] == graphs[-1]
    compiled.eval()
    for layer in compiled["stack"]:
        layer(torch.ones(7, 7, 8, dtype=torch.float64))
    assert counters["stats"]["unique_graphs"] == graphs[-1]
    assert list(compiled.state_dict()) == list(written.state_dict())


def test_what_can_not_be_compiled_exactly_is_refused() -> None:
    (both,) = ModelConfig(compile=True, checkpoint_activations=True).problems()
    assert both.startswith("model.compile and model.checkpoint_activations are both true")
    model = torch.nn.ModuleDict({"stack": torch.nn.ModuleList([Layer()])})
    split, checkpointed = Strategy(tensor=2), Strategy(sharded=True, shard=2, checkpoint_activations=True)
    check_compiles(model, split)
    compile_layers(model)
    check_compiles(model, Strategy(sharded=True, shard=2))
    with pytest.raises(UserError, match="asks for tensor parallel: each layer split over 2: layers that are split"):
        check_compiles(model, split)
    with pytest.raises(UserError, match="asks for fsdp_activation_checkpointing"):
        check_compiles(model, checkpointed)


def test_layers_are_found_wherever_they_lie() -> None:
    def stack(count: int) -> torch.nn.ModuleList:
        return torch.nn.ModuleList(torch.nn.Linear(2, 2) for _ in range(count))

    model = torch.nn.ModuleDict({"encoder": stack(3), "stages": torch.nn.ModuleList([stack(2), stack(2)])})
    model["mixed"] = torch.nn.ModuleList([torch.nn.Linear(2, 2), torch.nn.ReLU()])
    assert [len(found) for found in stacks_of(model)] == [3, 2, 2]
    compile_layers(model)
    assert model.plan_remarks == {"compiled": "7 Linear, in training; the first micro-batch of each kind takes longer"}
    with pytest.raises(UserError, match="but a Linear has no stack of equal layers; leave it out"):
        compile_layers(torch.nn.Linear(2, 2))
