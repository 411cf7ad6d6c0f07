"""Run folders that can't be taken: they stay exactly as they are."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import Classify
from trial import state_of

HOLD = (
    "import fcntl, sys; f = open(sys.argv[1], 'a'); fcntl.lockf(f, fcntl.LOCK_EX); print('held', flush=True); input()"
)


@pytest.fixture
def finished(classify: Classify, tmp_path: Path) -> Path:
    """The folder of a run that has finished."""
    assert classify("--steps", "2").done().record["status"] == "finished"
    return tmp_path / "run"


@contextmanager
def held_by_another_process(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-c", HOLD, str(folder / "run.lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        assert holder.stdout.readline() == "held\n"
        yield
        holder.stdin.write("\n")


def test_folder_of_another_run(classify: Classify, finished: Path) -> None:
    before = state_of(finished)
    classify("--steps", "3", "--batch.size", "16", "--optim.lr", "0.5").told(
        f"the folder {finished} belongs to another run",
        "batch.size was 32 and is now 16",
        "optim.lr was 5e-05 and is now 0.5",
        "steps was 2 and is now 3",
        "Give another folder with --output, or the settings of that run",
    )
    assert state_of(finished) == before
    # Bad data of another command does not mark it either.
    classify("--steps", "2", train="nothing.csv").told("data.train is 'nothing.csv', but there is no such file")
    assert state_of(finished) == before


def test_finished_run_is_reported_and_not_trained_again(classify: Classify, finished: Path) -> None:
    before = state_of(finished)
    outcome = classify("--steps", "2", "--batch.micro", "4").done()
    outcome.says("this run is finished; nothing was trained again (--output starts another", "accuracy", "ledger.jsonl")
    assert state_of(finished) == before


def test_refusal_leaves_a_folder_that_a_good_command_can_take(classify: Classify) -> None:
    classify("--data.label", "stars").refused("data.label is 'stars'")
    classify("--data.text", "body").refused("data.text is 'body'")
    assert classify("--steps", "1").done().record["status"] == "finished"


def test_folder_with_other_files(classify: Classify, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "thesis.tex").write_text("years of work", encoding="utf-8")
    before = state_of(folder)
    classify().told(f"the folder {folder} holds files that are not those of a run; give another one with --output")
    assert state_of(folder) == before


def test_folder_with_another_programs_record(classify: Classify, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    for name, content in (("config.yaml", "theirs: 1\n"), ("run.json", '{"status": "theirs"}')):
        (folder / name).write_text(content, encoding="utf-8")
    before = state_of(folder)
    classify().told(f"the folder {folder} belongs to another run", "theirs was 1 and is now null")
    (folder / "config.yaml").write_text("batch: [", encoding="utf-8")
    classify().told("config.yaml is not YAML")
    (folder / "config.yaml").write_text("theirs: 1\n", encoding="utf-8")
    assert {name: digest for name, (digest, _) in state_of(folder).items()} == {
        name: digest for name, (digest, _) in before.items()
    }


def test_output_is_a_file(classify: Classify, tmp_path: Path) -> None:
    file = tmp_path / "run"
    file.write_text("a file", encoding="utf-8")
    classify().told(f"the run folder {file} can't be written (it is a file); give another one with --output")
    assert file.read_text(encoding="utf-8") == "a file"


def test_output_below_a_file(classify: Classify, tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("a file", encoding="utf-8")
    place = tmp_path / "table.csv" / "runs" / "one"
    classify("--output", place).told(
        f"the run folder {place} can't be written (Not a directory); give another one with --output"
    )
    assert (tmp_path / "table.csv").read_text(encoding="utf-8") == "a file"


def test_output_on_a_file_system_that_takes_no_files(classify: Classify) -> None:
    classify("--output", "/proc/runs/one").told("the run folder /proc/runs/one can't be written", "--output")


def test_folder_that_another_process_holds(classify: Classify, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with held_by_another_process(folder):
        before = state_of(folder)
        classify().told(f"another process is running in {folder}; wait for it, or give another folder with --output")
        assert state_of(folder) == before
    classify("--steps", "1").done()


def test_run_that_another_process_carries_on(classify: Classify, finished: Path) -> None:
    record = json.loads((finished / "run.json").read_text(encoding="utf-8"))
    (finished / "run.json").write_text(json.dumps({**record, "status": "running"}), encoding="utf-8")
    shutil.rmtree(finished / "model")
    with held_by_another_process(finished):
        before = state_of(finished)
        classify("--steps", "2").told(f"another process is running in {finished}")
        assert state_of(finished) == before
