"""The kill matrix and the elastic chain of the benchmarks, smaller: real processes, killed and moved."""

import re
import sys

from launching import ROOT, finished


def test_a_run_that_is_killed_and_started_again_comes_to_the_same_weights() -> None:
    """One process, and rank 0 of two, twice each; the script compares weights, ledger and starts, and says so."""
    script = str(ROOT / "benchmarks" / "kill_matrix.py")
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


def test_a_run_that_moves_to_another_number_of_processes_sees_the_same_samples_and_comes_to_the_same_weights() -> None:
    """45 samples, stopped in the middle of the first epoch. Bounds: the benchmark's own."""
    script = str(ROOT / "benchmarks" / "elastic_chain.py")
    small = ["--models", "BERT", "--chain", "2", "1", "--samples", "45"]
    result = finished([sys.executable, script, *small], 240, {})
    assert result.returncode == 0, result.stdout + result.stderr
    assert "| BERT | 2 of 6 |" in result.stdout
    assert "| yes | yes |" in result.stdout
