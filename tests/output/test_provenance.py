"""Changes between the starts of a run are printed, recorded, found by `toolkit verify`, and refused if asked."""

import json
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from launching import TINY
from resuming import contents, numbers, run, stopped, stopping, undisturbed
from trial import run_outside

from toolkit.cli import main
from toolkit.config.schema import Config
from toolkit.output import provenance
from toolkit.verify.check import verify

NEWER = {"torch": "99.0.0", "numpy": "98.1.0"}


def starts(folder: Path) -> list[dict[str, Any]]:
    topology: list[dict[str, Any]] = json.loads((folder / "run.json").read_text(encoding="utf-8"))["topology"]
    return topology


def upgrade(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let newer versions of two packages be installed."""
    real = provenance.version
    monkeypatch.setattr(provenance, "version", lambda name: NEWER.get(name) or real(name))


def test_nothing_is_printed_where_nothing_has_changed(tmp_path: Path) -> None:
    folder = stopped(tmp_path / "run", 5)
    outcome = run(folder, "--resume", "strict").done()
    assert "was" not in outcome.output.partition("the plan")[0]
    assert numbers(folder) == undisturbed()
    assert "2, all with the same versions, code and kind of machine" in str(verify(folder))


def test_other_versions_are_printed_recorded_and_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = stopped(tmp_path / "run", 5)
    older = provenance.versions()
    upgrade(monkeypatch)
    change = f"torch was {older['torch']} and is now 99.0.0, numpy was {older['numpy']} and is now 98.1.0"
    before = contents(folder)
    run(folder, "--resume", "strict").told(f"since step 1: {change}, and resume is strict", "--resume auto")
    assert contents(folder) == before
    run(folder).done().says(f"since step 1: {change}; the run goes on (--resume strict would not)")
    assert [start["versions"]["torch"] for start in starts(folder)] == [older["torch"], "99.0.0"]
    report = verify(folder)
    assert report.sound
    assert f"note: from step 6 on: {change}" in str(report)
    assert str(report).endswith("nothing is wrong; 1 thing(s) to know, see the notes")
    assert main(["verify", str(folder)]) == 0
    assert change in capsys.readouterr().out


def test_a_change_is_remembered_by_the_checkpoint_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three starts, the second with other versions; run.json lost; a run that begins at that checkpoint elsewhere."""
    folder = stopped(tmp_path / "run", 3)
    torch = provenance.versions()["torch"]
    with monkeypatch.context() as patched:
        upgrade(patched)
        assert run(folder, build=stopping(folder, training=2)).code == 75
    run(tmp_path / "other", "--resume", str(folder)).done().says("since step 4: torch was 99.0.0 and is now " + torch)
    record = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    (folder / "run.json").write_text(json.dumps({**record, "topology": []}), encoding="utf-8")
    run(folder).done().says("since step 4: torch was 99.0.0 and is now " + torch)


def test_a_run_of_an_earlier_version_is_compared_as_far_as_it_tells(tmp_path: Path) -> None:
    """Such a one wrote the versions of its newest start into run.json and nothing into checkpoints."""
    before = {"versions": {"torch": "1.0.0", **{k: v for k, v in provenance.versions().items() if k != "torch"}}}
    now = {"versions": provenance.versions(), "source": {"toolkit": "b"}, "machine": "m"}
    (change,) = provenance.changes([{"first_step": 1}, {"first_step": 6, **before}], now)
    assert change == f"since step 6: torch was 1.0.0 and is now {provenance.versions()['torch']}"


def test_another_loss_in_the_recipe_is_reported(tmp_path: Path) -> None:
    recipe, folder = tmp_path / "own" / "mine.py", tmp_path / "run"
    recipe.parent.mkdir()
    shutil.copy(TINY, recipe)
    command = ["python", recipe, "--threads", "1"]
    assert run_outside(command, folder, TINY_STOP_AFTER="5").code == 75
    recipe.write_text(
        recipe.read_text(encoding="utf-8").replace("return total if flaw", "return 5 * total if flaw"), encoding="utf-8"
    )
    refused = run_outside([*command, "--resume", "strict"], folder)
    refused.told("since step 1: the code of mine.py has changed, and resume is strict")
    run_outside(command, folder).done().says("since step 1: the code of mine.py has changed; the run goes on")
    assert "note: from step 6 on: the code of mine.py has changed" in str(verify(folder))


def test_modules_next_to_the_recipe_count_and_those_elsewhere_cost_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By whatever path the folder is found; a path is resolved only where it may lie in that folder."""
    folder, other, link = tmp_path / "own", tmp_path / "other", tmp_path / "link"
    link.symlink_to(folder)
    for place in (
        folder / "mine.py",
        folder / "beside.py",
        other / "beside.py",
        other / "far.py",
        other / "__init__.py",
    ):
        place.parent.mkdir(exist_ok=True)
        place.write_text(f"# {place}", encoding="utf-8")

    def load(name: str, file: Path) -> None:
        module = ModuleType(name)
        module.__file__ = str(file)
        monkeypatch.setitem(sys.modules, name, module)

    load("mine_in_test", folder / "mine.py")
    load("beside_in_test", link / "beside.py")
    load("same_name_in_test", other / "beside.py")
    for number in range(1000):
        load(f"far_in_test_{number}", other / "far.py")
        load(f"package_in_test_{number}", other / "__init__.py")
    resolved: list[Path] = []
    resolve = Path.resolve

    def counted(path: Path, strict: bool = False) -> Path:
        resolved.append(path)
        return resolve(path, strict)

    monkeypatch.setattr(Path, "resolve", counted)
    config = type("Mine", (Config,), {"__module__": "mine_in_test"})()
    assert set(provenance.recipe_source(config)) == {"mine.py", "beside.py"}
    assert len(resolved) < 20


def test_a_plain_config_is_no_recipe() -> None:
    """It stands in a folder of the toolkit, whose code is compared as that of the toolkit."""
    assert provenance.recipe_source(Config()) == {}
