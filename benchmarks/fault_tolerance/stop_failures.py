"""Cases of `stop_matrix.py` in which nobody asked: processes that die, freeze, hang or fail, and NaN losses."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "helpers"))

from stop_acts import (
    EVALUATION,
    FREEZE,
    KILL,
    PLACES,
    PROGRESS,
    SILENCE,
    STEPS,
    TRAINING,
    Case,
    after_time_out,
    held,
    in_trouble,
    nothing,
)
from stopped_runs import (
    ACCELERATE_TWO,
    BY_HAND,
    NO_TROUBLE,
    PYTHON,
    TORCHRUN_AGAIN,
    Trouble,
)


def deaths() -> list[Case]:
    """Return processes that are killed or frozen."""
    found = []
    for place, where, step in (("loss", "in training", 42), ("evaluation", "while evaluating", 25)):
        at = TRAINING.at if place == "loss" else EVALUATION.at // 2
        sealed = 40 if place == "loss" else 20
        for number in (KILL, FREEZE):
            for rank in (0, 1):
                said = (f"process {rank} of 2", f"it was last seen {PLACES[place]}")
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
                f"process {rank} hangs in training", BY_HAND, in_trouble, Trouble(rank=rank),
                codes=(1, 1), sealed=40, **failed,
                once=(f"process {rank} of 2 has made no progress", "it is in the forward pass of step 42")
            ),
            Case(
                f"process {rank} hangs while evaluating", BY_HAND, in_trouble, Trouble("evaluation", 3, rank=rank),
                codes=(1, 1), at=25, sealed=20, **failed,
                once=(f"process {rank} of 2 has made no progress", "it is evaluating batch 3")
            )
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
        Case(
            "a metric takes longer than timeout.progress", BY_HAND, after_time_out, Trouble("metric", 1, rank=0),
            **finished, at=25
        ),
        Case(
            "reading takes longer than timeout.progress", BY_HAND, after_time_out, Trouble("reading", 1, rank=0),
            **finished, at=0
        )
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

    from toolkit.data.order import ShuffledOrder

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
