"""Which run folder is offered for one that is not there: those whose names are near, and no others."""

from pathlib import Path

import pytest

from toolkit.output.nearby_runs import no_run_folder

RUNS = ("reviews", "reviews-large", "run-2", "run-3", "lr_0.01_batch_16", "experiments")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in RUNS:
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        (folder / "run.json").write_text("{}")
        (folder / "config.yaml").write_text("")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("runs/reveiws", "runs/reviews"),
        ("run/reviews", "runs/reviews"),
        ("reviews", "runs/reviews"),
        ("runs/Experiments", "runs/experiments"),
        ("runs/lr0.01_batch16", "runs/lr_0.01_batch_16"),
        ("runs/reviews_large", "runs/reviews-large"),
    ],
)
def test_near_names_are_offered(place: Path, given: str, meant: str) -> None:
    assert no_run_folder(Path(given), "it has nothing").endswith(f"; did you mean {meant}?")
    if given.startswith("runs/"):
        whole = no_run_folder(place / given, "it has nothing")
        assert whole.endswith(f"; did you mean {place / meant}?")


# A long beginning that the paths share makes no two of them near; nor does a name with another number.
@pytest.mark.parametrize("given", ["runs/nothing", "runs/ab", "runs/run-4", "runs/run-12", "runs/lr_0.02_batch_32"])
def test_others_are_listed(place: Path, given: str) -> None:
    for path in (Path(given), place / given):
        said = no_run_folder(path, "it has nothing")
        assert "did you mean" not in said
        assert f"; there are {path.parent / 'experiments'}, " in said


def test_a_folder_beside_this_one_does_not_lie_in_it(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place / "runs" / "reviews")
    (place / "runs" / "reviews" / "model").mkdir()
    assert no_run_folder(Path("model"), "it has nothing").endswith("did you mean ., in which it lies?")
    assert "; there are ../experiments, " in no_run_folder(Path("../other-runs"), "it has nothing")
    assert "did you mean" not in no_run_folder(Path(".."), "it has nothing")
