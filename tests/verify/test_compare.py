"""`toolkit compare A B`: the step at which two runs diverge, whatever the reason, and that rounding is no
divergence."""

import json
import shutil
from collections.abc import Callable
from math import inf, isclose, nan
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from tiny_recipe import Tiny, task
from trial import run_here

from toolkit.checkpoint.format import SealedFile, digest_of_file, read_manifest, write_manifest
from toolkit.cli import main
from toolkit.errors import UserError
from toolkit.output.run_folder import RunFolder
from toolkit.verify.compare import TOLERANCES, coarsest, compare
from toolkit.verify.compare_ledgers import NOTABLE, relative_difference
from toolkit.verify.compare_weights import weights_difference

STEPS = 40
ARGUMENTS = ["--threads", "1", "--epochs", "null", "--steps", str(STEPS), "--checkpoint.every", "10"]

Runs = Callable[..., Path]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Finished runs, made when they are first asked for, copied and never changed."""
    made: dict[tuple[str, ...], Path] = {}

    def run(*arguments: str) -> Path:
        if arguments not in made:
            folder = tmp_path_factory.mktemp("runs") / "run"
            made[arguments] = run_here(Tiny, task, [*ARGUMENTS, *arguments], folder).done().folder
        return made[arguments]

    return run


@pytest.fixture
def pair(runs: Runs, tmp_path: Path) -> tuple[Path, Path]:
    """A run, and a copy of it that may be changed."""
    shutil.copytree(runs(), tmp_path / "copy")
    return runs(), tmp_path / "copy"


def rows_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "ledger.jsonl").read_text().splitlines()]


def write_rows(run: Path, rows: list[dict[str, Any]]) -> None:
    (run / "ledger.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def change_weights(run: Path, step: int, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    """Change the weights of a checkpoint and seal it again."""
    folder = run / "checkpoints" / f"step-{step:06d}"
    manifest, path = read_manifest(folder), folder / "weights.safetensors"
    weights = load_file(path)
    change(weights)
    save_file(weights, path)
    files = {**manifest.files, path.name: SealedFile(path.stat().st_size, digest_of_file(path))}
    write_manifest(folder, manifest.step, files, manifest.ledger, manifest.previous)


# What real runs come to


def test_a_run_is_the_same_as_itself_bit_for_bit(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(runs()), str(runs())]) == 0
    printed = capsys.readouterr().out
    assert f"they are the same, bit for bit, up to step {STEPS}" in printed
    assert f"after step {STEPS}: the same bit for bit" in printed


def test_another_split_is_the_same_up_to_rounding(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    comparison = compare(runs(), runs("--batch.micro", "3", "--evaluate.every", "7"))
    assert comparison.same
    assert not comparison.identical
    assert (comparison.dtype, comparison.tolerance, comparison.weights.step) == ("float64", 1e-7, STEPS)
    # The float64 network computes nothing in float32.
    assert 0 < comparison.ledgers.divergences["losses"].largest < 1e-12
    assert 0 < comparison.weights.difference < 1e-12
    assert {key for key, _, _ in comparison.settings} == set()
    assert {key for key, _, _ in comparison.execution} == {"batch.micro", "evaluate.every", "output"}
    assert main(["compare", str(runs()), str(comparison.second)]) == 0
    assert "up to rounding, which is taken to be 1e-07 for float64" in capsys.readouterr().out


def test_another_seed_differs_at_the_first_step(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    other = runs("--seed", "1", "--data.samples", "44")
    assert main(["compare", str(runs()), str(other)]) == 1
    printed = capsys.readouterr().out
    assert "seed: 0 against 1" in printed
    assert "digest of train: " in printed
    assert "samples of train: 45 against 44" in printed
    assert "they part at step 1: samples, losses, gradient norms" in printed


def test_another_learning_rate_differs_at_the_first_step_and_its_loss_at_the_second(runs: Runs) -> None:
    """The first loss is that of weights that nothing has changed yet."""
    divergences = compare(runs(), runs("--optim.lr", "0.05001")).ledgers.divergences
    assert (
        divergences["learning rates"].first
        == divergences["learning rates"].notable
        == divergences["learning rates"].beyond
        == 1
    )
    assert divergences["losses"].first == 2
    assert divergences["samples"].first is None


# Where they part


@settings(max_examples=100, deadline=None)
@given(
    step=st.integers(1, STEPS),
    name=st.sampled_from(["losses loss", "gradient norms gradient_norm", "learning rates learning_rate"]),
    share=st.one_of(st.floats(1e-14, 0.5), st.sampled_from([NOTABLE / 2, NOTABLE * 2, 5e-8, 2e-7])),
    later=st.integers(0, STEPS),
)
def test_the_step_at_which_a_number_differs_is_named(
    runs: Runs, step: int, name: str, share: float, later: int
) -> None:
    """One number grows by a share of itself at one step, and by double that at a later one, if there is one."""
    kind, _, field = name.rpartition(" ")
    rows = rows_of(runs())
    grown = {step: share}
    if step < later:
        grown[later] = 2 * share
    for place, part in grown.items():
        rows[place - 1][field] *= 1 + part
    with TemporaryDirectory() as folder:
        copy = Path(folder, "copy")
        shutil.copytree(runs(), copy)
        write_rows(copy, rows)
        comparison = compare(runs(), copy)
    divergence = comparison.ledgers.divergences[kind]
    assert all(other.first is None for name, other in comparison.ledgers.divergences.items() if name != kind)
    assert divergence.first == step
    for found, bound in ((divergence.notable, NOTABLE), (divergence.beyond, TOLERANCES["float64"])):
        # Close to the bound, rounding decides.
        if all(not isclose(part / (1 + part), bound, rel_tol=1e-3) for part in grown.values()):
            assert found == next((place for place, part in grown.items() if part / (1 + part) > bound), None)
    largest = max(grown.values())
    assert divergence.at == max(grown)
    assert isclose(divergence.largest, largest / (1 + largest), rel_tol=0.05)
    assert comparison.diverged == divergence.beyond


@pytest.mark.parametrize(
    ("field", "value", "kind"),
    [("fingerprint", "0" * 16, "samples"), ("samples", 7, "samples"), ("units", 7, "units")],
)
def test_a_count_that_differs_is_no_rounding(pair: tuple[Path, Path], field: str, value: Any, kind: str) -> None:
    rows = rows_of(pair[1])
    rows[12][field] = value
    write_rows(pair[1], rows)
    comparison = compare(*pair)
    assert comparison.diverged == 13
    assert comparison.verdict() == f"they part at step 13: {kind}"
    assert f"{kind} " in str(comparison)
    assert "differ first at step 13" in str(comparison)


@pytest.mark.parametrize(("value", "same"), [(8 + 2**-48, True), (8.01, False)])
def test_a_sum_of_weights_may_be_rounded(pair: tuple[Path, Path], value: float, same: bool) -> None:
    rows = rows_of(pair[1])
    assert rows[12]["units"] == 8
    rows[12]["units"] = value
    write_rows(pair[1], rows)
    comparison = compare(*pair)
    assert comparison.ledgers.divergences["units"].first == 13
    assert comparison.same == same


@pytest.mark.parametrize("value", [None, "x", inf, [1]])
def test_a_loss_that_is_no_number_differs(pair: tuple[Path, Path], value: Any) -> None:
    rows = rows_of(pair[1])
    rows[12]["loss"] = None if value == inf else value
    write_rows(pair[1], rows)
    assert compare(*pair).diverged == 13
    assert compare(pair[1], pair[1]).same


@settings(max_examples=60, deadline=None)
@given(first=st.sets(st.integers(1, STEPS)), second=st.sets(st.integers(1, STEPS)), torn=st.integers(0, 50))
def test_runs_are_compared_over_the_steps_that_both_have(
    runs: Runs, first: set[int], second: set[int], torn: int
) -> None:
    rows = rows_of(runs())
    with TemporaryDirectory() as folder:
        places = Path(folder, "first"), Path(folder, "second")
        for place, steps in zip(places, (first, second), strict=True):
            shutil.copytree(runs(), place, ignore=shutil.ignore_patterns("checkpoints"))
            write_rows(place, [row for row in rows if row["step"] in steps])
            # A row that is still being written is none.
            with (place / "ledger.jsonl").open("a") as file:
                file.write(json.dumps(rows[-1])[:torn])
        comparison = compare(*places)
        code = main(["compare", *map(str, places)])
    both = first & second
    assert comparison.ledgers.common == len(both)
    assert comparison.ledgers.last_common == max(both, default=0)
    assert comparison.ledgers.ends == [max(first, default=0), max(second, default=0)]
    assert comparison.same == bool(both)
    assert code == (0 if both else 1)
    assert ("nothing can be said" in comparison.verdict()) == (not both)


def test_rows_up_to_a_step_alone(pair: tuple[Path, Path]) -> None:
    rows = rows_of(pair[1])
    rows[12]["loss"] *= 2
    write_rows(pair[1], rows)
    assert compare(*pair, last=13).ledgers.divergences["losses"].first == 13
    assert compare(*pair, last=12).ledgers.divergences["losses"].first is None
    assert compare(*pair, last=12).ledgers.common == 12


# Weights


def save_weights(tensors: dict[str, torch.Tensor], folder: Path) -> None:
    folder.mkdir()
    save_file(tensors, folder / "weights.safetensors")


def test_the_difference_of_weights_is_that_of_all_together(tmp_path: Path) -> None:
    generator = np.random.default_rng(3)
    a = {"x": generator.normal(size=(3, 4)), "y": generator.normal(size=5)}
    b = {name: values + 1e-3 * generator.normal(size=values.shape) for name, values in a.items()}
    flat = [np.concatenate([values[name].ravel() for name in "xy"]) for values in (a, b)]
    for name, weights in (("a", a), ("b", b)):
        save_weights({key: torch.from_numpy(values) for key, values in weights.items()}, tmp_path / name)
    save_weights({key: torch.from_numpy(values).bfloat16() for key, values in b.items()}, tmp_path / "half")
    difference, dtypes = weights_difference(tmp_path / "a", tmp_path / "b")
    assert isclose(difference, np.linalg.norm(flat[0] - flat[1]) / np.linalg.norm(flat[1]), rel_tol=1e-12)
    assert dtypes == {"float64"}
    assert weights_difference(tmp_path / "b", tmp_path / "b")[0] == 0
    difference, dtypes = weights_difference(tmp_path / "b", tmp_path / "half")
    assert 0 < difference < 2**-8
    assert dtypes == {"float64", "bfloat16"}


def test_a_count_among_the_weights_has_to_be_equal_and_counts_for_nothing_else(tmp_path: Path) -> None:
    for name, count, value in (
        ("a", 10**6, 1.0),
        ("b", 10**6, 1.1),
        ("c", 3, 1.0),
        ("d", 10**6, nan),
        ("e", 10**6, 0.0),
    ):
        save_weights({"count": torch.tensor(count), "x": torch.tensor([value])}, tmp_path / name)
    assert isclose(weights_difference(tmp_path / "a", tmp_path / "b")[0], 0.1 / 1.1, rel_tol=1e-6)
    for other in "cde":
        assert weights_difference(tmp_path / "a", tmp_path / other)[0] == inf


def test_the_newest_step_of_which_both_have_a_valid_checkpoint_is_taken(pair: tuple[Path, Path]) -> None:
    assert compare(*pair).weights.step == STEPS
    state = pair[1] / "checkpoints" / f"step-{STEPS:06d}" / "state.json"
    state.write_bytes(state.read_bytes()[:-1])
    assert compare(*pair).weights.step == STEPS - 10
    shutil.rmtree(pair[1] / "checkpoints")
    assert compare(*pair).weights.step is None
    assert "there is no step of which both have a valid checkpoint" in str(compare(*pair))


@pytest.mark.parametrize(("factor", "same"), [(1 + 1e-9, True), (1 + 1e-5, False)])
def test_weights_that_differ_are_reported(pair: tuple[Path, Path], factor: float, same: bool) -> None:
    change_weights(pair[1], STEPS, lambda weights: weights["inner.weight"].mul_(factor))
    comparison = compare(*pair)
    assert comparison.same == same
    assert not comparison.identical
    assert comparison.diverged == (None if same else STEPS)
    assert ("they part at step 40: weights" in str(comparison)) == (not same)


def test_other_tensors_are_reported(pair: tuple[Path, Path]) -> None:
    change_weights(pair[1], STEPS, lambda weights: weights.pop("inner.weight"))
    assert "they have other tensors: inner.weight" in str(compare(*pair))
    assert not compare(*pair).same
    change_weights(pair[1], STEPS, lambda weights: weights.update({"inner.weight": torch.zeros(2)}))
    assert "inner.weight has the shapes [16, 4] and [2]" in str(compare(*pair))


# What counts as rounding, and why they part


@pytest.mark.parametrize(
    ("dtypes", "expected"),
    [
        (["float64", None], ("float64", 1e-7)),
        (["float64", "float32"], ("float32", 1e-3)),
        ([None, "float64", "bfloat16"], ("bfloat16", 5e-2)),
        ([None], ("float32", 1e-3)),
    ],
)
def test_the_coarsest_type_decides_what_is_rounding(dtypes: list[str | None], expected: tuple[str, float]) -> None:
    assert coarsest(dtypes) == expected


def test_mixed_precision_rounds_more_than_the_weights(pair: tuple[Path, Path]) -> None:
    run = RunFolder(pair[1])
    start = {**run.record()["topology"][0], "precision": "bf16"}
    run.update(topology=[start])
    assert compare(*pair).dtype == "bfloat16"


def test_what_is_random_is_named_where_the_number_of_processes_differs(runs: Runs, tmp_path: Path) -> None:
    source = runs("--model.flaw", "noise")
    shutil.copytree(source, tmp_path / "copy")
    run = RunFolder(tmp_path / "copy")
    rows = rows_of(run.path)
    rows[4]["loss"] *= 2
    write_rows(run.path, rows)
    assert compare(source, run.path).verdict() == "they part at step 5: losses"
    run.update(topology=[{**run.record()["topology"][0], "processes": 2}])
    assert compare(source, run.path).verdict() == (
        "they part at step 5: losses; what is random in noise is not drawn for each sample, so numbers repeat on the "
        "same topology only"
    )


def test_versions_and_topologies_are_reported(pair: tuple[Path, Path]) -> None:
    run = RunFolder(pair[1])
    record = run.record()
    first = record["topology"][0]
    run.update(
        versions={**record["versions"], "torch": "1.0"},
        topology=[first, {**first, "processes": 2, "first_step": 11}],
    )
    printed = str(compare(*pair))
    assert f"torch: {record['versions']['torch']} against 1.0" in printed
    assert "then 2 process(es), cpu, mixed precision no, 1 thread(s) from step 11" in printed


@given(st.floats(allow_nan=False, allow_infinity=False), st.floats(allow_nan=False, allow_infinity=False))
def test_a_relative_difference_is_symmetric_and_none_for_equals(a: float, b: float) -> None:
    assert relative_difference(a, b) == relative_difference(b, a)
    assert (relative_difference(a, b) == 0) <= (a == b or abs(a - b) < 1e-300)
    assert relative_difference(a, a) == 0


# Bad input


def test_what_is_no_run_folder_is_refused(runs: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError) as refusal:
        compare(tmp_path / "a", tmp_path / "b")
    assert len(refusal.value.problems) == 2
    assert main(["compare", str(runs()), str(tmp_path / "b")]) == 2
    assert f"{tmp_path / 'b'} is no run folder" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["run.json", "config.yaml", "ledger.jsonl", "checkpoints"])
@pytest.mark.parametrize("content", [b"", b"[1]", b"\xff", b"[" * 5000, None])
def test_a_damaged_folder_is_compared_as_far_as_it_goes(
    pair: tuple[Path, Path], name: str, content: bytes | None
) -> None:
    path = pair[1] / name
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    if content is not None:
        path.write_bytes(content)
    comparison = compare(*pair)
    str(comparison)
    assert comparison.same == (name != "ledger.jsonl")
