"""A machine loses power under an elastic launch: the others go on without it, by themselves, to the same numbers."""

import json
import time
from pathlib import Path

import numpy as np
import pytest
from launching import TINY
from machines import machines, possible
from resuming import numbers, undisturbed

pytestmark = pytest.mark.skipif(possible() is not None, reason=str(possible()))

STEPS = 150
RUN = ("--epochs", "null", "--steps", str(STEPS), "--checkpoint.every", "4", "--data.held_out", "0")


def test_a_machine_loses_power_and_the_run_goes_on_without_it_to_the_same_numbers(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    ledger = folder / "ledger.jsonl"
    with machines(2) as network:
        agent = [
            "torchrun",
            "--nnodes",
            "1:2",
            "--nproc-per-node",
            "1",
            "--max-restarts",
            "1",
            "--rdzv-backend",
            "c10d",
        ]
        agent += ["--rdzv-endpoint", f"{network.address(0)}:29400", "--rdzv-conf", "last_call_timeout=2"]
        recipe = [TINY, *RUN, "--threads", "1", "--timeout.silence", "3", "--output", folder]
        settings = {"ACCELERATE_USE_CPU": "true", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        processes = [network.start(machine, [*agent, *recipe], **settings) for machine in range(2)]
        ends = time.monotonic() + 120
        while not ledger.exists() or ledger.read_bytes().count(b"\n") < 10:
            assert time.monotonic() < ends, processes[0].error_output
            time.sleep(0.005)
        network.kill(1)
        assert network.wait(processes[0], timeout=150) == [0], processes[0].error_output
        assert "process 1 of 2 has given no sign of life" in processes[0].error_output
    record = json.loads((folder / "run.json").read_text())
    first, second = record["topology"]
    assert (record["status"], first["processes"], second["processes"]) == ("finished", 2, 1)
    assert 0 <= record["repeated"] <= 8

    found, expected = numbers(folder), undisturbed(*RUN)
    assert [row["fingerprint"] for row in found.rows] == [row["fingerprint"] for row in expected.rows]
    mine, other = (
        np.concatenate([np.frombuffer(run.weights[name], np.float64) for name in sorted(expected.weights)])
        for run in (found, expected)
    )
    assert np.linalg.norm(mine - other) <= 1e-12 * np.linalg.norm(other)
