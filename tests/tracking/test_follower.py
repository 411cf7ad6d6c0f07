"""What follows a run: its own process beside the training, which it neither slows nor ends."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from io import StringIO
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import pytest
from resuming import copy_of, run, stopping
from tracked_values import READERS, problems_of, runs_there
from trial import command_here

from toolkit.output.console import Console
from toolkit.tracking import command, delivery
from toolkit.tracking.follower import Follower, environment
from toolkit.tracking.position import Lock, MovedError, Position, read_position
from toolkit.tracking.sent import Sent
from toolkit.tracking.trackers.base import TrackedRun
from toolkit.tracking.trackers.wandb import WandbRun

pytestmark = pytest.mark.usefixtures("tracker_places")

TO_BOTH = ("--to", "tensorboard,mlflow")


def test_a_run_is_followed_after_a_stop_and_begun_anew(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    often = ("--evaluate.every", "3")
    assert run(folder, *often, build=stopping(folder, training=6)).code == 75
    command_here("track", folder, *TO_BOTH).done().says("mlflow: all 5 steps are there")
    first = read_position(folder, "mlflow")
    assert first is not None
    run(folder, *often, "--track.to", "tensorboard,mlflow").done().says(f"mlflow: run {first.run} of")
    for name in ("tensorboard", "mlflow"):
        assert problems_of(folder, READERS[name](folder)) == []
        assert runs_there(name, folder) == 1
    for command_word in ("verify", "status"):
        command_here(command_word, folder).done()
    command_here("compare", folder, folder).done()
    # Nothing is left to send, so that the finished run is only told of.
    assert "mlflow" not in run(folder, *often, "--track.to", "tensorboard,mlflow").done().output
    run(folder, *often, "--resume", "never").done()
    (former,) = (folder / "former").iterdir()
    assert {"tracking", "tensorboard", "ledger.jsonl"} <= {path.name for path in former.iterdir()}
    command_here("track", folder, *TO_BOTH).done()
    second = read_position(folder, "mlflow")
    assert second is not None
    assert second.run != first.run
    assert runs_there("mlflow", folder) == 2
    for name in ("tensorboard", "mlflow"):
        assert problems_of(folder, READERS[name](folder)) == []


class Unreachable(TrackedRun):
    """A tracker whose network fails in the midst, with a password in its message."""

    can_be_asked = False

    def make(self) -> Any:
        return self

    def start(self) -> None: ...

    def store_init_configuration(self, values: object) -> None: ...

    def log(self, values: object, step: int) -> None:
        if step > 5:
            raise ConnectionError("http://me:hidden@host is gone")

    def finish(self) -> None: ...


def test_a_tracker_that_fails_is_a_warning_and_the_position_stays(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = copy_of(finished, tmp_path / "run")
    monkeypatch.setitem(delivery.RUNS, "tensorboard", Unreachable)
    monkeypatch.setattr(delivery, "SECONDS_BETWEEN_LOOKS", 0.01)
    outcome = command_here("track", folder, "--to", "tensorboard,mlflow")
    assert outcome.code == 1
    outcome.says(
        "warning: tensorboard can't be sent to: ConnectionError: http://host is gone",
        f"tensorboard has the steps up to 5; `toolkit track {folder} --to tensorboard` sends what is missing",
        "mlflow: all 12 steps are there",
    )
    assert "hidden" not in outcome.output
    position = read_position(folder, "tensorboard")
    assert position is not None
    assert position.sent == 5
    assert not [path for path in folder.rglob("*") if path.is_file() and b"hidden" in path.read_bytes()]


class Hanging(Unreachable):
    """A tracker that never answers."""

    def log(self, values: object, step: int) -> None:
        threading.Event().wait()


def test_a_tracker_that_hangs_is_given_up(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class LeftError(Exception):
        pass

    def leave(code: int) -> None:
        raise LeftError(code)

    folder = copy_of(finished, tmp_path / "run")
    monkeypatch.setitem(delivery.RUNS, "tensorboard", Hanging)
    monkeypatch.setattr(command, "PATIENCE", 0.3)
    monkeypatch.setattr(command.os, "_exit", leave)
    with pytest.raises(LeftError, match="1"):
        command.track(folder, "tensorboard", None, None, None)


@pytest.fixture
def follower(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Follower:
    """A follower of a run that is under way, whose process is a small program instead."""
    from tiny_recipe import Tiny

    from toolkit.config.parser import parse

    folder = tmp_path / "followed"
    folder.mkdir()
    (folder / "run.json").write_text('{"status": "running", "step": 1}')
    console = Console(is_main=True)
    console.rich.file, console.rich.width = StringIO(), 1000
    return Follower(parse(Tiny, "", ["--output", str(folder), "--track.to", "tensorboard"]), "tiny", console)


def programs(follower: Follower, *codes: str) -> None:
    """Have a follower start these programs of Python, one after the other."""
    left = list(codes)

    def start() -> "subprocess.Popen[str]":
        follower.errors = TemporaryFile()  # noqa: SIM115
        words = [sys.executable, "-S", "-c", left.pop(0)]
        return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=follower.errors, text=True)

    follower.start = start  # type: ignore[method-assign]


def said(follower: Follower) -> str:
    assert isinstance(follower.console.rich.file, StringIO)
    return follower.console.rich.file.getvalue()


def test_the_end_of_a_run_waits_only_so_long(follower: Follower) -> None:
    follower.end(60)  # nothing was begun
    programs(follower, "input()")
    follower.begin()
    assert follower.process is not None
    before = time.monotonic()
    follower.end(0.2)
    assert time.monotonic() - before < 5
    assert f"tiny: sending to tensorboard goes on by itself in process {follower.process.pid}" in said(follower)
    follower.process.kill()
    follower.process.wait()


def test_sigterm_ends_the_wait_and_not_the_run(follower: Follower) -> None:
    programs(follower, "input()")
    follower.begin()
    assert follower.process is not None
    before, handler = time.monotonic(), signal.getsignal(signal.SIGTERM)
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
    # The handler of a test that would otherwise end with the signal.
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    try:
        follower.end(4)
    finally:
        signal.signal(signal.SIGTERM, handler)
    assert time.monotonic() - before < 3
    assert "goes on by itself" in said(follower)
    follower.process.kill()
    follower.process.wait()


def test_what_sends_is_started_again_when_it_dies(follower: Follower, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolkit.tracking.follower.PAUSES", (0.0, 0.0))
    dies = "import os; os.kill(os.getpid(), 9)"
    programs(follower, dies, "import sys; sys.exit('no memory is left')", "print('sent', flush=True); input()")
    follower.begin()
    for _ in range(100):
        if "tiny: sent" in said(follower):
            break
        time.sleep(0.05)
    assert follower.process is not None
    assert follower.process.stdin is not None
    with follower.process.stdin as words:
        words.write("x\n")
    follower.end(5)
    assert "warning: what sends to tensorboard ended with code -9; it is started again in 0 seconds" in said(follower)
    assert "ended with code 1 (no memory is left); it is started again" in said(follower)
    assert said(follower).count("warning") == 2


def test_it_is_started_again_only_so_often_and_not_after_a_mistake(
    follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolkit.tracking.follower.PAUSES", (0.0,))
    programs(follower, *["import sys; sys.exit(3)"] * 2)
    follower.begin()
    assert follower.reader is not None
    follower.reader.join(10)
    assert "nothing more is sent to tensorboard: what sends ended with code 3; `toolkit track" in said(follower)
    programs(follower, "import sys; print('  - no such place', file=sys.stderr); sys.exit(2)")
    follower.begin()
    follower.reader.join(10)
    assert "ended with code 2 (- no such place); `toolkit track" in said(follower)
    before = said(follower)
    follower.end(5)
    assert said(follower) == before


def test_a_run_without_a_ledger_yet_is_waited_for(finished: Path, tmp_path: Path) -> None:
    folder = copy_of(finished, tmp_path / "run")
    ledger, record = folder / "ledger.jsonl", folder / "run.json"
    rows, done = ledger.read_text(), record.read_text()
    ledger.unlink()
    record.write_text(done.replace('"finished"', '"running"'))

    def go_on() -> None:
        ledger.write_text(rows)
        record.write_text(done)

    threading.Timer(0.3, go_on).start()
    assert command.track(folder, "tensorboard", None, None, os.getppid()) == 0
    assert problems_of(folder, READERS["tensorboard"](folder)) == []


def test_what_follows_is_no_part_of_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "ACCELERATE_USE_FSDP", "TORCHELASTIC_RUN_ID"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "x")
    found = environment()
    assert not {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "ACCELERATE_USE_FSDP"} & set(found)
    assert found["MLFLOW_TRACKING_URI"] == "x"


def test_one_process_sends_at_a_time(finished: Path, tmp_path: Path) -> None:
    folder = copy_of(finished, tmp_path / "run")
    holds = "import sys; from pathlib import Path; from toolkit.tracking.position import Lock\n"
    holds += (
        "lock = Lock(Path(sys.argv[1]), 'tensorboard'); lock.take(lambda: False); print('held', flush=True); input()"
    )
    words = [sys.executable, "-c", holds, str(folder)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment()) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        outcome = command_here("track", folder, "--to", "tensorboard")
        assert outcome.code == 2
        outcome.says("another process is sending this run to tensorboard already")
        assert "sends what is missing" not in outcome.output
        other.kill()
    command_here("track", folder, "--to", "tensorboard").done()


def test_who_sends_notices_that_the_run_was_moved_aside(tmp_path: Path) -> None:
    lock = Lock(tmp_path, "mlflow")
    lock.take(lambda: False)
    lock.check()
    (tmp_path / "tracking").rename(tmp_path / "elsewhere")
    with pytest.raises(MovedError):
        lock.check()
    write_there = Lock(tmp_path, "mlflow")
    write_there.take(lambda: False)
    with pytest.raises(MovedError):
        lock.check()


@pytest.mark.parametrize(
    ("offline", "there"), [(False, Sent(up_to=7)), (True, Sent(up_to=4))], ids=["online", "offline"]
)
def test_wandb_is_asked_for_its_counter_of_steps(tmp_path: Path, offline: bool, there: Sent) -> None:
    from types import SimpleNamespace

    found = WandbRun(tmp_path, Position(sent=4), {})
    own = SimpleNamespace(offline=offline, disabled=False, step=8, summary={})
    vars(found)["tracker"] = SimpleNamespace(tracker=own)
    assert found.sent().up_to == there.up_to
    found.send_final(9, {"final/accuracy": 0.5})
    assert own.summary == {"final/accuracy": 0.5}


def test_folders_that_can_not_be_sent(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").mkdir()
    command_here("track", tmp_path / "empty", "--to", "mlflow").told("is no run folder")
    command_here("track", tmp_path / "gone", "--to", "mlflow").told("is no run folder")
    folder = copy_of(finished, tmp_path / "run")
    command_here("track", folder).told("no tracker is named, neither by --to nor by the run's own settings")
    command_here("track", folder, "--to", "mlflaw").told("there is no tracker mlflaw; did you mean mlflow?")
    monkeypatch.setenv("WORLD_SIZE", "2")
    command_here("track", folder, "--to", "mlflow").told("works in one process")
    monkeypatch.delenv("WORLD_SIZE")
    (folder / "tracking").mkdir()
    for text in ("{", '{"sent": "x"}', '{"sent": true}', '{"token": null}', "[]"):
        (folder / "tracking" / "tensorboard.json").write_text(text)
        outcome = command_here("track", folder, "--to", "tensorboard")
        outcome.says("tensorboard.json can't be read", "delete it to send the whole run to tensorboard again")
        assert outcome.code == 2
        assert "sends what is missing" not in outcome.output
    with (folder / "ledger.jsonl").open("a") as ledger:
        ledger.write("no row\n")
    outcome = command_here("track", folder, "--to", "mlflow").says("has a line after that of step 12 that is no row")
    assert outcome.code == 2
    (folder / "ledger.jsonl").unlink()
    command_here("track", folder, "--to", "mlflow").told("has no ledger yet")


def test_a_run_of_an_earlier_version_is_sent(finished: Path, tmp_path: Path) -> None:
    folder = copy_of(finished, tmp_path / "run")
    kept = ("step", "epoch", "loss", "gradient_norm", "learning_rate", "units", "samples", "evaluation")
    rows = [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]
    lines = [json.dumps({key: row[key] for key in kept if row.get(key) is not None}) + "\n" for row in rows]
    (folder / "ledger.jsonl").write_text("".join(lines))
    (folder / "run.json").write_text(json.dumps({"status": "running", "step": 6}))
    (folder / "config.yaml").write_text("batch:\n  size: 8\nseed: 0\n")
    command_here("track", folder, "--to", "tensorboard,trackio,mlflow").done()
    for name, read in READERS.items():
        found = read(folder)
        assert problems_of(folder, found) == []
        assert len({step for step, _, _ in found}) == 12, name
