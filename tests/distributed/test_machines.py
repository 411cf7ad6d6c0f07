"""Several machines: the same numbers as one, also over a link that is slowed, delayed and cut in the middle."""

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from launching import TINY, clean_environment
from machines import Network, Process, clear_leftovers, ip, machines, possible
from resuming import Numbers, numbers, undisturbed

pytestmark = pytest.mark.skipif(possible() is not None, reason=str(possible()))

STEPS = 60
# Without held-out data no process imports what computes metrics, which takes longer than these runs.
RUN = (
    *("--epochs", "null", "--steps", str(STEPS), "--checkpoint.every", "3", "--data.held_out", "0"),
    *("--batch.micro", "2", "--batch.balance", "true"),
)
SILENCE = 6.0

ECHO = """
import socket, sys
server = socket.create_server(("", 5000))
print("ready", flush=True)
connection, _ = server.accept()
while data := connection.recv(65536):
    connection.sendall(data[-1:])
"""
SEND = """
import socket, sys, time
connection = socket.create_connection((sys.argv[1], 5000))
connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
print(socket.gethostname(), flush=True)
while sys.stdin.readable():
    began = time.monotonic()
    connection.sendall(bytes(int(sys.argv[2])))
    connection.recv(1)
    print(time.monotonic() - began, flush=True)
    time.sleep(0.01)
"""


def lines_after(process: Process, more: int, seconds: float) -> list[str] | None:
    """Return the lines that a process prints from now on, once there are so many, or None if they do not come in time."""
    begun, ends = len(process.output.splitlines()), time.monotonic() + seconds
    while len(process.output.splitlines()) < begun + more:
        if time.monotonic() > ends:
            return None
        time.sleep(0.01)
    return process.output.splitlines()[begun:]


def test_links_can_be_delayed_cut_and_mended_and_machines_lose_power() -> None:
    with machines(2) as network:
        server = network.start(0, ["python", "-S", "-c", ECHO])
        assert lines_after(server, 1, 20) is not None
        client = network.start(1, ["python", "-S", "-c", SEND, network.host(0), "1"])
        first = lines_after(client, 3, 20)
        assert first is not None
        assert first[0] == "machine-1"
        sent = network.bytes_sent(1)
        network.shape(1, delay=0.02)
        delayed = lines_after(client, 3, 20)
        assert delayed is not None
        assert float(delayed[-1]) >= 0.04 > float(first[-1])
        assert network.bytes_sent(1) > sent
        network.cut(1)
        lines_after(client, 1, 0.1)
        assert lines_after(client, 1, 0.5) is None
        network.mend(1)
        network.shape(1)
        assert lines_after(client, 3, 20) is not None
        network.kill(0)
        assert network.running(0) == []
        assert server.wait(1) == -9
        # Nobody told the other machine.
        assert network.running(1) == [client.pid]


def test_machines_of_a_killed_test_run_are_taken_down() -> None:
    made = "from machines import machines\nwith machines(1) as network:\n    print(network.switch, flush=True)\n    input()"
    environment = clean_environment(PYTHONPATH=str(Path(__file__).parents[1] / "helpers"))
    with subprocess.Popen(
        [sys.executable, "-c", made], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as killed:
        assert killed.stdout is not None
        switch = killed.stdout.readline().strip()
        clear_leftovers()
        assert switch in ip("netns", "list")
        killed.kill()
    clear_leftovers()
    assert switch not in ip("netns", "list")


def start_all(network: Network, folder: Path) -> list[Process]:
    """Start the tiny recipe on all machines, as the shipped launch file says."""
    return network.start_all(TINY, *RUN, "--threads", "1", "--timeout.silence", str(SILENCE), "--output", folder)


def steps_in(folder: Path) -> int:
    """Return how many steps a run has written down."""
    ledger = folder / "ledger.jsonl"
    return ledger.read_bytes().count(b"\n") if ledger.exists() else 0


def wait_for_step(step: int, folder: Path, processes: list[Process]) -> None:
    """Wait until a run has taken so many steps."""
    ends = time.monotonic() + 120
    while steps_in(folder) < step:
        assert time.monotonic() < ends
        assert all(process.poll() is None for process in processes), processes[0].error_output
        time.sleep(0.005)


def check_same(found: Numbers, expected: Numbers) -> None:
    """Check that two runs took the same samples to the same numbers in every step, and came to the same weights."""
    assert [row["step"] for row in found.rows] == [row["step"] for row in expected.rows]
    for mine, other in zip(found.rows, expected.rows, strict=True):
        assert mine["fingerprint"] == other["fingerprint"]
        for name in ("loss", "gradient_norm"):
            assert mine[name] == pytest.approx(other[name], rel=1e-12)
    mine, other = (
        np.concatenate([np.frombuffer(run.weights[name], np.float64) for name in sorted(expected.weights)])
        for run in (found, expected)
    )
    assert np.linalg.norm(mine - other) <= 1e-12 * np.linalg.norm(other)


def test_two_machines_are_one_and_a_link_that_is_slowed_delayed_and_cut_changes_no_number(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with machines(2) as network:
        processes = start_all(network, folder)
        wait_for_step(5, folder, processes)
        network.shape(1, rate="10mbit", delay=0.01)
        wait_for_step(15, folder, processes)
        network.cut(1)
        began = time.monotonic()
        assert network.wait(*processes, timeout=60) == [1, 1]
        assert time.monotonic() - began < SILENCE + 15
        assert network.running(0) == network.running(1) == []
        for process, other in zip(processes, (1, 0), strict=True):
            assert f"process {other} of 2 has given no sign of life" in process.error_output
        record = json.loads((folder / "run.json").read_text())
        assert (record["status"], record["code"]) == ("failed", 1)
        assert 12 <= record["step"] < STEPS

        network.mend(1)
        processes = start_all(network, folder)
        assert network.wait(*processes, timeout=120) == [0, 0], processes[0].error_output
        assert "going on after step" in processes[0].output
    check_same(numbers(folder), undisturbed(*RUN))
