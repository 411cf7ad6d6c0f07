"""The delivery of a run to one tracker: every value of every step once, however often it is begun again."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from threading import Event, Thread
from typing import Any

from toolkit.config.yaml import read_yaml
from toolkit.errors import UserError
from toolkit.output.private_words import settings_without_secrets, without_secrets
from toolkit.output.run_folder import read_record
from toolkit.tracking.ledger_tail import LedgerTail
from toolkit.tracking.position import Lock, MovedError, Position, read_position, write_position
from toolkit.tracking.scalars import Values, final_values, settings_of, values_of
from toolkit.tracking.sent import Sent
from toolkit.tracking.trackers.base import TrackedRun
from toolkit.tracking.trackers.mlflow import MLflowRun
from toolkit.tracking.trackers.others import AimRun, ClearMLRun, CometRun, DVCLiveRun, SwanLabRun
from toolkit.tracking.trackers.tensorboard import TensorBoardRun
from toolkit.tracking.trackers.trackio import TrackioRun
from toolkit.tracking.trackers.wandb import WandbRun

SECONDS_BETWEEN_LOOKS = 0.5
SECONDS_BETWEEN_POSITIONS = 2.0
LONGEST_PAUSE = 60.0
"""Seconds between two attempts, while a run is under way and its tracker fails."""
ATTEMPTS_AFTER_THE_END = 3
LONGEST_MESSAGE = 200


@dataclass(frozen=True)
class Wish:
    """What is to be sent, and under which name."""

    run: Path
    """The run folder."""
    project: str | None = None
    name: str | None = None


class IncompleteError(Exception):
    """A tracker took rows, and does not have them."""


class Delivery(Thread):
    """Sends a run to one tracker, and tries again where that fails, until all is there and the run has ended."""

    def __init__(
        self, wish: Wish, tracker: str, under_way: Callable[[], bool], follows: bool, say: Callable[[str], None]
    ) -> None:
        """Prepare a delivery.

        Args:
            wish: what is to be sent.
            tracker: Accelerate's name of it.
            under_way: whether rows may still come.
            follows: whether to wait for another process that sends this run, the follower of an earlier start.
            say: prints a line.
        """
        super().__init__(name=f"to {tracker}", daemon=True)
        self.wish, self.run_folder, self.tracker = wish, wish.run, tracker
        self.under_way, self.follows, self.say = under_way, follows, say
        self.progressed = time.monotonic()
        """When something arrived last."""
        self.problem: str | None = None
        """Why the last attempt failed, None if it did not."""
        self.sent = 0
        """The step of the last row that is there."""
        self.refused = False
        """Whether the user has to mend something first."""
        self.moved = False
        """Whether another run lies in the folder by now."""
        self.gives_up = Event()
        self.has_said_where = self.has_said_names = False
        self.lock = Lock(self.run_folder, tracker)

    def run(self) -> None:
        """Send until all is there, or no attempt is left."""
        failures = failures_after_end = 0
        while not self.gives_up.is_set():
            self.problem, before = None, self.sent
            try:
                self.attempt()
                return
            except MovedError:
                self.moved = True
                self.problem = (
                    f"the run that was sent from {self.run_folder} was moved aside (--resume never does it); `toolkit "
                    "track` and its new folder, in former/, sends what is missing"
                )
                self.say(f"{self.tracker}: {self.problem}")
                return
            except UserError as error:
                self.refused, self.problem = True, "; ".join(error.problems)
                self.say(f"{self.tracker}: {self.problem}")
                return
            # Some libraries end the process where they mean an error.
            except (Exception, SystemExit) as error:
                self.problem = in_words(error)
            failures = 1 if self.sent > before else failures + 1
            if failures == 1:
                goes_on = " (training goes on; what is missing is sent later)" if self.under_way() else ""
                self.say(f"warning: {self.tracker} can't be sent to: {self.problem}{goes_on}")
            if not self.under_way():
                failures_after_end += 1
                if failures_after_end >= ATTEMPTS_AFTER_THE_END:
                    return
            self.pause(min(LONGEST_PAUSE, 2.0 ** min(failures, 10)))

    def pause(self, seconds: float) -> None:
        """Wait before the next attempt, and not much longer once the run has ended."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self.gives_up.is_set():
            time.sleep(SECONDS_BETWEEN_LOOKS)
            if not self.under_way():
                until = min(until, time.monotonic() + 2.0)

    def attempt(self) -> None:
        """Find out what is there, and send all else.

        Raises:
            UserError: another process sends this run there, or a file in the run folder can't be read.
            MovedError: the run was moved aside.
            Exception: whatever the tracker's library raises.
        """
        lock = self.lock = Lock(self.run_folder, self.tracker)
        lock.take(patient=lambda: self.follows and not self.gives_up.is_set())
        try:
            settings = settings_of(settings_without_secrets(read_yaml(self.run_folder / "config.yaml")))
            there = self.known_run(settings)
            if not there.can_be_asked and there.position.finished == end_of(self.run_folder)[0] != 0:
                self.sent = there.position.sent
                return
            try:
                there.begin()
                self.write(there.position)
                end = self.send_all(there)
            finally:
                there.close(str(read_record(self.run_folder).get("status")))
            self.make_sure(there, end)
        finally:
            lock.release()

    def known_run(self, settings: dict[str, Any]) -> TrackedRun:
        """Return the run in the tracker that was begun before, or one with a name of its own."""
        known = read_position(self.run_folder, self.tracker)
        there = RUNS[self.tracker](self.run_folder, known or Position(), settings)
        if known is None:
            recipe = str(read_record(self.run_folder).get("recipe") or "finetune-toolkit")
            there.identify(self.wish.project, self.wish.name, recipe)
            # A kill may come after the run was begun there, before its id is known here.
            self.write(there.position)
        there.progress = self.moves
        self.compare_names(there.position)
        return there

    def compare_names(self, position: Position) -> None:
        """Say that a run goes on under the names that it was begun with, where others are asked for."""
        asked = {"project": self.wish.project, "name": self.wish.name}
        # Trackio's names end with a part of the token.
        own = {"project": {position.project}, "name": {position.name, position.name.removesuffix(position.mark)}}
        other = [key for key, value in asked.items() if value is not None and value not in own[key]]
        if other and not self.has_said_names:
            self.has_said_names = True
            self.say(
                f"warning: {self.tracker} goes on with {position.name} in the project {position.project}, as the run "
                f"was begun there: another {' and '.join(other)} can't be given any more"
            )

    def moves(self) -> None:
        """Note that something goes on."""
        self.progressed = time.monotonic()

    def write(self, position: Position) -> None:
        """Write down how far the tracker is.

        Raises:
            MovedError: another run lies there by now, which must not get the names of this one.
        """
        self.lock.check()
        write_position(self.run_folder, self.tracker, position)
        self.sent, self.progressed = position.sent, time.monotonic()

    def send_all(self, there: TrackedRun) -> tuple[int, Values]:
        """Send the settings, the rows as they come, and the end; return the end that was seen, as `end_of` does."""
        position, sent = there.position, there.sent()
        if not self.has_said_where:
            self.say(f"{self.tracker}: {there.place}")
            self.has_said_where = True
        if not position.settings:
            there.send_settings()
            position.settings = True
            self.write(position)
        tail, written = LedgerTail(self.run_folder / "ledger.jsonl"), time.monotonic()
        end: tuple[int, Values] = (0, {})
        while not self.gives_up.is_set():
            # Asked first: what was written before the end of the run is then read below.
            goes_on = self.under_way()
            seen = (0, {}) if goes_on else end_of(self.run_folder)
            for rows in in_parts(tail.new_rows(), there.rows_at_once):
                self.lock.check()
                self.send_rows(there, sent, rows)
                position.sent = max(position.sent, rows[-1]["step"])
                if not there.can_be_asked or time.monotonic() - written > SECONDS_BETWEEN_POSITIONS:
                    self.write(position)
                    written = time.monotonic()
            if not goes_on:
                end = seen
                break
            time.sleep(SECONDS_BETWEEN_LOOKS)
        self.lock.check()
        step, values = end
        if there.can_be_asked:
            values = sent.lacking(step, values)
        if values and (there.can_be_asked or position.finished != step):
            there.send_final(step, values)
        self.write(position)
        return end

    def send_rows(self, there: TrackedRun, sent: Sent, rows: list[dict[str, Any]]) -> None:
        """Send what is not there yet of some rows."""
        found = [(row["step"], sent.lacking(row["step"], values_of(row))) for row in rows]
        if lacking := [(step, values) for step, values in found if values]:
            there.send(lacking)
            for step, values in lacking:
                sent.add(step, values)
        self.sent, self.progressed = rows[-1]["step"], time.monotonic()

    def make_sure(self, there: TrackedRun, seen: tuple[int, Values]) -> None:
        """Ask the tracker at the end whether it has everything, where it can be asked, and write that down.

        Args:
            there: the run in the tracker.
            seen: the end that was sent. Another start may have finished the run since then.

        Raises:
            IncompleteError: it lacks something.
        """
        last, end = seen
        if there.can_be_asked and not self.under_way():
            sent, rows = there.sent(), LedgerTail(self.run_folder / "ledger.jsonl").new_rows()
            missing = []
            for row in rows:
                self.moves()
                if sent.lacking(row["step"], values_of(row)):
                    missing.append(row["step"])
            if missing:
                raise IncompleteError(f"{len(missing):,} rows did not arrive, the first of step {missing[0]:,}")
            if sent.lacking(last, end):
                raise IncompleteError("the metrics of the end did not arrive")
        if last:
            there.position.finished = last
        self.write(there.position)


RUNS: dict[str, type[TrackedRun]] = {
    "tensorboard": TensorBoardRun,
    "trackio": TrackioRun,
    "mlflow": MLflowRun,
    "wandb": WandbRun,
    "comet_ml": CometRun,
    "aim": AimRun,
    "clearml": ClearMLRun,
    "dvclive": DVCLiveRun,
    "swanlab": SwanLabRun,
}
"""What sends to each of the trackers that Accelerate has a class for."""


def end_of(run: Path) -> tuple[int, Values]:
    """Return the step after which a run was finished, 0 if it is not, and what is sent of its end."""
    record = read_record(run)
    return (record["step"], final_values(record)) if record.get("status") == "finished" else (0, {})


def in_parts(rows: Iterator[dict[str, Any]], most: int) -> Iterator[list[dict[str, Any]]]:
    """Yield rows in lists of at most so many."""
    while part := list(islice(rows, most)):
        yield part


def in_words(error: BaseException) -> str:
    """Return the first line of an error, without what nobody else may see."""
    first = (str(error).strip() or type(error).__name__).splitlines()[0]
    text = without_secrets(first)
    return f"{type(error).__name__}: {text[:LONGEST_MESSAGE]}"
