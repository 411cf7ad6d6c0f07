"""Processes find each other within a bounded time, or report who is missing."""

import json
import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from time import monotonic, sleep
from typing import Any
from unittest import mock

import pytest
from command_server import PROGRAMS
from launching import ROOT, TINY, finished
from stopped_runs import ACCELERATE_TWO, Job, Trouble
from torch.distributed import TCPStore

from toolkit.distributed import rendezvous
from toolkit.distributed.key_value_store import Endpoint, open_store, read_endpoint
from toolkit.distributed.rendezvous import answer_roll, call_roll
from toolkit.distributed.start_runtime import group_timeout
from toolkit.errors import LoneUserError, UserError

PATIENCE = 1.0
IMPATIENT = ROOT / "tests" / "helpers" / "impatient_recipe.py"


@pytest.fixture
def store() -> TCPStore:
    return TCPStore("localhost", 0, is_master=True, wait_for_workers=False)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """Threads that stand for processes."""
    with ThreadPoolExecutor(4) as threads:
        yield threads


def endpoint(rank: int, size: int, by_agent: bool = False) -> Endpoint:
    return Endpoint("here", 1, rank, size, by_agent)


def come(pool: ThreadPoolExecutor, store: TCPStore, rank: int, size: int, by_agent: bool = False) -> Future[str]:
    """Let a process come to the rendezvous."""
    roll = answer_roll if rank > 0 else call_roll
    return pool.submit(lambda: roll(store.clone(), endpoint(rank, size, by_agent), PATIENCE))


def problem_of(future: Future[Any]) -> str:
    error = future.exception(10)
    assert isinstance(error, UserError), error
    return error.problems[0]


def test_all_come_to_one_rendezvous_whatever_an_earlier_one_left_in_the_store(
    pool: ThreadPoolExecutor, store: TCPStore
) -> None:
    first = [come(pool, store, rank, 3, by_agent=True) for rank in (1, 2, 0)]
    names = {future.result(10) for future in first}
    assert len(names) == 1
    # One machine is gone; the entry of process 2 is still there, and process 1 comes before process 0.
    late = come(pool, store, 1, 2, by_agent=True)
    again = {late.result(10) if rank else come(pool, store, 0, 2, by_agent=True).result(10) for rank in (0, 1)}
    assert len(again) == 1
    assert again != names


def test_who_does_not_come_is_named_to_all_that_came(
    pool: ThreadPoolExecutor, store: TCPStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendezvous, "SECONDS_TO_READ", 0.3)
    store.set("arrived/3", json.dumps({"token": "of a process that died", "size": 4, "host": "elsewhere"}))
    began = monotonic()
    came = [come(pool, store, rank, 4, by_agent=True) for rank in (0, 1)]
    problems = {problem_of(future) for future in came}
    assert len(problems) == 1
    assert "2 of 4 processes did not come to here:1 within 1 s: processes 2, 3;" in problems.pop()
    assert monotonic() - began < 3
    # Process 0 prints it.
    assert not any(isinstance(future.exception(), LoneUserError) for future in came)


def test_a_number_given_twice_and_another_number_of_processes_are_named(
    pool: ThreadPoolExecutor, store: TCPStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendezvous, "SECONDS_TO_READ", 0.3)
    first = come(pool, store, 1, 3)
    while not store.check(["arrived/1"]):
        pass
    assert "two processes have the number 1" in problem_of(come(pool, store, 1, 3))
    host = socket.gethostname()
    leads = come(pool, store, 0, 2)
    expected = f"process 0 was told of 2 processes (WORLD_SIZE), process 1 on {host} of 3;"
    assert expected in problem_of(leads)
    assert expected in problem_of(first)
    # Process 0 knows nothing of this one.
    assert f"told of 2 processes (WORLD_SIZE), this one, process 2 on {host}, of 3" in problem_of(
        come(pool, store, 2, 3)
    )


def test_a_run_that_stays_stopped_dismisses_the_processes_of_other_machines(
    pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendezvous, "SECONDS_TO_READ", 0.3)
    monkeypatch.setattr(rendezvous, "read_endpoint", lambda: Endpoint("localhost", port, 0, 2, False))
    port = free_port()
    leads = pool.submit(lambda: rendezvous.dismiss(75, PATIENCE))
    other = pool.submit(
        lambda: answer_roll(open_store(Endpoint("localhost", port, 1, 2, False), PATIENCE), endpoint(1, 2), PATIENCE)
    )
    for future in (leads, other):
        error = future.exception(10)
        assert isinstance(error, SystemExit)
        assert error.code == 75


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize(
    ("host", "seconds", "problem"),
    [
        ("localhost", 1.0, "reached nobody at localhost:{port} (that is this machine itself) within 0.5 s "
                           "(connection refused)"),
        ("no.such.machine.invalid", 20.0, "the host name no.such.machine.invalid, where the processes are to meet"),
    ],
)  # fmt: skip
def test_an_address_that_does_not_answer_is_reported_in_time(host: str, seconds: float, problem: str) -> None:
    port, began = free_port(), monotonic()
    with pytest.raises(LoneUserError) as caught:
        open_store(Endpoint(host, port, 1, 2, False), 0.5)
    assert problem.format(port=port) in caught.value.problems[0]
    assert 0.4 < monotonic() - began < seconds or "no.such" in host


def test_a_port_in_use_is_reported() -> None:
    with socket.create_server(("", 0)) as server, pytest.raises(UserError, match="is in use on this machine"):
        open_store(Endpoint("localhost", server.getsockname()[1], 0, 2, False), PATIENCE)


def test_what_listens_there_and_is_no_run_ends_a_recipe_with_code_2_and_one_message() -> None:
    with socket.create_server(("localhost", 0)) as server:
        port = str(server.getsockname()[1])
        settings = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": port}
        words = [PROGRAMS / "python", TINY, "--timeout.rendezvous", "1", "--threads", "1"]
        done = finished(words, 60, settings, ROOT / "tests" / "helpers")
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    opening, _, message = done.stderr.strip().partition("\n  - ")
    assert opening == "tiny_recipe can't go on:"
    assert message.startswith(f"something listens at localhost:{port}")
    assert "\n" not in message


def test_what_no_launcher_would_say_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"WORLD_SIZE": "2", "RANK": "x", "MASTER_PORT": "70000", "MASTER_ADDR": "here"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError) as caught:
        read_endpoint()
    assert [problem.split(";")[0] for problem in caught.value.problems] == [
        "the environment variable RANK is x",
        "the environment variable MASTER_PORT is 70000",
    ]
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("MASTER_PORT", "7000")
    with pytest.raises(UserError, match="RANK is 2, and WORLD_SIZE is 2: processes are numbered from 0 to 1"):
        read_endpoint()


@pytest.mark.parametrize(
    ("progress", "on_cpu", "expected"), [(600.0, True, 1920), (600.0, False, 720), (5e3, False, 5120)]
)
def test_a_group_has_more_patience_than_the_watchdog(progress: float, on_cpu: bool, expected: float) -> None:
    # Of NCCL, which this torch may lack, ten minutes.
    with mock.patch("toolkit.distributed.start_runtime.default_pg_nccl_timeout", timedelta(minutes=10)):
        assert group_timeout(progress, on_cpu).total_seconds() == expected
    assert group_timeout(float("inf"), on_cpu).days == 30


def test_a_process_that_is_waited_for_is_judged_by_the_watchdog_and_not_by_the_group(tmp_path: Path) -> None:
    """Process 0 waits in the all-reduce of gradients for longer than its group would by itself."""
    job = Job(tmp_path, ACCELERATE_TWO, "--steps", "6", "--timeout.progress", "100", recipe=IMPATIENT)
    with job.start(Trouble("loss", at=3, rank=1)) as start:
        start.reached(1)
        sleep(6)
        start.go()
        ending = start.end()
    assert ending.code == 0, ending.said
