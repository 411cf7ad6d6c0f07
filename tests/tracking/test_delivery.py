"""What a delivery writes down, whatever else happens to the run folder meanwhile."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from resuming import copy_of
from trial import command_here

from toolkit.tracking import command, delivery
from toolkit.tracking.delivery import Delivery, Wish
from toolkit.tracking.position import Position, read_position
from toolkit.tracking.sent import Sent
from toolkit.tracking.trackers.base import TrackedRun
from toolkit.tracking.trackers.tensorboard import TensorBoardRun

pytestmark = pytest.mark.usefixtures("tracker_places")


class Kept(TrackedRun):
    """A tracker that keeps steps in a list, and does something else at a moment of its own."""

    steps: list[int]
    at_begin: Callable[[], Any] | None = None
    at_close: Callable[[], Any] | None = None

    def begin(self) -> None:
        self.position.run = "old"
        if self.at_begin is not None:
            type(self).at_begin, now = None, self.at_begin
            now()

    def send_settings(self) -> None: ...

    def send(self, rows: Any) -> None:
        self.steps.extend(step for step, _ in rows)

    def send_final(self, step: int, values: Any) -> None: ...

    def close(self, status: str) -> None:
        if self.at_close is not None:
            type(self).at_close, now = None, self.at_close
            now()


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> type[Kept]:
    """The tracker, in the place of TensorBoard."""
    found = type("Kept", (Kept,), {"steps": []})
    monkeypatch.setitem(delivery.RUNS, "tensorboard", found)
    monkeypatch.setattr(delivery, "SECONDS_BETWEEN_LOOKS", 0.01)
    return found


def doing(act: Callable[[], Any]) -> Any:
    """Return what does something when it is called as a method."""
    return staticmethod(act)


def test_an_end_that_came_while_it_closed_was_not_sent(finished: Path, tmp_path: Path, kept: type[Kept]) -> None:
    run = copy_of(finished, tmp_path / "run")
    lines, record = (run / "ledger.jsonl").read_text().splitlines(True), (run / "run.json").read_text()

    def finish() -> None:
        (run / "ledger.jsonl").write_text("".join(lines))
        (run / "run.json").write_text(record)

    (run / "ledger.jsonl").write_text("".join(lines[:8]))
    (run / "run.json").write_text(record.replace('"finished"', '"running"'))
    kept.at_close = doing(finish)
    sends = Delivery(Wish(run), "tensorboard", lambda: False, True, lambda text: None)
    sends.run()
    position = read_position(run, "tensorboard")
    assert position is not None
    assert (position.sent, position.finished, kept.steps) == (8, None, list(range(1, 9)))
    command_here("track", run, "--to", "tensorboard").done()
    assert kept.steps == list(range(1, 13))
    position = read_position(run, "tensorboard")
    assert position is not None
    assert position.finished == 12


def test_a_run_that_was_moved_aside_leaves_no_name_in_the_new_one(
    finished: Path, tmp_path: Path, kept: type[Kept]
) -> None:
    run = copy_of(finished, tmp_path / "run")

    def move() -> None:
        run.rename(tmp_path / "aside")
        copy_of(finished, run)
        (run / "tracking").mkdir()

    kept.at_begin = doing(move)
    outcome = command_here("track", run, "--to", "tensorboard")
    assert outcome.code == 1
    outcome.says("was moved aside", "in former/, sends what is missing")
    assert "are there" not in outcome.output
    assert list((run / "tracking").iterdir()) == []
    assert read_position(tmp_path / "aside", "tensorboard") is not None


def test_another_name_for_a_run_that_goes_on_is_told(finished: Path, tmp_path: Path) -> None:
    run = copy_of(finished, tmp_path / "run")
    names = ("--to", "trackio", "--project", "team", "--run_name", "first")
    for _ in range(2):
        assert "warning" not in command_here("track", run, *names).done().output
    command_here("track", run, "--to", "trackio", "--project", "other", "--run_name", "second").done().says(
        "warning: trackio goes on with first-",
        "in the project team, as the run was begun there: another project and name can't be given any more",
    )


def test_reading_back_for_long_is_progress(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(TensorBoardRun):
        def sent(self) -> Sent:
            for _ in range(6):
                time.sleep(0.1)
                self.progress()
            return super().sent()

    run = copy_of(finished, tmp_path / "run")
    monkeypatch.setitem(delivery.RUNS, "tensorboard", Slow)
    monkeypatch.setattr(command, "PATIENCE", 0.4)
    monkeypatch.setattr(command.os, "_exit", lambda code: pytest.fail("was given up"))
    command_here("track", run, "--to", "tensorboard").done()
    calls: list[int] = []
    there = TensorBoardRun(run, Position(), {})
    there.progress = lambda: calls.append(1)
    there.sent()
    assert len(calls) > 12 * 5
