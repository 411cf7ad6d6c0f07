"""`toolkit track`: send a run to trackers, after it or while it is under way; a run starts this itself."""

import io
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path

from toolkit.config.trackers import tracker_names, unknown_trackers
from toolkit.config.yaml import read_yaml
from toolkit.errors import DEFECT, DONE, USER_CAN_FIX, UserError
from toolkit.output.nearby_runs import no_run_folder
from toolkit.output.run_folder import is_locked, read_record
from toolkit.tracking.delivery import Delivery, Wish
from toolkit.tracking.readiness import problems_here

PATIENCE = 120.0
"""Seconds without progress after the end of a run, after which a tracker is given up."""
SECONDS_BETWEEN_PROBES = 2.0
SECONDS_TO_END = 5.0
"""After Ctrl-C, for the rows that are on their way."""
# A delivery tries again by itself, and says that it failed: without these MLflow would be silent for four minutes.
IMPATIENT = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "30"}


def track(run: Path, to: Sequence[str] | str | None, project: str | None, name: str | None, parent: int | None) -> int:
    """Send a run to trackers and return the exit code; where it is under way, go on until it ends.

    Args:
        run: the run folder.
        to: the trackers; None for those that the run's own settings name.
        project: the project there; None as the run's settings say.
        name: what the run is called there; None as they say.
        parent: the process that trains, where that has started this one.

    Raises:
        UserError: there is no such run, or a tracker is not known, not installed or not logged in.
    """
    record = read_record(run)
    if not record or not (run / "config.yaml").is_file():
        raise UserError(no_run_folder(run, "it has no run.json and config.yaml that can be read"))
    run = run.resolve()
    settings = read_yaml(run / "config.yaml").get("track") or {}
    given = to if to is not None else settings.get("to")
    if given is None:
        raise UserError(
            "no tracker is named, neither by --to nor by the run's own settings; give one, such as --to mlflow"
        )
    problems = [*unknown_trackers(given, "--to"), *problems_here(tracker_names(given), "--to")]
    if os.environ.get("WORLD_SIZE", "1") != "1":
        problems.append("toolkit track works in one process; start it without a launcher")
    if parent is None and not (run / "ledger.jsonl").is_file():
        problems.append(f"the run in {run} has no ledger yet, so there is nothing to send; let it train first")
    if problems:
        raise UserError(*problems)
    for variable, value in IMPATIENT.items():
        os.environ.setdefault(variable, value)
    if parent is not None:
        # The training comes first.
        os.nice(5)
    wish = Wish(run, project or settings.get("project"), name or settings.get("run_name"))
    under_way = Training(run, parent)
    while not (run / "ledger.jsonl").is_file():
        # The run that has started this writes it with its first step.
        if not under_way():
            return DONE
        time.sleep(0.1)
    return send(wish, tracker_names(given), under_way, follows=parent is not None)


class Training:
    """Whether a run is under way."""

    def __init__(self, run: Path, parent: int | None) -> None:
        self.run, self.parent = run, parent
        self.asked = -SECONDS_BETWEEN_PROBES
        self.answer = True

    def __call__(self) -> bool:
        """Return whether rows may still come; once they may not, that stays so."""
        if not self.answer or (self.parent is None and time.monotonic() - self.asked < SECONDS_BETWEEN_PROBES):
            return self.answer
        self.asked = time.monotonic()
        is_there = is_locked(self.run) if self.parent is None else os.getppid() == self.parent
        self.answer = is_there and read_record(self.run).get("status") == "running"
        return self.answer


def wait_for(deliveries: Sequence[Delivery], under_way: Callable[[], bool]) -> None:
    """Wait until all is sent, or nothing has moved for too long since the run ended."""
    ended = None
    while any(delivery.is_alive() for delivery in deliveries):
        time.sleep(0.05)
        if under_way():
            continue
        ended = ended or time.monotonic()
        alive = [max(delivery.progressed, ended) for delivery in deliveries if delivery.is_alive()]
        if alive and time.monotonic() - max(alive) > PATIENCE:
            return


def send(wish: Wish, names: Sequence[str], under_way: Callable[[], bool], follows: bool) -> int:
    """Send a run to several trackers at once and return the exit code."""
    from accelerate import PartialState

    out = sys.stdout

    def say(text: str) -> None:
        # Who started this may have ended.
        with suppress(OSError, ValueError):
            print(text, file=out, flush=True)

    # What the libraries print is theirs; a line may even hold a key.
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        # Accelerate's classes ask it whether this is the main process.
        PartialState(cpu=True)
        deliveries = [Delivery(wish, name, under_way, follows, say) for name in names]
        for delivery in deliveries:
            delivery.start()
        try:
            wait_for(deliveries, under_way)
        except KeyboardInterrupt:
            interrupted = [delivery for delivery in deliveries if delivery.is_alive()]
            for delivery in interrupted:
                delivery.gives_up.set()
            for delivery in interrupted:
                delivery.join(SECONDS_TO_END)
                delivery.problem = delivery.problem or "interrupted"
    incomplete = [delivery for delivery in deliveries if delivery.is_alive() or delivery.problem is not None]
    for delivery in deliveries:
        delivery.gives_up.set()
        if delivery not in incomplete and not follows:
            say(f"{delivery.tracker}: all {delivery.sent:,} steps are there")
    for delivery in incomplete:
        if delivery.refused or delivery.moved:
            continue
        why = "" if delivery.problem else f" (nothing has moved for {PATIENCE:.0f} seconds)"
        say(
            f"{delivery.tracker} has the steps up to {delivery.sent:,}{why}; `toolkit track {wish.run} --to "
            f"{delivery.tracker}` sends what is missing"
        )
    if any(delivery.is_alive() for delivery in deliveries):
        # A library that hangs would hang at the end of the process too.
        os._exit(DEFECT)
    if any(delivery.refused for delivery in incomplete):
        return USER_CAN_FIX
    return DEFECT if incomplete else DONE
