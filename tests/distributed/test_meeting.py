"""Processes find each other within a bounded time, or say who is missing; and compare what they are about to do."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from time import monotonic, sleep
from typing import Any
from unittest import mock

import pytest
import torch
from launching import ROOT, TINY, clean_environment
from stopped_runs import ACCELERATE_TWO, Job, Trouble
from tiny_recipe import Tiny
from torch.distributed import TCPStore

from toolkit.distributed import rendezvous as meeting
from toolkit.distributed.outcome import Failure, raise_shared
from toolkit.distributed.preflight import compare, compare_data, compare_models, compare_starts, ranges
from toolkit.distributed.rendezvous import (
    Meeting,
    Place,
    be_welcomed,
    group_patience,
    open_store,
    read_place,
    welcome_all,
)
from toolkit.errors import LoneUserError, SharedUserError, UserError

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


def place(rank: int, size: int, by_agent: bool = False) -> Place:
    return Place("here", 1, rank, size, by_agent)


def come(pool: ThreadPoolExecutor, store: TCPStore, rank: int, size: int, by_agent: bool = False) -> Future[str]:
    """Let a process come to the meeting; it finishes what process 0 leads, as `meet` does."""

    def work() -> str:
        own = store.clone()
        if rank > 0:
            return be_welcomed(own, place(rank, size, by_agent), PATIENCE)
        name = welcome_all(own, place(0, size, by_agent), PATIENCE)
        own.set(f"{name}/complete", "all")
        return name

    return pool.submit(work)


def problem_of(future: Future[Any]) -> str:
    error = future.exception(10)
    assert isinstance(error, UserError), error
    return error.problems[0]


def test_all_come_to_one_meeting_whatever_an_earlier_one_left_in_the_store(
    pool: ThreadPoolExecutor, store: TCPStore
) -> None:
    first = [come(pool, store, rank, 3, by_agent=True) for rank in (1, 2, 0)]
    names = {future.result(10) for future in first}
    assert len(names) == 1
    # One machine is gone; what process 2 said still stands, and process 1 comes before process 0.
    late = come(pool, store, 1, 2, by_agent=True)
    again = {late.result(10) if rank else come(pool, store, 0, 2, by_agent=True).result(10) for rank in (0, 1)}
    assert len(again) == 1
    assert again != names


def test_who_does_not_come_is_named_to_all_that_came(
    pool: ThreadPoolExecutor, store: TCPStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meeting, "SECONDS_TO_HEAR", 0.3)
    store.set("arrived/3", json.dumps({"word": "of a process that died", "size": 4, "host": "elsewhere"}))
    began = monotonic()
    came = [come(pool, store, rank, 4, by_agent=True) for rank in (0, 1)]
    said = {problem_of(future) for future in came}
    assert len(said) == 1
    assert "2 of 4 processes did not come to here:1 within 1 s: processes 2, 3;" in said.pop()
    assert monotonic() - began < 3
    # Process 0 speaks.
    assert not any(isinstance(future.exception(), LoneUserError) for future in came)


def test_a_number_given_twice_and_another_number_of_processes_are_named(
    pool: ThreadPoolExecutor, store: TCPStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meeting, "SECONDS_TO_HEAR", 0.3)
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
    monkeypatch.setattr(meeting, "SECONDS_TO_HEAR", 0.3)
    monkeypatch.setattr(meeting, "read_place", lambda: Place("localhost", port, 0, 2, False))
    port = free_port()
    leads = pool.submit(lambda: meeting.dismiss(75, PATIENCE))
    other = pool.submit(
        lambda: be_welcomed(open_store(Place("localhost", port, 1, 2, False), PATIENCE), place(1, 2), PATIENCE)
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
    ("host", "seconds", "said"),
    [
        ("localhost", 1.0, "reached nobody at localhost:{port} (that is this machine itself) within 0.5 s (connection refused)"),
        ("no.such.machine.invalid", 20.0, "the host name no.such.machine.invalid, where the processes are to meet"),
    ],
)  # fmt: skip
def test_an_address_that_does_not_answer_is_told_in_time(host: str, seconds: float, said: str) -> None:
    port, began = free_port(), monotonic()
    with pytest.raises(LoneUserError) as caught:
        open_store(Place(host, port, 1, 2, False), 0.5)
    assert said.format(port=port) in caught.value.problems[0]
    assert 0.4 < monotonic() - began < seconds or "no.such" in host


def test_a_port_in_use_is_told() -> None:
    with socket.create_server(("", 0)) as server, pytest.raises(UserError, match="is in use on this machine"):
        open_store(Place("localhost", server.getsockname()[1], 0, 2, False), PATIENCE)


def test_what_listens_there_and_is_no_run_ends_a_recipe_with_code_2_and_one_message() -> None:
    with socket.create_server(("localhost", 0)) as server:
        port = str(server.getsockname()[1])
        settings = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": port}
        done = subprocess.run(
            [sys.executable, str(TINY), "--timeout.rendezvous", "1", "--threads", "1"],
            env=clean_environment(**settings), capture_output=True, text=True, timeout=60, check=False, cwd=ROOT / "tests" / "helpers",
        )  # fmt: skip
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
        read_place()
    assert [problem.split(";")[0] for problem in caught.value.problems] == [
        "the environment variable RANK is x",
        "the environment variable MASTER_PORT is 70000",
    ]
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("MASTER_PORT", "7000")
    with pytest.raises(UserError, match="RANK is 2, and WORLD_SIZE is 2: processes are numbered from 0 to 1"):
        read_place()


def problems_of(pool: ThreadPoolExecutor, works: list[Callable[[], None]]) -> list[tuple[str, ...] | None]:
    """Return what each process is told, all of which compare at once."""
    errors = [future.exception(10) for future in [pool.submit(work) for work in works]]
    assert all(error is None or isinstance(error, SharedUserError) for error in errors), errors
    return [error.problems if isinstance(error, SharedUserError) else None for error in errors]


def exchange_over(store: TCPStore, rank: int, size: int) -> Callable[[Any], list[Any]]:
    """Return what shares a value among threads, as `Runtime.gather_all` does among processes."""
    met, rounds = Meeting(place(rank, size), store.clone()), iter(range(9))
    return lambda mine: [json.loads(text) for text in met.exchange(f"round {next(rounds)}", json.dumps(mine))]


def test_settings_and_versions_that_differ_are_named_with_process_machine_and_values(
    pool: ThreadPoolExecutor, store: TCPStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = Tiny(output="runs/x")
    other = replace(config, batch=replace(config.batch, micro=2), threads=3)
    met = [Meeting(place(rank, 3), store.clone()) for rank in range(3)]
    told = problems_of(
        pool, [lambda m=m, c=c: compare_starts(m, c, True) for m, c in zip(met, (config, other, config), strict=True)]
    )
    host = socket.gethostname()
    # Threads may differ.
    assert told == 3 * [(
        f"the processes differ in batch.micro (null in processes 0, 2 on {host}, 2 in process 1 on {host}); start the same command on "
        "each machine",
    )]  # fmt: skip
    assert os.environ.get("ACCELERATE_MIXED_PRECISION") is None


def test_every_file_and_version_that_numbers_depend_on_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    from toolkit.distributed.preflight import start_facts

    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    summary = {name: value for name, (value, _) in start_facts(Tiny(), True).items()}
    assert summary["the version of torch"] in torch.__version__
    assert summary["the launch configuration's ACCELERATE_MIXED_PRECISION"] == "bf16"
    for name in ("the file toolkit/loop.py", "the file toolkit/tasks/sft/data.py", "the recipe's file tiny_recipe.py"):
        assert len(summary[name]) == 12
    assert "optim.lr" in summary
    assert "threads" not in summary


def test_data_and_models_that_differ_are_named(pool: ThreadPoolExecutor, store: TCPStore) -> None:
    from tiny_recipe import TinyData, task

    tasks = [task(Tiny(data=TinyData(samples=samples))) for samples in (45, 45, 44)]
    told = problems_of(
        pool,
        [lambda r=r, t=t: compare_data(exchange_over(store, r, 3), t, {}) for r, t in enumerate(tasks)],  # type: ignore[misc]
    )
    assert told[0] is not None
    assert "differ in the number of training samples (45 in processes 0-1" in told[0][0]
    assert told == 3 * [told[0]]

    # Of the processes of a machine one has read the data.
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    digests: list[dict[str, str | None]] = [{"train": "a"}, {}, {"train": "b"}]
    told = problems_of(
        pool,
        [lambda r=r, d=d: compare_data(exchange_over(store, r, 3), tasks[0], d) for r, d in enumerate(digests)],  # type: ignore[misc]
    )
    assert told[0] is not None
    assert "the content of the training data (a in process 0" in told[0][0]
    assert told == 3 * [told[0]]

    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    models = [torch.nn.Linear(4, 3), torch.nn.Linear(4, 2, bias=False)]
    told = problems_of(
        pool,
        [lambda r=r, m=m: compare_models(exchange_over(store, r, 2), m) for r, m in enumerate(models)],  # type: ignore[misc]
    )
    assert told[0] is not None
    assert "the model's weight (float32 3x4, trained in process 0" in told[0][0]
    assert "float32 2x4, trained in process 1" in told[0][0]
    assert "the model's bias (float32 3, trained in process 0" in told[0][0]

    # Of one shape, with one other number among ten thousand.
    models = [torch.nn.Linear(100, 100) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    for values, different in ((True, False), (True, True), (False, True)):
        store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
        models[1].weight.data[0, 0] += float(different)
        told = problems_of(
            pool,
            [
                lambda r=r, m=m, s=store, v=values: compare_models(exchange_over(s, r, 2), m, v)  # type: ignore[misc]
                for r, m in enumerate(models)
            ],
        )
        assert [problem is not None for problem in told] == 2 * [values and different]
        assert told[0] is None or "the values of the model's weight (" in told[0][0]


def test_what_is_equal_is_compared_by_one_hash(pool: ThreadPoolExecutor) -> None:
    sent: list[Any] = []

    def exchange(mine: Any) -> list[Any]:
        sent.append(mine)
        return [mine, None, mine]

    compare(exchange, {"a": (1, "do it")})
    assert [len(value) for value in sent] == [32]
    assert ranges([5, 0, 1, 2, 7]) == "0-2, 5, 7"


def test_an_error_of_another_machine_is_told_with_its_name() -> None:
    lost = ("there is no such file",)
    for failures, told in (
        (
            [None, Failure(lost, True, "b"), Failure(lost, True)],
            (f"process 1 on b: {lost[0]}", f"process 2: {lost[0]}"),
        ),
        ([Failure(lost, True), Failure(lost, True, "b")], lost),
    ):
        with pytest.raises(SharedUserError) as error:
            raise_shared(failures)
        assert error.value.problems == told


@pytest.mark.parametrize(
    ("progress", "on_cpu", "expected"), [(600.0, True, 1920), (600.0, False, 720), (5e3, False, 5120)]
)
def test_a_group_has_more_patience_than_the_watch(progress: float, on_cpu: bool, expected: float) -> None:
    # Of NCCL, which this torch may lack, ten minutes.
    with mock.patch("toolkit.distributed.rendezvous.default_pg_nccl_timeout", timedelta(minutes=10)):
        assert group_patience(progress, on_cpu).total_seconds() == expected
    assert group_patience(float("inf"), on_cpu).days == 30


def test_a_process_that_is_waited_for_is_judged_by_the_watch_and_not_by_the_group(tmp_path: Path) -> None:
    """Process 0 waits in the all-reduce of gradients for longer than its group would by itself."""
    job = Job(tmp_path, ACCELERATE_TWO, "--steps", "6", "--timeout.progress", "100", recipe=IMPATIENT)
    with job.start(Trouble("loss", at=3, rank=1)) as start:
        start.reached(1)
        sleep(6)
        start.go()
        ending = start.end()
    assert ending.code == 0, ending.said
