"""The kill matrix of the benchmarks, smaller: real processes, killed and started again."""

import re
import sys

import pytest
from launching import ROOT, finished


@pytest.mark.soak
def test_a_run_that_is_killed_and_started_again_comes_to_the_same_weights() -> None:
    """One process, and rank 0 of two, twice each; the script compares weights, ledger and starts, and says so."""
    script = str(ROOT / "benchmarks" / "fault_tolerance" / "kill_matrix.py")
    result = finished([sys.executable, script, "--kills", "4", "--kills-per-run", "2", "--seed", "3"], 400, {})
    assert result.returncode == 0, result.stdout + result.stderr
    runs = re.search(r"(\d+) of (\d+) runs went on without help", result.stdout)
    assert runs is not None
    assert runs[1] == runs[2]
    kills = [
        int(cell)
        for line in result.stdout.splitlines()
        if line.startswith("| ")
        for cell in re.findall(r" (\d+) ", line)
    ]
    assert sum(kills) >= 4
