"""Every way to stop, kill, freeze or break a run of one or two processes, and what comes of it.

    python benchmarks/stop_matrix.py
        all cases, about 25 minutes on two free cores
    python benchmarks/stop_matrix.py --only SIGSTOP

Each case is a training of its own (`tests/slow_recipe.py`, with dropout), interfered with while every process stands at a known
place, mostly the forward pass of step 42. Then the same command is started again, has to finish the run, and the final
weights have to be those of an undisturbed run, bit for bit, and each step has to be in the ledger once. Exits with 1 if a case does
not end as promised; what it printed then follows.
"""

import argparse
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from machine import machine, table

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from stopped_runs import (
    ACCELERATE,
    ACCELERATE_TWO,
    BY_HAND,
    NO_TROUBLE,
    PYTHON,
    TORCHRUN,
    TORCHRUN_AGAIN,
    Ending,
    Job,
    Launcher,
    Start,
    Trouble,
)

TERM, INT, USR1, KILL, FREEZE = signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGKILL, signal.SIGSTOP
STEPS = 120
TRAINING, EVALUATION = Trouble(), Trouble("evaluation", at=6)
SILENCE, PROGRESS = 5, 3
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


@dataclass(frozen=True)
class Case:
    """One way to interfere, and what is promised to come of it."""

    what: str
    launcher: Launcher
    act: Callable[[Start], None]
    trouble: Trouble = TRAINING
    settings: tuple[str, ...] = ()
    codes: tuple[int, ...] = (75,)
    """Of the launcher (which knows but 0 and 1), or of each process started by hand."""
    status: int = 75
    """What `toolkit status` returns."""
    recorded: str = "preempted"
    """The status in run.json."""
    at: int = 42
    """The step that was interfered with."""
    sealed: int | None = 42
    """The newest checkpoint afterwards."""
    within: float = 15.0
    """Seconds to the end of the last process."""
    once: tuple[str, ...] = ()
    """What has to be said exactly once."""
    never: tuple[str, ...] = ()
    """What may not be said."""
    again: tuple[str, ...] = ()
    """Settings of the start that goes on."""
    beforehand: Callable[[Job], None] | None = None
    """What is done before the run is started."""
    nan: bool = False
    """Whether the numbers are those of a run with a step that is left out."""


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
        f"timeout.silence is {SILENCE} s, timeout.progress {PROGRESS} s where it matters. Exit codes of a launcher, which turns all but 0 "
        "into 1; with `by hand`, of process 0 and process 1. Seconds from the signal to the end of the last process.\n"
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
    problems += [f"{ending.said.count(text)} times: {text}" for text in case.once if ending.said.count(text) != 1]
    problems += [f"said: {text}" for text in case.never if text in ending.said]
    return problems


def go_on(case: Case, job: Job, expected: bytes, finished: bool) -> tuple[str, list[str], str]:
    """Start the same command again; return what came of it, in a word, what is not as promised, and what was printed."""
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


def held(*numbers: signal.Signals, rank: int | None = None, release: bool = True) -> Callable[[Start], None]:
    """Return what sends signals to the launcher, or to one process, while those in trouble hold.

    Args:
        numbers: the signals, at once one after another.
        rank: the process; the launcher if there is none.
        release: whether the processes are let go when the signal was heard.
    """

    def act(start: Start) -> None:
        troubled = ready(start)
        target = start.processes[0] if rank is None else start.process(rank)
        for number in numbers:
            start.send(number, target)
        if release:
            start.heard(*(troubled if rank is None else [rank]))
            start.go()

    return act


def ready(start: Start) -> list[int]:
    """Wait until the processes in trouble hold, and each knows what the other one does; return who is in trouble."""
    trouble, processes = start.trouble, start.job.launcher.processes
    troubled = list(range(processes)) if trouble.rank is None else [trouble.rank]
    start.reached(*troubled)
    if processes > 1 and trouble.place in ("loss", "evaluation"):
        for rank in troubled:
            start.seen(rank, 1 - rank, PLACES[trouble.place])
    return troubled


PLACES = {"loss": "in the forward pass of step 42", "evaluation": "evaluating batch"}


def stop_file(start: Start) -> None:
    """Ask by the file STOP."""
    ready(start)
    (start.job.folder / "STOP").touch()
    start.signalled = time.monotonic()
    start.go()


def term_after_interrupt(start: Start) -> None:
    """Send SIGINT, and SIGTERM a second and a half later; nobody is let go."""
    ready(start)
    start.send(INT)
    start.heard(0)
    time.sleep(1.5)
    start.send(TERM)


def interrupt_twice(start: Start) -> None:
    """Send SIGINT, and again when it was heard; nobody is let go."""
    ready(start)
    start.send(INT)
    start.heard(0)
    start.send(INT)


def control_c(start: Start) -> None:
    """Do what a terminal does; go on when the launcher has died of it, or when all have heard."""
    troubled = ready(start)
    start.send_to_group(INT)
    start.heard(*troubled)
    if start.job.launcher == ACCELERATE:
        start.processes[0].wait(60)
        time.sleep(1.5)
    start.go()


def from_both_sides(start: Start) -> None:
    """Send SIGTERM to the agent, which sends it on, and to the processes as well, as `srun` does."""
    troubled = ready(start)
    start.send(TERM, start.processes[0], *(start.process(rank) for rank in troubled))
    start.heard(*troubled)
    start.go()


def launcher_before_it_began(start: Start) -> None:
    """Send SIGTERM to the launcher while the recipe is still importing."""
    launcher = start.processes[0]
    start.until(lambda: len(start.alive()) > 1, "a process of the launcher")
    start.send(TERM, launcher)
    start.go()


def to_a_worker(number: signal.Signals) -> Callable[[Start], None]:
    """Return what sends a signal to each loader process alone."""

    def act(start: Start) -> None:
        ready(start)
        workers = start.workers()
        assert len(workers) == 2
        start.send(number, *workers)
        start.go()

    return act


def when_it_waits(start: Start) -> None:
    """Send SIGTERM when the process has done what was read before, and waits for the rest."""
    ready(start)
    time.sleep(2)
    start.send(TERM)


def after_time_out(start: Start) -> None:
    """Let the processes go when they have stood there for longer than the time-outs."""
    start.reached(0)
    start.signalled = time.monotonic()
    time.sleep(2 * PROGRESS)
    start.go()


def nothing(start: Start) -> None:
    """Do nothing: the trouble is enough."""
    start.signalled = time.monotonic()


def in_trouble(start: Start) -> None:
    """Wait for the trouble, and measure from there."""
    assert start.trouble.rank is not None
    start.reached(start.trouble.rank)
    start.signalled = time.monotonic()


def cases() -> list[Case]:
    """Return all cases."""
    return [
        *requests(),
        *launchers(),
        *second_thoughts(),
        *grace(),
        *workers(),
        *preparation(),
        *deaths(),
        *hangs(),
        *errors(),
        *nans(),
    ]


def requests() -> list[Case]:
    """Return the ways to ask a run of one process."""
    found = []
    for trouble, where, step in ((TRAINING, "in training", 42), (EVALUATION, "while evaluating", 25)):
        found += [
            Case(f"{number.name} {where}", PYTHON, held(number), trouble, at=step, sealed=step)
            for number in (TERM, INT, USR1)
        ]
        found.append(Case(f"the file STOP {where}", PYTHON, stop_file, trouble, at=step, sealed=step))
    return found


def launchers() -> list[Case]:
    """Return SIGTERM to processes and launchers."""
    found = []
    for place, where, step in (("loss", "in training", 42), ("evaluation", "while evaluating", 25)):
        at = TRAINING.at if place == "loss" else EVALUATION.at // 2
        for rank in (0, 1):
            # The other one waits for it, or it waits for the other one, in a collective.
            for holder in (0, 1):
                trouble = Trouble(place, at, rank=holder)
                state = "holds the other up" if holder == rank else "waits for the other"
                what = f"SIGTERM to process {rank} of two, which {state}, {where}"
                found.append(Case(what, ACCELERATE_TWO, asked_alone(rank), trouble, codes=(1,), at=step, sealed=step))
        what, both = f"SIGTERM to the launcher {where}", Trouble(place, at)
        one = TRAINING if place == "loss" else EVALUATION
        found += [
            Case(what, ACCELERATE, held(TERM), one, codes=(-15,), at=step, sealed=step),
            Case(what, ACCELERATE_TWO, held(TERM), both, codes=(1,), at=step, sealed=step),
            Case(what, TORCHRUN, held(TERM), both, codes=(1,), at=step, sealed=step),
            Case(what, TORCHRUN_AGAIN, held(TERM), both, codes=(1,), at=step, sealed=step),
            Case(
                f"SIGTERM to process 1 {where}",
                TORCHRUN_AGAIN,
                held(TERM, rank=1),
                both,
                codes=(1,),
                at=step,
                sealed=step,
                within=60,
            ),
        ]
    alone = Launcher("torchrun")
    found += [
        Case("SIGTERM to the launcher in training", alone, held(TERM), codes=(1,)),
        Case("the file STOP", TORCHRUN_AGAIN, stop_file, codes=(1,), within=60),
        Case("SIGTERM to launcher and processes at once", TORCHRUN_AGAIN, from_both_sides, codes=(1,)),
        Case("SIGKILL to the launcher", ACCELERATE, held(KILL), codes=(-9,)),
        Case("SIGKILL to the launcher", TORCHRUN, held(KILL), codes=(-9,)),
        Case(
            "SIGTERM to the launcher while the recipe imports",
            ACCELERATE,
            launcher_before_it_began,
            NO_TROUBLE,
            codes=(-15,),
            status=2,
            recorded="refused",
            at=0,
            sealed=None,
        ),
    ]
    return found


def asked_alone(rank: int) -> Callable[[Start], None]:
    """Return what asks one process, whether it is the one that holds or the one that waits for it."""
    return held(TERM, rank=rank)


def second_thoughts() -> list[Case]:
    """Return signals that come twice."""
    at_once = {"codes": (1,), "status": 1, "recorded": "failed", "sealed": 40, "within": 5.0}
    return [
        Case("SIGTERM twice at once", PYTHON, held(TERM, TERM)),
        Case("SIGTERM twice at once to process 1 of two", ACCELERATE_TWO, held(TERM, TERM, rank=1), codes=(1,)),
        Case("SIGTERM and SIGINT at once", PYTHON, held(TERM, INT)),
        Case("SIGINT and SIGTERM at once", PYTHON, held(INT, TERM)),
        Case("SIGINT twice", PYTHON, interrupt_twice, **at_once, once=("ended at once (SIGINT after SIGINT)",)),
        Case(
            "SIGTERM 1.5 s after SIGINT",
            PYTHON,
            term_after_interrupt,
            **at_once,
            once=("ended at once (SIGTERM after SIGINT)",),
        ),
        Case(
            "one Ctrl-C, of which the launcher dies",
            ACCELERATE,
            control_c,
            codes=(-2,),
            once=("stopped on request (SIGINT)",),
        ),
        Case("one Ctrl-C", ACCELERATE_TWO, control_c, codes=(1,), once=("stopped on request (SIGINT)",)),
        Case("one Ctrl-C", TORCHRUN_AGAIN, control_c, codes=(1,), once=("stopped on request (SIGINT)",)),
    ]


def grace() -> list[Case]:
    """Return steps that are longer than the grace period."""
    short, unsealed = ("--checkpoint.grace", "2"), ("--checkpoint.every", "1000", "--evaluate.every", "1000")
    said = ("no checkpoint within the 2 s of checkpoint.grace",)
    asked = held(TERM, release=False)
    failed = {"status": 1, "recorded": "failed", "sealed": None, "within": 8.0}
    warning = "Warning: checkpoint.grace is 40 s"
    return [
        Case("grace period over", PYTHON, asked, settings=short, sealed=40, within=8, once=said),
        Case(
            "grace period over, nothing sealed",
            PYTHON,
            asked,
            settings=(*short, *unsealed),
            codes=(1,),
            **failed,
            once=said,
        ),
        Case("grace period over", ACCELERATE_TWO, asked, settings=short, codes=(1,), sealed=40, within=8, once=said),
        Case(
            "grace period over, SIGTERM to process 1",
            BY_HAND,
            held(TERM, rank=1, release=False),
            settings=short,
            codes=(75, 75),
            sealed=40,
            within=12,
        ),
        Case(
            "grace period over, SIGTERM to process 0",
            BY_HAND,
            held(TERM, rank=0, release=False),
            settings=short,
            codes=(75, 75),
            sealed=40,
            within=12,
        ),
        Case(
            "grace period over, SIGTERM to process 1",
            TORCHRUN_AGAIN,
            held(TERM, rank=1, release=False),
            settings=short,
            codes=(1,),
            sealed=40,
            within=60,
        ),
        Case(
            "grace period over, nothing sealed",
            TORCHRUN_AGAIN,
            held(TERM, rank=0, release=False),
            settings=(*short, *unsealed),
            codes=(1,),
            status=1,
            recorded="failed",
            sealed=None,
            within=60,
        ),
        Case(
            "grace period over in the preparation of a run that goes on",
            PYTHON,
            asked,
            Trouble("model", 1),
            settings=short,
            sealed=42,
            within=8,
            once=said,
            beforehand=stopped_before,
        ),
        Case(
            "grace period of 40 s",
            TORCHRUN,
            held(TERM),
            settings=("--checkpoint.grace", "40"),
            codes=(1,),
            once=(warning,),
        ),
        Case("grace period of 40 s", PYTHON, held(TERM), settings=("--checkpoint.grace", "40"), never=("Warning",)),
        Case(
            "grace period of 20 s",
            TORCHRUN,
            held(TERM),
            settings=("--checkpoint.grace", "20"),
            codes=(1,),
            never=("Warning: checkpoint",),
        ),
    ]


def stopped_before(job: Job) -> None:
    """Stop the run in step 42 before the case begins."""
    with job.start(TRAINING) as start:
        held(TERM)(start)
        assert start.end().codes == [75]


def workers() -> list[Case]:
    """Return signals where loader processes read the data."""
    two = ("--data.workers", "2")
    finished = {"codes": (0,), "status": 0, "recorded": "finished", "sealed": STEPS, "settings": two, "within": 60.0}
    return [
        Case("SIGTERM to the loader workers alone", PYTHON, to_a_worker(TERM), **finished),
        Case("SIGINT to the loader workers alone", PYTHON, to_a_worker(INT), **finished),
        Case("SIGTERM to a process with loader workers", PYTHON, held(TERM), settings=two),
        Case(
            "SIGTERM to a process with loader workers, while evaluating",
            PYTHON,
            held(TERM),
            EVALUATION,
            settings=two,
            at=25,
            sealed=25,
        ),
        Case(
            "SIGKILL to a process with loader workers",
            PYTHON,
            held(KILL, release=False),
            settings=two,
            codes=(-9,),
            status=1,
            recorded="running",
            sealed=40,
            within=2,
        ),
        Case(
            "SIGTERM while a loader worker hangs, grace period 2 s",
            PYTHON,
            when_it_waits,
            Trouble("fetch", 24),
            settings=(*two, "--checkpoint.grace", "2"),
            sealed=40,
            within=8,
        ),
    ]


def preparation() -> list[Case]:
    """Return requests before the first step."""
    building = Trouble("model", 1)
    unsealed = {"status": 1, "recorded": "failed", "at": 0, "sealed": None, "within": 10.0}
    grace = ("--checkpoint.grace", "2")
    return [
        Case("SIGTERM before the first step", PYTHON, held(TERM), building, at=0, sealed=0),
        Case("SIGTERM before the first step", ACCELERATE, held(TERM), building, codes=(-15,), at=0, sealed=0),
        Case(
            "SIGTERM to process 1 before the first step",
            BY_HAND,
            held(TERM, rank=1),
            building,
            codes=(75, 75),
            at=0,
            sealed=0,
        ),
        Case(
            "grace period over before the first step",
            PYTHON,
            held(TERM, release=False),
            building,
            settings=grace,
            codes=(1,),
            **unsealed,
        ),
        Case(
            "grace period over while data is read",
            PYTHON,
            held(TERM, release=False),
            Trouble("reading", 1),
            settings=grace,
            codes=(1,),
            **unsealed,
        ),
    ]


def deaths() -> list[Case]:
    """Return processes that are killed or frozen."""
    found = []
    for place, where, step in (("loss", "in training", 42), ("evaluation", "while evaluating", 25)):
        at = TRAINING.at if place == "loss" else EVALUATION.at // 2
        sealed = 40 if place == "loss" else 20
        for number, state in ((KILL, "it was last seen"), (FREEZE, "it was last seen")):
            for rank in (0, 1):
                doing = PLACES[place]
                said = (f"process {rank} of 2", f"{state} {doing}")
                shared = {
                    "status": 1,
                    "recorded": "running" if rank == 0 else "failed",
                    "at": step,
                    "sealed": sealed,
                    "within": SILENCE + 8.0,
                    "once": said,
                }
                act = held(number, rank=rank, release=False)
                codes = (-9, 1) if rank == 0 else (1, -9)
                # A frozen one is killed by those who find it, or else it would keep the lock of the run folder.
                what = f"{number.name} to process {rank} {where}"
                found += [
                    Case(
                        what, BY_HAND, act, Trouble(place, at, rank=rank), codes=codes, **shared, never=("Traceback",)
                    ),
                    Case(
                        f"{what}, the other one busy",
                        BY_HAND,
                        act,
                        Trouble(place, at),
                        codes=codes,
                        **shared,
                        never=("Traceback",),
                    ),
                ]
                if place == "loss":
                    found.append(Case(what, ACCELERATE_TWO, act, Trouble(place, at, rank=rank), codes=(1,), **shared))
    for rank in (0, 1):
        found.append(
            Case(
                f"SIGKILL to process {rank}",
                TORCHRUN_AGAIN,
                held(KILL, rank=rank, release=False),
                codes=(0,),
                status=0,
                recorded="finished",
                sealed=STEPS,
                within=60,
            )
        )
    return found


def hangs() -> list[Case]:
    """Return processes that live and stand still."""
    found = []
    settings = ("--timeout.progress", str(PROGRESS))
    failed = {
        "status": 1,
        "recorded": "failed",
        "within": PROGRESS + 10.0,
        "settings": settings,
        "never": ("Traceback",),
    }
    for rank in (0, 1):
        found += [
            Case(
                f"process {rank} hangs in training", BY_HAND, in_trouble, Trouble(rank=rank), codes=(1, 1), sealed=40, **failed,
                once=(f"process {rank} of 2 has made no progress", "it is in the forward pass of step 42"),
            ),
            Case(
                f"process {rank} hangs while evaluating", BY_HAND, in_trouble, Trouble("evaluation", 3, rank=rank), codes=(1, 1),
                at=25, sealed=20, **failed, once=(f"process {rank} of 2 has made no progress", "it is evaluating batch 3"),
            ),
        ]  # fmt: skip
    finished = {
        "codes": (0, 0),
        "status": 0,
        "recorded": "finished",
        "sealed": STEPS,
        "settings": settings,
        "within": 60.0,
    }
    return [
        *found,
        Case("a metric takes longer than timeout.progress", BY_HAND, after_time_out, Trouble("metric", 1, rank=0), **finished, at=25),
        Case("reading takes longer than timeout.progress", BY_HAND, after_time_out, Trouble("reading", 1, rank=0), **finished, at=0),
    ]  # fmt: skip


def errors() -> list[Case]:
    """Return errors of one process alone."""
    found = []
    for rank in (0, 1):
        for place, at, step, sealed in (("loss", 42, 42, 40), ("evaluation", 3, 25, 20)):
            failed = {"status": 1, "recorded": "failed", "at": step, "sealed": sealed, "within": 12.0}
            found += [
                Case(
                    f"a defect in process {rank}, in the {place}",
                    BY_HAND,
                    in_trouble,
                    Trouble(place, at, rank, "defect"),
                    codes=(1, 1),
                    **failed,
                    once=("ValueError: a defect in process",),
                ),
                Case(
                    f"an error of the user's in process {rank}, in the {place}",
                    BY_HAND,
                    in_trouble,
                    Trouble(place, at, rank, "user_error"),
                    codes=(2, 2),
                    **{**failed, "status": 2},
                    once=(f"a file of process {rank} is broken",),
                    never=("Traceback",),
                ),
            ]
        found += [
            Case(
                f"a defect in process {rank}, in the loss",
                ACCELERATE_TWO,
                in_trouble,
                Trouble(rank=rank, what="defect"),
                codes=(1,),
                status=1,
                recorded="failed",
                sealed=40,
                within=12,
                once=("ValueError: a defect in process",),
            ),
            Case(
                f"an error of the user's in process {rank}, in the loss",
                ACCELERATE_TWO,
                in_trouble,
                Trouble(rank=rank, what="user_error"),
                codes=(1,),
                status=2,
                recorded="failed",
                sealed=40,
                within=12,
                once=(f"a file of process {rank} is broken",),
            ),
        ]
    return found


NAN_STEP = 6


def case_sample() -> int:
    """Return the sample whose loss is not a number: one of step 6, and of a step in every later epoch."""
    from slow_recipe import Slow

    from toolkit.order import ShuffledOrder

    return int(ShuffledOrder(45, Slow().batch.size, Slow().seed).global_batch(NAN_STEP - 1)[0])


def nans() -> list[Case]:
    """Return losses that are not a number, at which a run stops, or goes on without the step."""
    broken = ("--trouble.nan", str(case_sample()), "--checkpoint.every", "4")
    skip = ("--optim.nonfinite", "skip")
    found = []
    for launcher in (PYTHON, BY_HAND):
        found += [
            Case(
                "the loss of a sample is not a number",
                launcher,
                nothing,
                NO_TROUBLE,
                settings=broken,
                codes=(2,) * launcher.processes,
                status=2,
                recorded="failed",
                at=NAN_STEP,
                sealed=4,
                within=60,
                once=(f"the gradient of step {NAN_STEP} is not finite", "The last good checkpoint is"),
                never=("Traceback",),
                again=skip,
                nan=True,
            ),
            Case(
                "the loss of a sample is not a number, and its steps are left out",
                launcher,
                nothing,
                NO_TROUBLE,
                settings=(*broken, *skip),
                codes=(0,) * launcher.processes,
                status=0,
                recorded="finished",
                at=NAN_STEP,
                sealed=STEPS,
                within=60,
                once=("20 step(s) left the weights alone",),
                nan=True,
            ),
        ]
    return found


if __name__ == "__main__":
    main()
