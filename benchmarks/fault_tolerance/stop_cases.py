"""The cases of `stop_matrix.py`: what is done to a run, and what is promised to come of it."""

import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "helpers"))

from stop_acts import (
    EVALUATION,
    INT,
    KILL,
    STEPS,
    TERM,
    TRAINING,
    USR1,
    Case,
    control_c,
    from_both_sides,
    held,
    interrupt_twice,
    launcher_before_it_began,
    stop_file,
    term_after_interrupt,
    to_a_worker,
    when_it_waits,
)
from stop_failures import deaths, errors, hangs, nans
from stopped_runs import (
    ACCELERATE,
    ACCELERATE_TWO,
    BY_HAND,
    NO_TROUBLE,
    PYTHON,
    TORCHRUN,
    TORCHRUN_AGAIN,
    Job,
    Launcher,
    Start,
    Trouble,
)


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
