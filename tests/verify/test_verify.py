"""`toolkit verify RUN`: whatever was altered in a run folder is found, and what was not is left alone."""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from launching import TINY
from tiny_recipe import Tiny, task
from trial import run_here

from toolkit.cli import main
from toolkit.config.yaml import flatten, read_yaml, to_yaml
from toolkit.data.order import ShuffledOrder, fingerprint
from toolkit.errors import UserError
from toolkit.output.ledger import LedgerEnd, chained
from toolkit.output.run_folder import RunFolder, sealed_folders
from toolkit.recipe_file import load_recipe
from toolkit.verify.check import verify
from toolkit.verify.check_ledger import HASHED_AT_ONCE, recompute_fingerprints, samples_in

STEPS = 60
ARGUMENTS = ["--threads", "1", "--epochs", "null", "--steps", str(STEPS), "--checkpoint.every", "7"]
ARGUMENTS += ["--evaluate.every", "9", "--optim.schedule", "cosine"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of sixty steps, whose data came from a file; it is copied and never changed."""
    parent = tmp_path_factory.mktemp("finished")
    (parent / "table.csv").write_text("".join(f"{number},{number % 3}\n" for number in range(45)))

    def with_file(config: Tiny) -> Any:
        made = task(config)
        return replace(made, data=replace(made.data, files=[parent / "table.csv"]))

    return run_here(Tiny, with_file, ARGUMENTS, parent / "run").done().folder


@pytest.fixture(scope="module")
def died(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run as if it had been killed after step 53: its newest checkpoint is that of step 49."""
    folder = tmp_path_factory.mktemp("died") / "run"
    shutil.copytree(finished, folder)
    run = RunFolder(folder)
    end = sealed_folders(run.checkpoints)[1]
    assert end.name == "step-000056"
    for newer in sealed_folders(run.checkpoints)[:1]:
        shutil.rmtree(newer)
    run.update(status="running", step=56, metrics={}, baseline={})
    record = {key: value for key, value in run.record().items() if key not in ("ledger", "skipped", "ended")}
    run.replace_record(**record)
    lines = run.ledger_file.read_bytes().splitlines(keepends=True)
    run.ledger_file.write_bytes(b"".join(lines[:58]))
    return folder


@contextmanager
def copy_of(folder: Path) -> Iterator[RunFolder]:
    """Yield a copy that may be damaged."""
    with TemporaryDirectory() as place:
        shutil.copytree(folder, Path(place, "run"))
        yield RunFolder(Path(place, "run"))


def lines_of(run: RunFolder) -> list[bytes]:
    return run.ledger_file.read_bytes().splitlines(keepends=True)


def wrong(run: RunFolder) -> set[str]:
    """Return the names of the checks that found something."""
    return {result.name for result in verify(run.path).results if result.problems}


def link_again(run: RunFolder, lines: list[bytes]) -> None:
    """Write a ledger whose links fit, and have run.json tell of its end."""
    link, written = "", []
    for line in lines:
        values = {key: value for key, value in json.loads(line).items() if key != "chain"}
        link = chained(link, values)
        written.append(json.dumps({**values, "chain": link}).encode() + b"\n")
    run.ledger_file.write_bytes(b"".join(written))
    run.update(ledger=asdict(LedgerEnd(json.loads(lines[-1])["step"], len(b"".join(written)), link)))


# What nobody altered


def test_a_run_that_nobody_altered_is_sound(finished: Path, died: Path) -> None:
    for folder, says in ((finished, "finished, 60 of 60 steps"), (died, "running, 58 of 60 steps are in the ledger")):
        report = verify(folder)
        assert report.problems == ()
        # Nothing was left out: all that can be checked was.
        assert {result.name for result in report.results if not result.checked} <= {"end of the ledger"}
        assert says in str(report)
    assert "it has died" in str(verify(died))


def test_nothing_is_written_by_looking(finished: Path) -> None:
    with copy_of(finished) as run:
        before = {path: path.stat().st_mtime_ns for path in run.path.rglob("*")}
        verify(run.path)
        assert {path: path.stat().st_mtime_ns for path in run.path.rglob("*")} == before


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_run_that_died_may_have_lost_what_came_after_its_checkpoint_and_nothing_else(
    died: Path, data: st.DataObject
) -> None:
    """Wherever a kill cuts the ledger: half a row is no fault, a row that a checkpoint tells of may not be missing."""
    with copy_of(died) as run:
        content = run.ledger_file.read_bytes()
        needed = json.loads((run.checkpoints / "step-000056" / "manifest.json").read_text())["ledger"]["bytes"]
        size = data.draw(st.one_of(st.integers(needed, len(content)), st.integers(0, len(content))))
        run.ledger_file.write_bytes(content[:size])
        assert wrong(run) == (
            set()
            if size >= needed
            else {found.name for found in sealed_folders(run.checkpoints) if shorter(found, size)}
        )


def shorter(checkpoint: Path, size: int) -> bool:
    """Return whether a ledger of this size is shorter than a checkpoint needs."""
    return int(json.loads((checkpoint / "manifest.json").read_text())["ledger"]["bytes"]) > size


# What was altered


def other_value(value: Any) -> st.SearchStrategy[Any]:
    """Return values that a field may be altered to, all different from its own."""
    numbers = st.one_of(st.integers(-(10**20), 10**20), st.floats(allow_nan=False, allow_infinity=False))
    anything = st.one_of(
        numbers, st.none(), st.booleans(), st.text(max_size=20), st.just([]), st.just({}), st.just({"a": 1})
    )
    near = st.just(value * (1 + 1e-15)) if isinstance(value, float) else st.nothing()
    return st.one_of(near, anything).filter(lambda other: json.dumps(other) != json.dumps(value))


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_an_altered_field_of_any_row_is_found_and_its_step_is_named(finished: Path, data: st.DataObject) -> None:
    with copy_of(finished) as run:
        lines = lines_of(run)
        place = data.draw(st.integers(0, STEPS - 1))
        row = json.loads(lines[place])
        name = data.draw(st.sampled_from(sorted(row)))
        row[name] = data.draw(other_value(row[name]))
        lines[place] = json.dumps(row).encode() + b"\n"
        run.ledger_file.write_bytes(b"".join(lines))
        report = verify(run.path)
        assert any("links of the ledger" in problem for problem in report.problems)
        if name != "step":
            assert f"that of step {place + 1}:" in str(report)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_the_checkpoints_show_that_a_ledger_was_altered_and_linked_again(finished: Path, data: st.DataObject) -> None:
    """Even if all links and the end in run.json are rewritten too, the seals show it, but for the rows after them."""
    with copy_of(finished) as run:
        lines = lines_of(run)
        place = data.draw(st.integers(0, STEPS - 2))
        row = json.loads(lines[place])
        row["loss"] = data.draw(other_value(row["loss"]))
        lines[place] = json.dumps(row).encode() + b"\n"
        link_again(run, lines)
        assert "step-000060" in wrong(run)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_row_that_is_missing_doubled_or_elsewhere_is_found(finished: Path, data: st.DataObject) -> None:
    with copy_of(finished) as run:
        lines = lines_of(run)
        place, other = (data.draw(st.integers(0, STEPS - 1)) for _ in range(2))
        what = data.draw(st.sampled_from(["missing", "doubled", "moved", "swapped", "emptied", "garbled"]))
        match what:
            case "missing":
                del lines[place]
            case "doubled":
                lines.insert(other, lines[place])
            case "moved":
                assume(place != other)
                lines.insert(other, lines.pop(place))
            case "swapped":
                assume(place != other)
                lines[place], lines[other] = lines[other], lines[place]
            case "emptied":
                lines[place] = b"\n"
            case _:
                lines[place] = data.draw(st.binary(max_size=50).filter(lambda text: b"\n" not in text)) + b"\n"
        run.ledger_file.write_bytes(b"".join(lines))
        found = wrong(run)
        # The last row has no one after it: what tells of it is the end that run.json has.
        assert "ledger" in found or (place == STEPS - 1 and "end of the ledger" in found)
        if what in ("doubled", "moved", "swapped"):
            assert {"ledger", "links of the ledger"} <= found
        # Again, with links that fit.
        if what not in ("emptied", "garbled"):
            link_again(run, lines)
            assert "ledger" in wrong(run) or (what == "missing" and place == STEPS - 1 and "run.json" in wrong(run))


def sealed_files(run: RunFolder) -> list[Path]:
    return sorted(path for path in run.checkpoints.rglob("*") if path.is_file())


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_altered_byte_of_ledger_or_checkpoints_is_found(finished: Path, data: st.DataObject) -> None:
    with copy_of(finished) as run:
        path = data.draw(st.sampled_from([run.ledger_file, *sealed_files(run)]))
        content = bytearray(path.read_bytes())
        place = data.draw(st.integers(0, len(content) - 1))
        content[place] ^= data.draw(st.integers(1, 255))
        path.write_bytes(content)
        report = verify(run.path)
        assert not report.sound
        if path != run.ledger_file:
            assert path.parent.name in wrong(run)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_checkpoint_that_is_truncated_or_has_a_file_missing_is_found(finished: Path, data: st.DataObject) -> None:
    with copy_of(finished) as run:
        path = data.draw(st.sampled_from(sealed_files(run)))
        content = path.read_bytes()
        if data.draw(st.booleans()):
            path.unlink()
        else:
            path.write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
        assert path.parent.name in wrong(run)


def test_checkpoints_of_another_run_are_found(finished: Path, tmp_path: Path) -> None:
    """Each is sound by itself; it is the ledger that they do not belong to."""
    other = run_here(Tiny, task, [*ARGUMENTS, "--seed", "1"], tmp_path / "other").done().folder
    with copy_of(finished) as run:
        place = run.checkpoints / "step-000060"
        shutil.rmtree(place)
        shutil.copytree(other / "checkpoints" / "step-000060", place)
        assert {"step-000060", "settings"} <= wrong(run)


def test_the_chain_of_checkpoints_may_have_gaps_and_no_loops(finished: Path) -> None:
    with copy_of(finished) as run:
        assert len(sealed_folders(run.checkpoints)) == 3
        shutil.rmtree(sealed_folders(run.checkpoints)[1])
        assert verify(run.path).sound
        assert "deleted ones came before step-000060" in str(verify(run.path))
    with copy_of(finished) as run:
        manifests = [json.loads((path / "manifest.json").read_text()) for path in sealed_folders(run.checkpoints)]
        assert manifests[0]["previous"] == manifests[1]["seal"]
        seal_again(run.checkpoints / "step-000060", previous=manifests[2]["seal"])
        assert wrong(run) == {"chain of checkpoints"}
        seal_again(run.checkpoints / "step-000060", previous=None)
        assert wrong(run) == {"chain of checkpoints"}


def seal_again(checkpoint: Path, **changes: Any) -> None:
    """Change a manifest and seal it, as nobody but a test does."""
    from toolkit.checkpoint.format import read_manifest, write_manifest

    manifest = replace(read_manifest(checkpoint), **changes)
    write_manifest(checkpoint, manifest.step, manifest.files, manifest.ledger, manifest.previous)


def test_a_checkpoint_that_run_json_tells_of_may_not_be_missing_from_an_unfinished_run(died: Path) -> None:
    with copy_of(died) as run:
        shutil.rmtree(run.checkpoints / "step-000056")
        assert wrong(run) == {"chain of checkpoints"}


@pytest.mark.parametrize("damage", ["altered", "shorter", "gone"])
def test_a_data_file_that_changed_is_named(finished: Path, damage: str) -> None:
    table = finished.parent / "table.csv"
    content = table.read_bytes()
    try:
        match damage:
            case "altered":
                table.write_bytes(content[:-2] + b"7\n")
            case "shorter":
                table.write_bytes(content[:-2])
            case _:
                table.unlink()
        report = verify(finished)
        assert len(report.problems) == 1
        assert report.problems[0].startswith(f"data files: {table} ")
        assert main(["verify", str(finished)]) == 1
    finally:
        table.write_bytes(content)
    assert verify(finished).sound


# The configuration, and what follows from it


@settings(max_examples=40, deadline=None)
@given(
    samples=st.integers(1, 3000),
    size=st.one_of(st.integers(1, 70), st.just(HASHED_AT_ONCE + 1)),
    seed=st.integers(0, 2**40),
    steps=st.lists(st.integers(1, 4000), min_size=1, max_size=20, unique=True).map(sorted),
)
def test_many_steps_at_once_have_the_fingerprints_of_each(samples: int, size: int, seed: int, steps: list[int]) -> None:
    order = ShuffledOrder(samples, size, seed)
    batches = {step: order.global_batch(step - 1) for step in steps}
    assert dict(recompute_fingerprints(order, steps)) == {
        step: f"{fingerprint(ids):016x}" for step, ids in batches.items()
    }
    assert [samples_in(order, step) for step in steps] == [len(ids) for ids in batches.values()]


def test_an_epoch_of_more_samples_than_fit_is_computed_in_parts() -> None:
    order = ShuffledOrder(3 * HASHED_AT_ONCE + 5, 1000, 7)
    steps = [1, 65, 66, 131, 132, 197, order.steps_per_epoch, order.steps_per_epoch + 1, 2 * order.steps_per_epoch]
    for step, mark in recompute_fingerprints(order, steps):
        assert mark == f"{fingerprint(order.global_batch(step - 1)):016x}"


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("seed", 1, {"samples", "settings"}),
        ("batch.size", 9, {"samples", "settings"}),
        ("optim.lr", 0.0500000001, {"learning rates", "settings"}),
        ("optim.warmup", 4, {"learning rates", "settings"}),
        ("optim.schedule", "linear", {"learning rates", "settings"}),
        ("steps", 59, {"run.json", "samples", "learning rates", "settings"}),
        ("optim.weight_decay", 0.02, {"settings"}),
        # These change no number.
        ("batch.micro", 3, set()),
        ("threads", 2, set()),
        # Whether this does, only the recipe knows.
        ("data.samples", 46, set()),
    ],
)
def test_an_altered_setting_is_found_if_it_decides_numbers(
    finished: Path, key: str, value: Any, expected: set[str]
) -> None:
    with copy_of(finished) as run:
        config = read_yaml(run.config_file)
        section, _, name = key.rpartition(".")
        (config[section] if section else config)[name] = value
        run.config_file.write_text(to_yaml(config))
        assert wrong(run) == expected
        if key == "data.samples":
            assert "data.samples is 46 in config.yaml and 45 in step-" in str(verify(run.path))


def test_a_batch_that_would_not_fit_in_memory_is_not_computed(finished: Path) -> None:
    with copy_of(finished) as run:
        config = read_yaml(run.config_file)
        config["batch"]["size"] = 2**45
        run.config_file.write_text(to_yaml(config))
        run.update(samples={"train": 2**45, "evaluate": 23})
        assert {"samples", "settings"} <= wrong(run)


def test_the_first_steps_with_other_samples_are_named_and_counted(finished: Path) -> None:
    with copy_of(finished) as run:
        lines = lines_of(run)
        for step in (17, 18, 30, 31, 32, 33, 34):
            row = json.loads(lines[step - 1])
            row["fingerprint"] = "0" * 16
            lines[step - 1] = json.dumps(row).encode() + b"\n"
        link_again(run, lines)
        problems = verify(run.path).problems
        assert any(text.startswith("samples: step 17, 18, 30, 31, 32 and 2 more: other samples") for text in problems)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"step": 59}, {"run.json"}),
        ({"total_steps": 61}, {"run.json", "settings"}),
        ({"metrics": {"accuracy": 1.0}}, {"run.json"}),
        ({"skipped": 3}, {"run.json"}),
        ({"ledger": None}, {"end of the ledger"}),
        ({"ledger": {"rows": 60, "bytes": 1, "chain": ""}}, {"end of the ledger"}),
        ({"data": {"train": "0", "evaluate": "1"}}, {"settings"}),
        ({"samples": {"train": 46, "evaluate": 23}}, {"samples"}),
        ({"files": ["table.csv"]}, {"data files"}),
        ({"status": ["finished"]}, {"run.json"}),
    ],
)
def test_a_record_that_does_not_fit_the_rest_is_found(
    finished: Path, change: dict[str, Any], expected: set[str]
) -> None:
    with copy_of(finished) as run:
        run.update(**change)
        assert expected <= wrong(run)


# Damage


TORN = [b"", b"\0", b"[", b"{}", b"[" * 5000, b"null", b'{"step": []}\n', b"\xff\xfe", b"status: [", b'{"status": {}}']


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_damaged_folder_is_reported_and_raises_nothing(finished: Path, data: st.DataObject) -> None:
    with copy_of(finished) as run:
        files = sorted(path for path in run.path.rglob("*") if path.is_file() and path.parent.name != "model")
        damaged = data.draw(st.lists(st.sampled_from(files), min_size=1, max_size=4, unique=True))
        for path in damaged:
            content = path.read_bytes()
            match data.draw(st.sampled_from(["cut", "gone", "folder", "torn", "flipped", "link"])):
                case "cut":
                    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
                case "gone":
                    path.unlink()
                case "folder":
                    path.unlink()
                    path.mkdir()
                case "torn":
                    path.write_bytes(data.draw(st.one_of(st.sampled_from(TORN), st.binary(max_size=40))))
                case "link":
                    path.unlink()
                    path.symlink_to(path.name)
                case _ if content:
                    place = data.draw(st.integers(0, len(content) - 1))
                    path.write_bytes(content[:place] + b"\xff" + content[place + 1 :])
        report = verify(run.path)
        if any(path.is_relative_to(run.checkpoints) and changed(path, finished, run) for path in damaged):
            assert not report.sound


def changed(path: Path, finished: Path, run: RunFolder) -> bool:
    """Return whether a file is not what it was."""
    return not path.is_file() or path.read_bytes() != (finished / path.relative_to(run.path)).read_bytes()


def any_value() -> st.SearchStrategy[Any]:
    leaves = st.one_of(
        st.none(), st.booleans(), st.integers(-(10**30), 10**30), st.floats(allow_nan=False), st.text(max_size=5)
    )
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(["train", "rows", "bytes"]), inner)
        ),
        max_leaves=4,
    )


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_whatever_stands_in_its_files_nothing_is_raised(finished: Path, data: st.DataObject) -> None:
    """Files that can be read, with values that nobody wrote."""
    with copy_of(finished) as run:
        record, config = run.record(), read_yaml(run.config_file)
        for _ in range(data.draw(st.integers(0, 3))):
            record[data.draw(st.sampled_from(sorted(record)))] = data.draw(any_value())
        # Single settings first, whole sections after.
        for keys in (sorted(flatten(config)), sorted(config)):
            for key in data.draw(st.lists(st.sampled_from(keys), max_size=3)):
                section, _, name = key.rpartition(".")
                (config[section] if section else config)[name] = data.draw(any_value())
        (run.path / "run.json").write_text(json.dumps(record))
        run.config_file.write_text(to_yaml(config))
        str(verify(run.path))


def test_what_is_no_run_folder_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "refused").mkdir()
    RunFolder(tmp_path / "refused").replace_record(status="refused", problems=["x"])
    (tmp_path / "file").write_text("")
    for name, expected in (("nowhere", "no run folder"), ("file", "no run folder"), ("refused", "nothing was trained")):
        with pytest.raises(UserError, match=expected):
            verify(tmp_path / name)
        assert main(["verify", str(tmp_path / name)]) == 2
        assert expected in capsys.readouterr().err


# Runs that go on from somewhere else


@pytest.fixture(scope="module")
def moved(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[bool], Path]:
    """A run that goes on from a checkpoint of another folder, with its ledger or without."""

    def make(with_ledger: bool) -> Path:
        parent = tmp_path_factory.mktemp("moved")
        shutil.copytree(finished, parent / "source")
        if not with_ledger:
            (parent / "source" / "ledger.jsonl").unlink()
        start = parent / "source" / "checkpoints" / "step-000056"
        arguments = [*ARGUMENTS, "--resume", str(start)]
        return run_here(Tiny, task, arguments, parent / "run").done().folder

    return make


def test_a_run_that_goes_on_from_elsewhere_is_sound(moved: Callable[[bool], Path]) -> None:
    report = verify(moved(True))
    assert report.problems == ()
    assert "60 rows, steps 1 to 60" in str(report)


def test_a_ledger_that_begins_later_is_reported_as_such(moved: Callable[[bool], Path]) -> None:
    folder = moved(False)
    run, source = RunFolder(folder), folder.parent / "source"
    report = verify(folder)
    assert report.problems == ()
    assert f"4 rows, steps 57 to 60, each once; it begins there because the run goes on from {source}" in str(report)
    content = run.ledger_file.read_bytes()
    # The first row is linked to the checkpoint that it goes on from.
    row = json.loads(lines_of(run)[0])
    row["loss"] = row["loss"] * (1 + 1e-15)
    run.ledger_file.write_bytes(json.dumps(row).encode() + b"\n" + b"".join(lines_of(run)[1:]))
    assert "links of the ledger" in wrong(run)
    run.ledger_file.write_bytes(content)
    # A row less is no later beginning.
    run.ledger_file.write_bytes(b"".join(lines_of(run)[1:]))
    assert {"ledger", "step-000060", "end of the ledger"} <= wrong(run)
    run.ledger_file.write_bytes(content)
    shutil.rmtree(source)
    assert verify(folder).sound
    assert "but for the first" in str(verify(folder))


def test_a_run_that_was_preempted_and_resumed_is_sound(tmp_path: Path) -> None:
    """Stopped before its first step: that checkpoint is of step 0, and the ledger has no row."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "STOP").touch()
    assert run_here(Tiny, task, ARGUMENTS, folder).code == 75
    assert verify(folder).problems == ()
    assert run_here(Tiny, task, ARGUMENTS, folder).code == 0
    assert verify(folder).problems == ()


# The recipe's own data


def test_the_data_is_read_again_with_the_recipe(finished: Path) -> None:
    report = verify(finished, TINY)
    assert report.problems == ()
    assert "have the digests of run.json" in str(report)
    with copy_of(finished) as run:
        config = read_yaml(run.config_file)
        config["data"]["samples"] = 44
        run.config_file.write_text(to_yaml(config))
        problems = verify(run.path, TINY).problems
        # What the recipe declares decides now which settings decide numbers.
        assert any(problem.startswith("settings: data.samples is 44") for problem in problems)
        assert any("the training data is not what the run saw: 44 samples" in problem for problem in problems)
        config["data"]["samples"] = 45
        config["data"]["rows"] = 1
        run.config_file.write_text(to_yaml(config))
        assert any("data by the recipe: data.rows" in problem for problem in verify(run.path, TINY).problems)


RECIPE = """
from dataclasses import dataclass
from beside import SAMPLES, Source
from toolkit import Config, Task, TaskData, UserError, fine_tune

@dataclass(frozen=True)
class Base(Config):
    pass

@dataclass(frozen=True)
class Chosen(Base):
    mood: str = "good"

def task(config: Chosen) -> Task:
    import beside
    if config.mood == "bad":
        raise ZeroDivisionError("a defect")
    return Task(model=None, data=TaskData(Source()), collate=None, units=None, loss=None)

if __name__ == "__main__":
    raise SystemExit("started")
"""


def test_a_recipe_is_loaded_with_the_modules_next_to_it_and_does_not_start(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("SAMPLES = 3\nclass Source:\n    def __len__(self): return SAMPLES\n")
    (tmp_path / "mine.py").write_text(RECIPE)
    config_class, build = load_recipe(tmp_path / "mine.py")
    assert config_class.__name__ == "Chosen"
    assert len(build(config_class()).data.train) == 3
    with pytest.raises(ZeroDivisionError):
        build(replace(config_class(), mood="bad"))


def test_a_defect_of_the_recipe_is_a_finding(finished: Path, tmp_path: Path) -> None:
    broken = TINY.read_text().replace(
        "flaw, seen = config", "raise ZeroDivisionError('of mine')\n    flaw, seen = config"
    )
    (tmp_path / "broken.py").write_text(broken)
    problems = verify(finished, tmp_path / "broken.py").problems
    assert problems == ("data by the recipe: the recipe could not read it: ZeroDivisionError: of mine",)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "does not exist"),
        ("x = 1", "it defines 0"),
        ("from toolkit import Config\nclass A(Config): pass", "it does not"),
        ("from toolkit import Config\nclass A(Config): pass\nclass B(Config): pass\ndef task(c): pass", "it defines 2"),
        ("raise OSError('no such thing')", "can't be loaded: OSError: no such thing"),
        ("def (", "can't be loaded: SyntaxError"),
        ("raise SystemExit(2)", "starts its run when it is loaded"),
    ],
)
def test_a_file_that_is_no_recipe_is_refused(
    finished: Path, tmp_path: Path, content: str | None, expected: str
) -> None:
    path = tmp_path / "other.py"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UserError, match=expected):
        verify(finished, path)
    assert main(["verify", str(finished), "--recipe", str(path)]) == 2


# The command


def test_the_command_prints_every_problem_and_returns_the_code(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(finished)]) == 0
    assert capsys.readouterr().out.endswith("nothing is wrong\n")
    with copy_of(finished) as run:
        run.ledger_file.unlink()
        (run.checkpoints / "step-000056" / "state.json").unlink()
        assert main(["verify", str(run.path)]) == 1
        printed = capsys.readouterr().out
        assert "ledger.jsonl can't be read (No such file or directory)" in printed
        assert "step-000056           its file state.json is missing" in printed


def test_arguments_that_do_not_go_together_are_refused(finished: Path) -> None:
    for words in ([], [str(finished), "--steps", "3"], [str(finished), "--", "--seed", "1"]):
        assert main(["verify", *words]) == 2


def test_status_follows_the_ledger_of_a_run_under_way(died: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with copy_of(died) as run:
        run.update(repeated=7)
        assert main(["status", str(run.path)]) == 1
        printed = capsys.readouterr().out
        assert "58 (epoch 9.67) of 60; the newest checkpoint is of step 56" in printed
        assert "7 step(s) were done again" in printed
        # Half a row is still being written.
        with run.ledger_file.open("ab") as file:
            file.write(b'{"step": 59, "epo')
        main(["status", str(run.path)])
        assert "58 (epoch 9.67) of 60" in capsys.readouterr().out
        run.update(status="preempted", reason="SIGTERM to process 1")
        assert main(["status", str(run.path)]) == 75
        printed = capsys.readouterr().out
        assert "SIGTERM to process 1" in printed
        assert "56 (epoch" in printed


def test_the_lines_of_a_ledger_are_compared_as_they_are_written(finished: Path) -> None:
    """Other white space, or a number in another notation, says the same and is still not what was written."""
    with copy_of(finished) as run:
        lines = lines_of(run)
        lines[4] = lines[4].replace(b'"step": 5', b'"step":  5')
        run.ledger_file.write_bytes(b"".join(lines))
        assert any("step 5: written in another way" in problem for problem in verify(run.path).problems)
