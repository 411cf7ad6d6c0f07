"""Memory that runs out in a step: the same step again, in smaller micro-batches, to the same numbers; and
`batch.micro auto`, under a limit of the operating system."""

import json
import random
import resource
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lacking_recipe import Lacking, task
from launching import ROOT, begin, clean_environment, launch
from safetensors.torch import load_file
from stopped_runs import BY_HAND
from trial import Outcome, run_here

from toolkit.config.batch import BatchConfig
from toolkit.distributed.memory import control_groups
from toolkit.distributed.mesh import Strategy
from toolkit.out_of_memory import BeforeTheStep
from toolkit.output.ledger import read_ledger
from toolkit.rehearsal.settings_fit import problems_of_tokens

RECIPE = ROOT / "tests" / "helpers" / "lacking_recipe.py"
SHORT = ["--threads", "1", "--rehearse", "false", "--data.samples", "96", "--data.held_out", "0"]
SHORT += ["--batch.size", "32", "--epochs", "4"]
"""Twelve steps of 32 samples."""


@pytest.fixture(autouse=True)
def address_space() -> Iterator[None]:
    """Lift the limit that a run here has set."""
    yield
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.getrlimit(resource.RLIMIT_AS)[1]))


def start(folder: Path, *flags: str) -> Outcome:
    return run_here(Lacking, task, [*SHORT, *flags], folder)


@cache
def reference(folder: Path, *flags: str) -> Path:
    """Train without any lack of memory, in one process, and return the run folder."""
    start(folder, *flags).done()
    return folder


def compare(found: Path, expected: Path) -> None:
    """Check that weights and ledger are those of the other run, each step once."""
    weights, others = (load_file(folder / "model" / "model.safetensors") for folder in (found, expected))
    for name in others:
        assert float((weights[name] - others[name]).norm() / others[name].norm()) < 1e-13
    rows, expected_rows = (list(read_ledger(folder / "ledger.jsonl")) for folder in (found, expected))
    assert [row["step"] for row in rows] == list(range(1, 13))
    for name in ("fingerprint", "samples", "units", "skipped"):
        assert [row[name] for row in rows] == [row[name] for row in expected_rows]
    for name in ("loss", "gradient_norm"):
        assert [row[name] for row in rows] == pytest.approx([row[name] for row in expected_rows], rel=1e-12)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return reference(tmp_path_factory.mktemp("whole") / "run")


@pytest.mark.parametrize("place", ["before", "after", "head", "middle"])
def test_memory_that_runs_out_at_random_steps_changes_no_number(place: str, whole: Path, tmp_path: Path) -> None:
    passes = sorted(random.Random(place).sample(range(1, 13), 4))
    flags = ["--lack.place", place, "--lack.passes", json.dumps(passes), "--checkpoint.every", "5"]
    outcome = start(tmp_path / "run", *flags, "--data.workers", "2" if place == "after" else "0").done()
    assert outcome.output.count("is done again") == 4
    compare(tmp_path / "run", whole)


def test_a_loss_over_the_whole_global_batch(tmp_path: Path) -> None:
    expected = reference(tmp_path / "whole", "--lack.coupled", "true")
    start(tmp_path / "run", "--lack.coupled", "true", "--lack.passes", "[1, 3, 9]").done()
    compare(tmp_path / "run", expected)


def in_two_processes(folder: Path, *flags: str) -> list[str]:
    """Run the recipe in two processes that are started by hand, and return what each printed."""
    started = [
        begin([*command, RECIPE, *SHORT, "--output", folder, *flags], clean_environment(**environment))
        for command, environment in BY_HAND.commands()
    ]
    said = ["".join(process.communicate(timeout=120)) for process in started]
    assert [process.returncode for process in started] == [0, 0], said
    return said


@pytest.mark.parametrize(
    ("place", "rank", "passes"),
    [
        ("middle", "1", "[1, 4, 9]"),  # in one process, while the other one waits for its gradients
        ("after", "null", "[1, 6]"),  # in both, and in the first step
    ],
)
def test_in_one_of_two_processes_and_in_both(place: str, rank: str, passes: str, whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    said = in_two_processes(folder, "--lack.place", place, "--lack.rank", rank, "--lack.passes", passes)
    assert said[0].count("is done again") == len(json.loads(passes))
    compare(folder, whole)


def test_a_coupled_loss_in_one_of_two_processes(tmp_path: Path) -> None:
    """Before the representations are gathered, where the other process waits: of one micro-batch, then of several."""
    expected = reference(tmp_path / "whole", "--lack.coupled", "true")
    said = in_two_processes(
        *(tmp_path / "run", "--lack.coupled", "true", "--lack.rank", "1"),
        *("--lack.place", "after", "--lack.passes", "[1, 3]"),
    )
    assert said[0].count("is done again") == 2
    compare(tmp_path / "run", expected)


def test_a_sharded_model_ends_with_a_message(tmp_path: Path) -> None:
    """Its processes exchange weights in each layer: one that lacks memory in between can't take part any more."""
    config = ROOT / "accelerate_configs" / "cpu_fsdp2.yaml"
    flags = ["--lack.passes", "[3]", "--lack.rank", "1", "--output", str(tmp_path / "run")]
    ended = launch(RECIPE, *SHORT, *flags, config=config)
    assert ended.returncode != 0
    assert "process 1: the host's memory ran out" in ended.stderr
    assert "in the forward pass of step" in ended.stderr
    assert "is done again" not in ended.stdout
    assert "Give --batch.micro " in ended.stderr


def test_the_smaller_size_is_kept_when_the_run_goes_on(whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    start(folder, "--lack.passes", "[5]", "--checkpoint.every", "10", "--checkpoint.keep", "9").done()
    state = json.loads((folder / "checkpoints" / "step-000010" / "state.json").read_text(encoding="utf-8"))
    tokens = state["micro"]["tokens"]
    assert 0 < tokens < 32 * 11
    point = str(folder / "checkpoints" / "step-000010")
    start(tmp_path / "on", "--resume", point).done().says(f"at most {tokens} tokens at once in each")
    start(tmp_path / "other", "--resume", point, "--batch.micro", "20").done().says("32 = 1 process(es) x 2 micro")
    rows = list(read_ledger(tmp_path / "on" / "ledger.jsonl"))
    assert [row["loss"] for row in rows[-2:]] == pytest.approx(
        [row["loss"] for row in read_ledger(whole / "ledger.jsonl")][-2:], rel=1e-12
    )


def test_what_a_failed_step_left_in_a_batch_norm_is_undone() -> None:
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 2))
    model.register_buffer("fixed", torch.ones(3))
    before = BeforeTheStep(
        SimpleNamespace(runtime=SimpleNamespace(accelerator=SimpleNamespace(scaler=None)), model=model)  # type: ignore[arg-type]
    )
    for _ in range(4):
        before.note()
        kept = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        model(torch.randn(5, 3))
        assert not torch.equal(model[0].running_mean, kept["0.running_mean"])  # type: ignore[arg-type]
        before.restore()
        assert all(torch.equal(tensor, kept[name]) for name, tensor in model.state_dict().items())
        model(torch.randn(5, 3))
    # Of what does not change no copy is made in every step.
    assert len(before.buffers) == 3


def auto(folder: Path, limit: int, *flags: str) -> Outcome:
    """Train under a limit, where each of up to 32 x 11 elements takes 20 MB."""
    wanted = ["--batch.micro", "auto", "--lack.element", "20", "--lack.limit", str(limit)]
    return start(folder, *wanted, *flags)


def test_auto_finds_what_fits_under_a_limit_and_remembers_it(whole: Path, tmp_path: Path) -> None:
    """The whole batch takes 7 GB."""
    first = auto(tmp_path / "first", 3000).done().says("which was found to fit into memory")
    address_space_is_free()
    _, _, rest = first.output.partition("at most ")
    tokens = int(rest.split()[0])
    # Several of the longest samples, and no more than there is room for.
    assert 4 * 11 <= tokens <= 3000 / 20
    assert tokens % 11 == 0
    compare(tmp_path / "first", whole)


def test_auto_without_any_limit_takes_the_whole_share(tmp_path: Path) -> None:
    start(tmp_path / "run", "--batch.micro", "auto").done().says("32 = 1 process(es) x 1 micro-batch(es) of about 32,")


def test_not_even_one_sample_fits(tmp_path: Path) -> None:
    outcome = auto(tmp_path / "run", 150)
    address_space_is_free()
    outcome.told(
        "batch.micro is auto, and the longest sample, of length 11, does not fit by itself: the host's memory ran out "
        "when 230.7 MB more were asked for, of ",
        "Give a launch file that spreads the model",
    )


def address_space_is_free() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.getrlimit(resource.RLIMIT_AS)[1]))


def test_a_bound_on_tokens(whole: Path, tmp_path: Path) -> None:
    start(tmp_path / "run", "--batch.micro_tokens", "25").done().says("at most 25 tokens at once in each")
    compare(tmp_path / "run", whole)
    start(tmp_path / "short", "--batch.micro_tokens", "10").refused(
        "batch.micro_tokens is 10, but the longest training sample (id 3) has 11 tokens; give --batch.micro_tokens 11 "
    )
    start(tmp_path / "both", "--batch.micro_tokens", "25", "--batch.micro", "auto", "--batch.balance", "no").told(
        "batch.micro is auto and batch.micro_tokens is 25; give one of them",
        "batch.micro_tokens is 25 and batch.balance is false",
    )


def test_what_can_not_be_bounded_is_refused() -> None:
    class Images:
        def __len__(self) -> int:
            return 9

        def lengths(self, ids: Any) -> None:
            return None

    of_images: Any = SimpleNamespace(data=SimpleNamespace(train=Images()))
    sharded: Any = SimpleNamespace(size=2, strategy=Strategy(sharded=True, shard=2))
    for batch, problem in (
        (BatchConfig(micro="auto"), "FSDP2: sharded over 2 process(es): its processes exchange weights in each layer"),
        (BatchConfig(micro_tokens=64), "the samples of this task have no length; give batch.micro"),
    ):
        (found,) = problems_of_tokens(of_images, Lacking(batch=batch), sharded)
        assert problem in found


def test_what_is_left_of_a_control_group(tmp_path: Path) -> None:
    own = tmp_path / "cgroup"
    own.write_text("0::/a/b\n")
    for place, most, taken in (("a", "1000", "400"), ("a/b", "max", "300")):
        folder = tmp_path / "root" / place
        folder.mkdir(parents=True)
        (folder / "memory.max").write_text(f"{most}\n")
        (folder / "memory.current").write_text(f"{taken}\n")
        (folder / "memory.stat").write_text("anon 5\ninactive_file 100\n")
    assert list(control_groups(tmp_path / "root", own)) == [(1000, 700)]
