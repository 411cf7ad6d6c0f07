"""Trackers through kills: each step once in TensorBoard, Trackio and MLflow, however often a run is killed.

    python benchmarks/fault_tolerance/tracker_kills.py
        50 kills, about a quarter of an hour on two free cores; --kills 5 is less

A training is sent to TensorBoard, to Trackio's database and to MLflow's file store at once, and killed again and again
by SIGKILL: the process that trains, the one that sends, or both, chosen by chance. Half of the kills come within a
twentieth of a second after one of the trackers was seen to write, the others within two seconds. The same command goes
on after each. Then the run is let end, and what the trackers have is read back with their own means: each value of each
row of the ledger has to be there once, with its step. Exits with 1 if it is not, or if a tracker has a second run.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "helpers"))

import psutil
from launching import clean_environment
from machine import machine, table, version_of
from tracked_values import READERS, problems_of, runs_there

from toolkit.output.ledger import read_ledger
from toolkit.output.run_folder import read_record
from toolkit.tracking.scalars import values_of

RECIPE = Path(__file__).with_name("tracker_recipe.py")
STEPS = 30_000
TARGETS = ("the process that trains", "the one that sends", "both")
TRAINING, SENDING, _ = TARGETS
SECONDS = 120.0


@dataclass
class Killed:
    """What was killed, and what it left behind."""

    kills: Counter[str] = field(default_factory=Counter)
    in_a_row: Counter[str] = field(default_factory=Counter)
    """Kills after which a tracker had a part of the values of a row."""
    starts: int = 0


def main() -> None:
    """Kill, go on, read back, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    chance = random.Random(given.seed)
    with TemporaryDirectory() as place:
        run = Path(place) / "run"
        os.environ |= environment(Path(place))
        killed = Killed()
        while killed.kills.total() < given.kills:
            kill_once(run, chance, killed)
            print(f"{killed.kills.total()} kills, {len(rows_of(run)):,} rows", file=sys.stderr, flush=True)
        (run.parent / "fast").touch()
        # Let whatever is left of the last start end by itself.
        words = [*command(run), "--steps", str(len(rows_of(run)) + 200)]
        last = subprocess.run(words, env=clean_environment(), check=False, stdout=sys.stderr)
        rows, broken = [], last.returncode != 0
        for name, read in READERS.items():
            found = read(run)
            wrong = problems_of(run, found)
            several = runs_there(name, run)
            broken = broken or bool(wrong) or several != 1
            twice = sum(problem.split()[1] == "times:" for problem in wrong)
            rows.append(
                [
                    f"{name} {version_of('mlflow-skinny' if name == 'mlflow' else name)}",
                    str(killed.in_a_row[name]),
                    f"{len({step for step, _, _ in found}):,}",
                    f"{len(found):,}",
                    str(twice),
                    str(len(wrong) - twice),
                    str(several),
                ]
            )
        steps, repeated = read_record(run)["step"], read_record(run)["repeated"]
    print("# Trackers through kills\n")
    print(machine() + "\n")
    kinds = ", ".join(f"{count} of {what}" for what, count in sorted(killed.kills.items()))
    print(
        f"{killed.kills.total()} kills ({kinds}) in {killed.starts} starts of a run of {steps:,} steps, of which "
        f"{repeated:,} were done again.\n"
    )
    columns = (
        "tracker",
        "kills in the middle of a row",
        "steps there",
        "values there",
        "twice",
        "missing or wrong",
        "runs",
    )
    print(table(columns, rows))
    print(f"\n{'NOT e' if broken else 'E'}ach value of each step is there once.")
    sys.exit(1 if broken else 0)


def environment(place: Path) -> dict[str, str]:
    """Return where the trackers keep their runs."""
    store = {"MLFLOW_ALLOW_FILE_STORE": "true", "MLFLOW_TRACKING_URI": (place / "mlruns").as_uri()}
    return {"TRACKIO_DIR": str(place / "trackio"), "OMP_NUM_THREADS": "1", **store}


def command(run: Path) -> list[str]:
    """Return the command that begins the run and goes on with it."""
    words = ["--output", str(run), "--threads", "1", "--track.to", ",".join(READERS)]
    return [sys.executable, str(RECIPE), *words]


def kill_once(run: Path, chance: random.Random, killed: Killed) -> None:
    """Start the run, wait until one of the trackers writes, and kill what chance says."""
    target = chance.choice(TARGETS)
    log = (run.parent / "log").open("a")
    training = subprocess.Popen([*command(run), "--steps", str(STEPS)], env=clean_environment(), stdout=log, stderr=log)
    killed.starts += 1
    wait_until_written(run.parent, chance.choice(list(READERS)), training)
    time.sleep(chance.uniform(0, 0.05) if chance.random() < 0.5 else chance.uniform(0, 2))
    sending = [child for child in psutil.Process(training.pid).children() if "track" in child.cmdline()]
    if target != TRAINING:
        for child in sending:
            child.kill()
    if target != SENDING:
        training.kill()
    killed.kills[target] += 1
    # What was left alone ends by itself: who sends finds that nobody trains, who trains is asked to stop.
    if target == SENDING:
        training.send_signal(signal.SIGTERM)
    training.wait(SECONDS)
    if target == TRAINING:
        with suppress(psutil.NoSuchProcess):
            for child in sending:
                child.wait(SECONDS)
    for name in READERS:
        killed.in_a_row[name] += has_half_a_row(name, run)


def wait_until_written(place: Path, tracker: str, training: "subprocess.Popen[bytes]") -> None:
    """Wait until a tracker's files change after a start."""
    before, until = state_of(place, tracker), time.monotonic() + SECONDS
    while state_of(place, tracker) == before:
        if training.poll() is not None or time.monotonic() > until:
            log = (place / "log").read_text()[-3000:]
            raise RuntimeError(f"{tracker} was not written to; the run ended with {training.poll()}:\n{log}")
        time.sleep(0.002)


def state_of(place: Path, tracker: str) -> list[int]:
    """Return the sizes and times of the files that get the values."""
    patterns = {
        "tensorboard": "run/tensorboard/events*",
        "trackio": "trackio/*.db*",
        "mlflow": "mlruns/*/*/metrics/train/loss",
    }
    found = []
    for path in sorted(place.glob(patterns[tracker])):
        with suppress(FileNotFoundError):
            found += [path.stat().st_size, path.stat().st_mtime_ns]
    # The first event of a file is its version, before anything was sent.
    return [size for size in found[::2] if size > 100] if tracker == "tensorboard" else found


def has_half_a_row(tracker: str, run: Path) -> bool:
    """Return whether a tracker has a part of what it is to get of a row."""
    try:
        there = {(step, name) for step, name, _ in READERS[tracker](run)}
    except (AssertionError, OSError):
        return False
    steps = {step for step, _ in there}
    return any(
        row["step"] in steps and any((row["step"], name) not in there for name in values_of(row))
        for row in rows_of(run)
    )


def rows_of(run: Path) -> list[dict[str, object]]:
    """Return the rows of the ledger, if there is one."""
    ledger = run / "ledger.jsonl"
    return list(read_ledger(ledger)) if ledger.is_file() else []


if __name__ == "__main__":
    main()
