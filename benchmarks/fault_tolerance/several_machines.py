"""Two and three machines against one: the same numbers, whatever happens to the links between them.

    python benchmarks/fault_tolerance/several_machines.py
        nine cases, 8 minutes on two cores; needs root and iproute2 (see `tests/helpers/machines.py`)
    python benchmarks/fault_tolerance/several_machines.py --cases "2 machines" "link of machine 1 cut"
        a part of it

Each machine is a network namespace; `accelerate launch` with the shipped file starts the run on all of them. Where it
ends by what happens, the same command is given again on every machine once the link is mended. Differences are from one
process on one machine: of the final weights ||a - b|| / ||b|| over all together, of loss and gradient norm the largest
of all steps, relative. Exits with 1 if one is beyond 1e-12, if a step had other samples, or if a process outlives the
time-out.
"""

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "helpers"))

import numpy as np
from launching import TINY, clean_environment
from machine import machine, table
from machines import Network, Process, machines, possible
from resuming import Numbers, numbers

BOUND = 1e-12
STEPS = 60
RUN = ["--epochs", "null", "--steps", str(STEPS), "--checkpoint.every", "3", "--data.held_out", "0"]
RUN += ["--batch.micro", "2", "--threads", "1"]
# Acts while this step or one soon after is taken.
AT = 10
SECONDS = 180.0
# Imports while others use the cores, last words, and the launcher's own end.
SECONDS_TO_LEAVE = 20.0
Event = Callable[[Network], None]


@dataclass(frozen=True)
class Case:
    """Something that happens to a run in the middle."""

    name: str
    machines: int
    event: Event | None = None
    processes: int = 1
    """On each machine."""
    silence: float | None = None
    """The time-out by which the run ends; None: nothing ends it."""


@dataclass(frozen=True)
class Ended:
    """How a start of a run ended."""

    codes: list[int]
    seconds: float
    """From what happened to the end of the last process."""
    said: list[str]
    """By machine."""


def slow(network: Network) -> None:
    """Slow and delay the link of the last machine."""
    network.shape(network.size - 1, rate="5mbit", delay=0.030)


def pause(network: Network) -> None:
    """Cut a link for less than the time-out."""
    network.cut(1)
    time.sleep(5)
    network.mend(1)


CASES = [
    Case("2 machines", 2),
    Case("3 machines", 3),
    Case("2 machines with 2 processes each", 2, processes=2),
    Case("link slowed to 5 Mbit/s, 30 ms delay", 2, slow),
    Case("link of machine 1 cut for 5 s", 2, pause),
    Case("link of machine 1 cut", 2, lambda network: network.cut(1), silence=5),
    Case("link of machine 0 cut", 3, lambda network: network.cut(0), silence=5),
    Case("machine 2 loses power", 3, lambda network: network.kill(2), silence=5),
    Case("link of machine 1 cut, the default time-out", 2, lambda network: network.cut(1), silence=60),
]


def main() -> None:
    """Run all cases and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [case.name for case in CASES]
    parser.add_argument("--cases", nargs="+", choices=names, default=names)
    chosen = parser.parse_args().cases
    if reason := possible():
        sys.exit(reason)
    began = time.monotonic()
    expected = one_process()
    rows, said, kept = [], [], True
    for case in CASES:
        if case.name not in chosen:
            continue
        try:
            with TemporaryDirectory() as place:
                ended, found, repeated = run(case, Path(place) / "run")
        except (RuntimeError, AssertionError) as error:
            print(f"{case.name}: {error}", file=sys.stderr)
            rows.append([case.name, *["-"] * 7, "FAIL"])
            kept = False
            continue
        row, holds = row_of(case, ended, found, expected, repeated)
        rows.append(row)
        kept = kept and holds
        if ended is not None:
            said += [f"- {case.name}, machine {number}: {words}" for number, words in enumerate(ended.said)]
        print(f"{time.monotonic() - began:.0f} s: {' | '.join(row)}", file=sys.stderr)
    print("# Several machines against one process on one machine\n")
    print(machine() + "\n")
    print(
        f"`tests/helpers/tiny_recipe.py` in float64, {STEPS} steps, a checkpoint every 3, micro-batches of at most 2; "
        f"what happens begins in about step {AT}. {time.monotonic() - began:.0f} s in all.\n"
    )
    columns = ["case", "ended after, s (time-out)", "exit codes", "steps done again", "final weights", "loss"]
    print(table([*columns, "gradient norm", "same samples in every step", "verdict"], rows))
    print("\nWhat was said where the run ended; the same command then went on:\n\n" + "\n".join(said))
    if not kept:
        sys.exit(1)


def one_process() -> Numbers:
    """Return the numbers of one process on this machine."""
    with TemporaryDirectory() as place:
        command = [sys.executable, str(TINY), *RUN, "--output", f"{place}/run"]
        subprocess.run(command, env=clean_environment(), check=True, stdout=subprocess.DEVNULL)
        return numbers(Path(place) / "run")


def run(case: Case, folder: Path) -> tuple[Ended | None, Numbers, int]:
    """Return how the first start ended, if it did, the numbers that the run came to, and how many steps it repeated."""
    with machines(case.machines) as network:
        processes, ended = start(case, network, folder), None
        if case.event is not None:
            wait_for_step(AT, folder, processes)
            case.event(network)
            if case.silence is not None:
                ended = end_of(network, processes)
                for number in range(case.machines):
                    network.mend(number)
                processes = start(case, network, folder)
        codes = network.wait(*processes, timeout=SECONDS)
        if any(codes):
            raise RuntimeError(f"ended with {codes}\n" + "\n".join(process.error_output for process in processes))
    return ended, numbers(folder), json.loads((folder / "run.json").read_text(encoding="utf-8"))["repeated"]


def start(case: Case, network: Network, folder: Path) -> list[Process]:
    """Start the run on all machines."""
    silence = [] if case.silence is None else ["--timeout.silence", str(case.silence)]
    return network.start_all(TINY, *RUN, *silence, "--output", folder, processes=case.processes)


def wait_for_step(step: int, folder: Path, processes: Sequence[Process]) -> None:
    """Wait until the ledger has so many rows."""
    ledger, ends = folder / "ledger.jsonl", time.monotonic() + SECONDS
    while not ledger.exists() or ledger.read_bytes().count(b"\n") < step:
        if time.monotonic() > ends or any(process.poll() is not None for process in processes):
            raise RuntimeError(f"the run did not come to step {step}\n{processes[0].error_output}")
        time.sleep(0.005)


def end_of(network: Network, processes: Sequence[Process]) -> Ended:
    """Wait until no process is left on any machine."""
    began = time.monotonic()
    codes = network.wait(*processes, timeout=SECONDS)
    while any(network.running(number) for number in range(network.size)):
        if time.monotonic() > began + SECONDS:
            raise RuntimeError("processes are left on a machine")
        time.sleep(0.1)
    return Ended(codes, time.monotonic() - began, [words_of(process) for process in processes])


def words_of(process: Process) -> str:
    """Return what a launch told the user."""
    told = re.findall(r"can't go on:\n((?:  - .*\n)+)", process.error_output)
    return " ".join(line.removeprefix("  - ") for text in told for line in text.splitlines()) or "(nothing)"


def row_of(case: Case, ended: Ended | None, found: Numbers, expected: Numbers, repeated: int) -> tuple[list[str], bool]:
    """Return the row of a case, and whether all that is promised held."""
    mine, other = (
        np.concatenate([np.frombuffer(run.weights[name], np.float64) for name in sorted(expected.weights)])
        for run in (found, expected)
    )
    weights = float(np.linalg.norm(mine - other) / np.linalg.norm(other))
    pairs = list(zip(found.rows, expected.rows, strict=True))
    apart = [weights] + [
        max(abs(row[name] - wanted[name]) / abs(wanted[name]) for row, wanted in pairs)
        for name in ("loss", "gradient_norm")
    ]
    same = all(row["fingerprint"] == wanted["fingerprint"] and row["step"] == wanted["step"] for row, wanted in pairs)
    in_time = ended is None or case.silence is None or ended.seconds <= case.silence + SECONDS_TO_LEAVE
    holds = same and in_time and max(apart) <= BOUND
    end = ["-", "-"]
    if ended is not None:
        end = [f"{ended.seconds:.0f} ({case.silence:g})", ", ".join(map(str, ended.codes))]
    differences = [f"{value:.1e}" for value in apart]
    return [
        case.name, *end, str(repeated), *differences, "yes" if same else "NO", "pass" if holds else "FAIL",
    ], holds  # fmt: skip


if __name__ == "__main__":
    main()
