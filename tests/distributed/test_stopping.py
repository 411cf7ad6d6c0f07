"""Runs of real processes that are asked to stop, killed, frozen or broken: cases of `benchmarks/fault_tolerance/`.

Each case is interfered with at a known place; the same command then goes on to the weights of an undisturbed run.
"""

import sys
from pathlib import Path

import pytest
from conftest import ROOT

sys.path.insert(0, str(ROOT / "benchmarks" / "fault_tolerance"))

from stop_acts import Case
from stop_cases import cases
from stop_matrix import Undisturbed, carry_out

from toolkit.loop import stop_reason

CHOSEN = [
    "SIGTERM in training | python",
    "SIGTERM to process 1 of two, which waits for the other, in training | accelerate launch x 2",
    "SIGTERM to the launcher in training | accelerate launch",
    "SIGTERM to the launcher while evaluating | torchrun x 2, 3 restarts",
    "SIGINT twice | python",
    "grace period over, SIGTERM to process 1 | by hand x 2",
    "SIGKILL to process 1 | torchrun x 2, 3 restarts",
    "SIGSTOP to process 1 while evaluating | by hand x 2",
]
CASES = {f"{case.what} | {case.launcher}": case for case in cases()}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    return Undisturbed(tmp_path_factory.mktemp("undisturbed"))


@pytest.mark.parametrize("name", CHOSEN)
def test_it_ends_as_promised_and_the_same_command_goes_on(name: str, undisturbed: Undisturbed, tmp_path: Path) -> None:
    case: Case = CASES[name]
    _, broken, said = carry_out(case, tmp_path / "case", undisturbed)
    assert broken == [], said


@pytest.mark.parametrize(
    ("reasons", "said"),
    [
        (["SIGTERM", "SIGINT"], "SIGTERM"),
        ([None, "SIGTERM"], "SIGTERM to process 1"),
        # It stands in the folder of the run, for all of them.
        (["the file STOP", None], "the file STOP"),
        ([None, "the launcher ended"], "the launcher ended"),
    ],
)
def test_it_is_said_to_whom_a_signal_came(reasons: list[str | None], said: str) -> None:
    assert stop_reason(reasons) == said
