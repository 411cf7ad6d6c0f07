"""Every way to stop, kill, freeze or break a run of one or two processes, and what comes of it.

    python benchmarks/fault_tolerance/stop_matrix.py
        all cases, about 25 minutes on two free cores
    python benchmarks/fault_tolerance/stop_matrix.py --only SIGSTOP

Each case is a training of its own (`tests/helpers/slow_recipe.py`, with dropout), interfered with while every process
stands at a known place, mostly the forward pass of step 42. Then the same command is started again, has to finish the
run, and the final weights have to be those of an undisturbed run, bit for bit, and each step has to be in the ledger
once. Exits with 1 if a case does not end as promised; what it printed then follows.
"""

import argparse
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "helpers"))

from machine import machine, table
from stop_acts import PROGRESS, SILENCE, STEPS, Case
from stop_cases import cases
from stop_failures import case_sample
from stopped_runs import (
    BY_HAND,
    PYTHON,
    Ending,
    Job,
)

COLUMNS = (
    "what was done",
    "started by",
    "exit code",
    "`toolkit status`",
    "run.json",
    "seconds",
    "left behind",
    "at step",
    "newest checkpoint",
    "same command again",
    "",
)
TRACE = "Traceback (most recent call last):"


def main() -> None:
    """Run the cases one after another and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="only the cases in whose line this stands")
    parser.add_argument("--from", type=int, default=1, dest="first", metavar="N", help="the first case to run")
    given = parser.parse_args()
    chosen = [case for case in cases() if given.only in f"{case.what} | {case.launcher}"][given.first - 1 :]
    rows, broken = [], 0
    with TemporaryDirectory() as folder:
        undisturbed = Undisturbed(Path(folder))
        for number, case in enumerate(chosen):
            row, problems, said = carry_out(case, Path(folder) / f"case-{number}", undisturbed)
            rows.append([*row, "; ".join(problems) or "as promised"])
            print(f"{number + 1} of {len(chosen)}: {case.what}: {rows[-1][-1]}", file=sys.stderr, flush=True)
            if problems:
                broken += 1
                print(said, file=sys.stderr, flush=True)
    print(f"# {len(rows)} ways to stop, kill, freeze or break a run\n")
    print(machine() + "\n")
    print(
        f"timeout.silence is {SILENCE} s, timeout.progress {PROGRESS} s where it matters. "
        "Exit codes of a launcher, which turns all but 0 into 1; with `by hand`, of process 0 and "
        "process 1. Seconds from the signal to the end of the last process.\n"
    )
    print(table(COLUMNS, rows))
    print(f"\n{len(rows) - broken} of {len(rows)} as promised.")
    if broken:
        sys.exit(1)


class Undisturbed:
    """Final weights of runs that nobody disturbs, each trained once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.known: dict[tuple[int, bool], bytes] = {}

    def weights(self, case: Case) -> bytes:
        """Return the weights that a case has to come to."""
        key = (case.launcher.processes, case.nan)
        if key not in self.known:
            settings = ("--trouble.nan", str(case_sample()), "--optim.nonfinite", "skip") if case.nan else ()
            launcher = BY_HAND if case.launcher.processes > 1 else PYTHON
            job = Job(self.folder / f"undisturbed-{len(self.known)}", launcher, *settings)
            assert set(job.carry_through().codes) == {0}
            self.known[key] = job.weights()
        return self.known[key]


def carry_out(case: Case, folder: Path, undisturbed: Undisturbed) -> tuple[list[str], list[str], str]:
    """Return the row of a case, what is not as promised, and what was printed."""
    expected = undisturbed.weights(case)
    settings = ("--timeout.silence", str(SILENCE), *case.settings)
    job = Job(folder, case.launcher, *settings)
    if case.beforehand is not None:
        case.beforehand(job)
    try:
        with job.start(case.trouble) as start:
            case.act(start)
            ending = start.end(within=60)
    except AssertionError as error:
        return [case.what, str(case.launcher), *[""] * 8], ["does not end"], str(error)
    status, sealed = (job.status(), max(job.sealed(), default=None)) if job.folder.is_dir() else (2, None)
    recorded = str(job.record["status"]) if (job.folder / "run.json").exists() else "none"
    problems = broken_promises(case, ending, status, recorded, sealed)
    again, more, said = go_on(case, job, expected, recorded == "finished")
    row = [
        case.what,
        str(case.launcher),
        ", ".join(map(str, ending.codes)),
        str(status),
        recorded,
        f"{ending.seconds:.1f}",
        str(ending.left),
        str(case.at),
        str(sealed),
        again,
    ]
    return row, problems + more, ending.said + said


def broken_promises(case: Case, ending: Ending, status: int, recorded: str, sealed: int | None) -> list[str]:
    """Return what is not as promised after the first start."""
    problems = []
    if tuple(ending.codes) != case.codes:
        problems.append(f"exit code {ending.codes}, not {case.codes}")
    if status != case.status:
        problems.append(f"status code {status}, not {case.status}")
    if recorded != case.recorded:
        problems.append(f"status {recorded}, not {case.recorded}")
    if ending.seconds > case.within:
        problems.append(f"took {ending.seconds:.1f} s, not {case.within:g}")
    if ending.left:
        problems.append(f"{ending.left} process(es) left behind")
    if sealed != case.sealed:
        problems.append(f"newest checkpoint {sealed}, not {case.sealed}")
    # The last word stands below the launcher's trace once more (`toolkit/distributed/last_word.py`).
    at_once, _, below = ending.said.partition(TRACE)
    problems += [
        f"{at_once.count(text)} and {below.count(text)} times: {text}"
        for text in case.once
        if (at_once.count(text), below.count(text)) not in ((1, 0), (0, 1), (1, 1))
    ]
    problems += [f"said: {text}" for text in case.never if text in ending.said]
    return problems


def go_on(case: Case, job: Job, expected: bytes, finished: bool) -> tuple[str, list[str], str]:
    """Start the same command again; return what came of it in a word, what is not as promised, and the output."""
    ending = None
    if not finished:
        try:
            ending = job.carry_through(*case.again)
        except AssertionError as error:
            return "does not end", ["the same command does not end"], str(error)
    if ending is not None and set(ending.codes) != {0}:
        return f"exit code {ending.codes}", ["the same command does not go on"], ending.said
    problems = []
    if job.weights() != expected:
        problems.append("other weights")
    if job.rows() != list(range(1, STEPS + 1)):
        problems.append("a step twice or missing in the ledger")
    return "not needed" if ending is None else "finishes, same weights", problems, ""


if __name__ == "__main__":
    main()
