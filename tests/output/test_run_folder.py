"""The run folder: written whole, owned by one run, and reported by `toolkit status`."""

import errno
import fcntl
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from resuming import acting, run
from trial import state_of

from toolkit.cli import main
from toolkit.errors import UserError
from toolkit.output.run_folder import RunFolder, is_locked, read_record, record_refusal, write_whole

HOLD = "import sys; from pathlib import Path; from toolkit.output.run_folder import RunFolder; \
f = RunFolder(Path(sys.argv[1])); f.claim(); print('held', flush=True); sys.stdin.read()"


def test_a_reader_never_sees_half_a_file(tmp_path: Path) -> None:
    path, broken, stop = tmp_path / "run.json", [], threading.Event()
    texts = {json.dumps({"value": letter * 200_000}) for letter in "ab"}
    write_whole(path, next(iter(texts)))

    def read() -> None:
        while not stop.is_set():
            broken.append(path.read_text() not in texts)

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(20):
        for text in texts:
            write_whole(path, text)
    stop.set()
    reader.join()
    assert len(broken) > 20
    assert not any(broken)


def wait_for(path: Path) -> None:
    """Wait until a file is there."""
    end = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < end, path
        time.sleep(0.01)


def test_one_process_holds_a_folder_and_its_death_frees_it(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    assert is_locked(tmp_path)
    with pytest.raises(UserError, match="another process is running"):
        RunFolder(tmp_path).claim()
    holder.kill()
    holder.communicate()
    assert not is_locked(tmp_path)
    folder = RunFolder(tmp_path)
    folder.claim()
    folder.release()


def test_a_refusal_is_recorded_in_a_new_folder_and_in_no_other(tmp_path: Path) -> None:
    record_refusal(tmp_path / "new", ("no such file",))
    assert read_record(tmp_path / "new")["problems"] == ["no such file"]
    assert RunFolder(tmp_path / "new").is_new()

    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.txt").write_text("mine")
    record_refusal(other, ("no such file",))
    assert [path.name for path in other.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize("left", [["run.json.partial"], ["run.json"], ["run.json", "config.yaml.partial"]])
def test_a_start_that_died_before_it_was_this_runs_leaves_a_new_folder(left: list[str], tmp_path: Path) -> None:
    RunFolder(tmp_path).replace_record(status="running", step=0)
    for name in left:
        (tmp_path / name).touch()
    assert RunFolder(tmp_path).is_new()
    (tmp_path / "config.yaml").touch()
    assert not RunFolder(tmp_path).is_new()


def test_a_model_is_in_place_whole_or_not_at_all(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)

    def export(path: Path) -> None:
        path.mkdir()
        (path / "weights").write_text("new")

    def fail(path: Path) -> None:
        export(path)
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        folder.write_model(fail)
    assert not folder.model_folder.exists()
    folder.write_model(export)
    with pytest.raises(OSError, match="disk full"):
        folder.write_model(fail)
    assert (folder.model_folder / "weights").read_text() == "new"
    folder.write_model(export)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]


@pytest.mark.parametrize(
    ("status", "code"), [("finished", 0), ("refused", 2), ("preempted", 75), ("failed", 1), ("running", 1)]
)
def test_status_returns_the_code_of_the_run(
    status: str, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that says running and whose lock nobody holds has died."""
    RunFolder(tmp_path).replace_record(
        status=status, step=1200, epoch=2.5, metrics={"accuracy": 0.5}, problems=["a value is wrong"]
    )
    assert main(["status", str(tmp_path)]) == code
    said = capsys.readouterr().out
    assert status in said
    assert ("died" in said) == (status == "running")
    assert "1,200 (epoch 2.50)" in said
    assert "accuracy 0.5000" in said
    assert "a value is wrong" in said


def test_status_of_a_run_that_is_alive_and_of_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    RunFolder(tmp_path).replace_record(status="running", step=0, epoch=0.0)
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as p:
        assert p.stdout is not None
        p.stdout.readline()
        assert main(["status", str(tmp_path)]) == 0
    assert main(["status", str(tmp_path / "nothing")]) == 2
    assert "no run folder" in capsys.readouterr().err


def without_locks(number: int) -> Callable[..., None]:
    def refuse(*arguments: object) -> None:
        raise OSError(number, os.strerror(number))

    return refuse


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP], ids=errno.errorcode.get)
def test_a_file_system_without_locks_is_reported_and_trained_on(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "lockf", without_locks(number))
    run(tmp_path / "run").done().says("has no locks", os.strerror(number))
    # Whether somebody works there can't be known: a run that is under way is not called dead.
    assert is_locked(tmp_path / "run")


@pytest.mark.parametrize("number", [errno.EACCES, errno.EAGAIN], ids=errno.errorcode.get)
def test_a_lock_of_another_process_is_respected(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "lockf", without_locks(number))
    run(tmp_path / "run").told("another process is running in")


@pytest.mark.parametrize("batch", [3, 13], ids=["in the midst", "in the last step"])
def test_a_run_folder_that_is_deleted_under_way_is_missed(batch: int, tmp_path: Path) -> None:
    folder = tmp_path / "run"

    def move() -> None:
        # The newest checkpoint, if it is still being written, would be sealed in the new place of the old name.
        if newest := (batch - 2) // 4 * 4:
            wait_for(folder / "checkpoints" / f"step-{newest:06d}" / "manifest.json")
        folder.rename(tmp_path / "gone")

    outcome = run(folder, "--checkpoint.every", "4", build=acting(move, training=batch))
    outcome.told(
        "was deleted or replaced while the run was under way", "begins from scratch, since no checkpoint is there now"
    )
    assert {path.name for path in folder.iterdir()} <= {"run.json", "run.lock", "checkpoints"}
    assert read_record(folder).get("status") in (None, "refused")


def test_a_run_folder_that_was_replaced_under_way_is_left_alone(tmp_path: Path) -> None:
    folder, other = tmp_path / "run", run(tmp_path / "other", "--seed", "1").done().folder
    before = state_of(other)

    def replace() -> None:
        folder.rename(tmp_path / "moved")
        shutil.copytree(other, folder)

    newest = "goes on from step-000012, the newest checkpoint that is there now"
    run(folder, build=acting(replace, training=13)).told("was deleted or replaced", newest)
    assert {name: hash for name, (hash, _) in state_of(folder).items()} == {n: hash for n, (hash, _) in before.items()}
