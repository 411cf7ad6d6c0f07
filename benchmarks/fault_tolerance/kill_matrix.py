"""Trainings that are killed again and again, at every phase and at random moments: what they come to in the end.

    python benchmarks/fault_tolerance/kill_matrix.py
        at least 200 SIGKILLs, about half an hour on two free cores
    python benchmarks/fault_tolerance/kill_matrix.py --kills 20
    python benchmarks/fault_tolerance/kill_matrix.py --kills 20 --launch-file cpu_deepspeed_zero3
        by another launch file, in two processes alone

A run of 42 steps with dropout, an evaluation every 6 steps and a checkpoint every 5 is started, killed, started again
with the same command, killed elsewhere, and so on, four times in all; then it is left alone. Killed is the only
process, or, of two, one rank (the launcher then ends the other) or both at once. In the end its weights have to be
those of an undisturbed run on as many processes, bit for bit, its ledger has to have each step once with the same
losses and samples, `toolkit verify` has to find nothing, and each start has to have gone on from the newest checkpoint
that was sealed. Exits with 1 if one has not.
"""

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

import psutil
from kill_recipe import PHASES
from machine import accelerate_launch, machine, table

from toolkit.checkpoint.resume import newest_valid
from toolkit.output.run_folder import folder_name
from toolkit.verify.check import verify

RECIPE = Path(__file__).with_name("kill_recipe.py")
RANDOM = "at a random moment"
# Phases that are come to many times: at which of them is drawn.
OFTEN = {
    "in the forward pass": 40,
    "in the backward pass": 40,
    "between micro-batches": 30,
    "agreeing with the others": 12,
    "waiting for data": 12,
    "in the optimizer step": 10,
    "ledger row": 10,
}
LATE = ("last step", "writing the model")
MAIN_ONLY = ("begin", "checkpoint", "copying", "ledger", "writing")
PLAIN = "cpu"
LAUNCH_FILE = "KILL_LAUNCH_FILE"
"""In the environment: the launch file of runs in two processes."""
VICTIMS = ("the only process", "rank 0 of 2", "rank 1 of 2", "both of 2")


@dataclass
class Undisturbed:
    """What a run comes to that nobody kills."""

    weights: str
    rows: list[tuple[object, ...]]
    seconds: float


@dataclass
class Tally:
    """What came of all kills."""

    kills: Counter[tuple[str, str]] = field(default_factory=Counter)
    missed: int = 0
    wrong: list[str] = field(default_factory=list)
    runs: int = 0
    repeated: int = 0


def main() -> None:
    """Kill, compare, and print the matrix."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--kills-per-run", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--phases", nargs="+", metavar="PHASE", choices=[*PHASES, RANDOM], default=[], help="only these"
    )
    parser.add_argument("--launch-file", default=PLAIN, help="of accelerate_configs/, for two processes")
    arguments = parser.parse_args()
    draw = random.Random(arguments.seed)
    tally = Tally()
    with TemporaryDirectory() as place:
        os.environ[LAUNCH_FILE] = arguments.launch_file
        victims = VICTIMS if arguments.launch_file == PLAIN else VICTIMS[1:]
        counts = (1, 2) if arguments.launch_file == PLAIN else (2,)
        undisturbed = {processes: run_undisturbed(processes, Path(place)) for processes in counts}
        plan = cases(draw, arguments.kills_per_run, arguments.phases, victims)
        while tally.kills.total() < arguments.kills:
            kill_and_compare(next(plan), undisturbed, Path(place) / f"run-{tally.runs}", tally, draw)
            print(f"{tally.kills.total()} kills, {tally.runs} runs, {len(tally.wrong)} wrong", file=sys.stderr)
    by = "" if arguments.launch_file == PLAIN else f" by {arguments.launch_file}.yaml"
    print(f"# {tally.kills.total()} SIGKILLs in {tally.runs} runs{by}: what the runs came to\n\n{machine()}\n")
    print(
        f"{tally.runs - len(tally.wrong)} of {tally.runs} runs went on without help to the weights, losses and samples "
        f"of an undisturbed run, bit for bit, each step once in the ledger; {tally.repeated} steps were done again, "
        f"and {tally.missed} starts ended before they came to the place where they were to be killed.\n"
    )
    phases = arguments.phases or [*PHASES, RANDOM]
    print(
        table(
            ["killed", *VICTIMS],
            [
                [PHASES.get(phase, phase), *(str(tally.kills[phase, victim] or "") for victim in VICTIMS)]
                for phase in phases
            ],
        )
    )
    for problem in tally.wrong:
        print(problem, file=sys.stderr)
    if tally.wrong:
        sys.exit(1)


def cases(
    draw: random.Random, kills_per_run: int, only: list[str], victims: Sequence[str] = VICTIMS
) -> Iterator[tuple[str, list[str]]]:
    """Yield (victim, phases at which one run is killed), so that all phases come up equally often for each victim."""
    decks: dict[str, list[str]] = {victim: [] for victim in victims}
    while True:
        for victim in victims:
            chosen: list[str] = []
            while len(chosen) < kills_per_run:
                if not decks[victim]:
                    decks[victim] = [p for p in PHASES if victim != "rank 1 of 2" or not p.startswith(MAIN_ONLY)]
                    decks[victim] += [RANDOM] * (len(decks[victim]) // 3)
                    if only:
                        decks[victim] = [phase for phase in decks[victim] if phase in only]
                    draw.shuffle(decks[victim])
                chosen.append(decks[victim].pop())
            # These come once, at the end.
            yield victim, sorted(chosen, key=lambda phase: LATE.index(phase) if phase in LATE else -1)


def kill_and_compare(
    case: tuple[str, list[str]],
    undisturbed: dict[int, Undisturbed],
    folder: Path,
    tally: Tally,
    draw: random.Random,
) -> None:
    """Kill one run several times, let it end, and hold it against the undisturbed one."""
    victim, phases = case
    processes = 1 if victim == VICTIMS[0] else 2
    reference = undisturbed[processes]
    tally.runs += 1
    said, story = "", []
    for phase in phases:
        expected = newest_sealed(folder)
        moment = draw.uniform(0.2, 1.0) * reference.seconds
        if phase == RANDOM:
            killed, said = kill_from_outside(processes, folder, victim, moment)
        else:
            # The last step comes once.
            time_of_it = draw.randint(1, OFTEN.get(phase, 1 if phase in LATE else 2))
            story.append(f"{phase}:{time_of_it}")
            killed, said = kill_from_inside(processes, folder, victim, f"{phase}:{time_of_it}")
        tally.wrong += [f"{folder.name}: {problem}" for problem in wrong_start(expected, said)]
        if killed:
            tally.kills[phase, victim] += 1
        else:
            tally.missed += 1
    expected = newest_sealed(folder)
    done = subprocess.run(command(processes, folder), capture_output=True, text=True, check=False, env=environment())
    problems = [] if "this run is finished" in done.stdout else wrong_start(expected, done.stdout)
    if done.returncode != 0:
        problems.append(f"the last start ended with {done.returncode}: {done.stderr[-2000:]}")
    else:
        if weights_of(folder) != reference.weights:
            problems.append("the weights differ from the undisturbed run's")
        if rows_of(folder) != reference.rows:
            problems.append("the ledger differs from the undisturbed run's")
        report = verify(folder)
        if report.problems:
            problems.append(f"toolkit verify: {report.problems}")
        tally.repeated += json.loads((folder / "run.json").read_text())["repeated"]
    if problems:
        tally.wrong.append(f"{folder.name} ({victim}; {', '.join(story)}): {'; '.join(problems)}")


def wrong_start(expected: int | None, said: str) -> list[str]:
    """Return what is wrong with the checkpoint that a start went on from, if it came as far as to say."""
    went_on = re.search(r"going on after step ([\d,]+)", said)
    step = int(went_on[1].replace(",", "")) if went_on else None
    trained = re.search(r"^(step \d|trained)", said, re.MULTILINE)
    if step == expected or (step is None and not trained):
        return []
    return [f"a start went on from {step}, and the newest sealed checkpoint was {expected}"]


def newest_sealed(folder: Path) -> int | None:
    """Return the step of the newest valid checkpoint."""
    found, _ = newest_valid(folder / "checkpoints")
    return found[1].step if found else None


def run_undisturbed(processes: int, place: Path) -> Undisturbed:
    """Run to the end."""
    folder = place / f"undisturbed-{processes}"
    started = time.monotonic()
    subprocess.run(command(processes, folder), check=True, capture_output=True, env=environment())
    return Undisturbed(weights_of(folder), rows_of(folder), time.monotonic() - started)


def command(processes: int, folder: Path) -> list[str]:
    """Return the command of the run; the same each time."""
    run = [str(RECIPE), "--threads", "1", "--output", str(folder)]
    if processes == 1:
        return [sys.executable, *run]
    return [
        *accelerate_launch(sys.executable, processes, os.environ.get(LAUNCH_FILE, PLAIN)),
        "--main_process_port",
        "0",
        *run,
    ]


def environment(**more: str) -> dict[str, str]:
    """Return the environment of a run."""
    return {**os.environ, "PYTHONUNBUFFERED": "1", **more}


def kill_from_inside(processes: int, folder: Path, victim: str, place: str) -> tuple[bool, str]:
    """Start the run, which kills itself at a place; return whether it did, and what it said."""
    rank = "1" if victim == "rank 1 of 2" else "0"
    group = {"KILL_GROUP": "1"} if victim == "both of 2" else {}
    done = subprocess.run(
        command(processes, folder),
        capture_output=True,
        text=True,
        check=False,
        env=environment(KILL_AT=place, KILL_RANK=rank, **group),
    )
    return done.returncode != 0, done.stdout


def kill_from_outside(processes: int, folder: Path, victim: str, seconds: float) -> tuple[bool, str]:
    """Start the run and kill it after some seconds; return whether it was still there, and what it said."""
    started = subprocess.Popen(
        command(processes, folder), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment()
    )
    try:
        said, _ = started.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        ranks = (
            [started.pid] if processes == 1 else sorted(child.pid for child in psutil.Process(started.pid).children())
        )
        chosen = ranks[1:2] if victim == "rank 1 of 2" else ranks[:1] if victim == "rank 0 of 2" else ranks
        for process in chosen:
            os.kill(process, signal.SIGKILL)
        said, _ = started.communicate()
        return bool(chosen), said
    return False, said


def weights_of(folder: Path) -> str:
    """Return the hash of the final weights: of the exported model and of the last checkpoint."""
    last = max((folder / "checkpoints").glob(folder_name(42)))
    files = [folder / "model" / "model.safetensors", *sorted(last.glob("*.safetensors"))]
    return sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def rows_of(folder: Path) -> list[tuple[object, ...]]:
    """Return what the ledger says that does not depend on the clock."""
    rows = [json.loads(line) for line in (folder / "ledger.jsonl").read_text(encoding="utf-8").splitlines()]
    fields = ("step", "loss", "gradient_norm", "learning_rate", "units", "samples", "fingerprint", "skipped")
    return [(*(row[name] for name in fields), json.dumps(row["evaluation"])) for row in rows]


if __name__ == "__main__":
    main()
