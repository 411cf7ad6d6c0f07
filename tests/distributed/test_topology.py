"""The topology table of the benchmark, smaller: three models with dropout on one and two processes."""

import re
import subprocess
import sys

import pytest
from launching import ROOT, finished

sys.path.insert(0, str(ROOT / "benchmarks" / "numerics"))

import topology

NAMES = ["plain transformer", "BERT", "Llama"]


def test_weights_losses_norms_and_metrics_are_those_of_one_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """45 samples in batches of 16 leave 13 for the last one; micro-batches of 3 divide nothing. Bounds as there."""

    def launch(command: list[str], **settings: object) -> "subprocess.CompletedProcess[str]":
        return finished(command, 240, {})

    small = ["--processes", "1", "2", "--micro", "16", "3", "--samples", "45", "--methods", "toolkit"]
    monkeypatch.setattr("subprocess.run", launch)
    monkeypatch.setattr("sys.argv", ["topology.py", *small, "--models", *NAMES])
    topology.main()
    printed = capsys.readouterr().out
    rows = {
        cells[0]: cells[1:]
        for line in printed.splitlines()
        if line.startswith("|") and (cells := [cell.strip() for cell in line.strip("|").split("|")])[1] == "toolkit"
    }
    assert set(rows) == set(NAMES)
    # As the samples come, cut by length, and without padding: two of each on one process and on two.
    assert {name: cells[1] for name, cells in rows.items()} == dict(zip(NAMES, ("8", "12", "12"), strict=True))
    for name, cells in rows.items():
        figures = [float(number) for cell in cells[3:7] for number in re.findall(r"\d[\d.]*e-\d+|^0$", cell)]
        assert len(figures) == 4, printed
        assert max(figures) < (1e-7 if name == "Llama" else 1e-12)
