"""Before the first step the processes compare what they are about to do, and name what differs."""

import json
import os
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from tiny_recipe import Tiny, TinyData, task
from torch.distributed import TCPStore

from toolkit.distributed.key_value_store import Endpoint
from toolkit.distributed.preflight import compare, compare_data, compare_models, compare_starts, ranges, values_at_start
from toolkit.distributed.rendezvous import Rendezvous
from toolkit.errors import SharedUserError


@pytest.fixture
def store() -> TCPStore:
    return TCPStore("localhost", 0, is_master=True, wait_for_workers=False)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """Threads that stand for processes."""
    with ThreadPoolExecutor(4) as threads:
        yield threads


def problems_of(pool: ThreadPoolExecutor, works: list[Callable[[], None]]) -> list[tuple[str, ...] | None]:
    """Return the problems that each process raises; all compare at once."""
    errors = [future.exception(10) for future in [pool.submit(work) for work in works]]
    assert all(error is None or isinstance(error, SharedUserError) for error in errors), errors
    return [error.problems if isinstance(error, SharedUserError) else None for error in errors]


def exchange_over(store: TCPStore, rank: int, size: int) -> Callable[[Any], list[Any]]:
    """Return what shares a value among threads, as `Runtime.gather_all` does among processes."""
    peers, rounds = Rendezvous(Endpoint("here", 1, rank, size, False), store.clone()), iter(range(9))
    return lambda mine: [json.loads(text) for text in peers.exchange(f"round {next(rounds)}", json.dumps(mine))]


def test_settings_and_versions_that_differ_are_named_with_process_machine_and_values(
    pool: ThreadPoolExecutor, store: TCPStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = Tiny(output="runs/x")
    other = replace(config, batch=replace(config.batch, micro=2), threads=3)
    peers = [Rendezvous(Endpoint("here", 1, rank, 3, False), store.clone()) for rank in range(3)]
    problems = problems_of(
        pool, [partial(compare_starts, m, c, True) for m, c in zip(peers, (config, other, config), strict=True)]
    )
    host = socket.gethostname()
    # Threads may differ.
    assert problems == 3 * [(
        f"the processes differ in batch.micro (null in processes 0, 2 on {host}, 2 in process 1 on {host}); start the "
        "same command on each machine",
    )]  # fmt: skip
    assert os.environ.get("ACCELERATE_MIXED_PRECISION") is None


def test_every_file_and_version_that_numbers_depend_on_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    compared = {name: value for name, (value, _) in values_at_start(Tiny(), True).items()}
    assert compared["the version of torch"] in torch.__version__
    assert compared["the launch configuration's ACCELERATE_MIXED_PRECISION"] == "bf16"
    for name in ("the file toolkit/loop.py", "the file toolkit/tasks/sft/data.py", "the recipe's file tiny_recipe.py"):
        assert len(compared[name]) == 12
    assert "optim.lr" in compared
    assert "threads" not in compared


def test_data_and_models_that_differ_are_named(pool: ThreadPoolExecutor, store: TCPStore) -> None:
    tasks = [task(Tiny(data=TinyData(samples=samples))) for samples in (45, 45, 44)]
    problems = problems_of(
        pool,
        [partial(compare_data, exchange_over(store, r, 3), t, {}) for r, t in enumerate(tasks)],
    )
    assert problems[0] is not None
    assert "differ in the number of training samples (45 in processes 0-1" in problems[0][0]
    assert problems == 3 * [problems[0]]

    # Of the processes of a machine one has read the data.
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    digests: list[dict[str, str | None]] = [{"train": "a"}, {}, {"train": "b"}]
    problems = problems_of(
        pool,
        [partial(compare_data, exchange_over(store, r, 3), tasks[0], d) for r, d in enumerate(digests)],
    )
    assert problems[0] is not None
    assert "the content of the training data (a in process 0" in problems[0][0]
    assert problems == 3 * [problems[0]]

    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    models = [torch.nn.Linear(4, 3), torch.nn.Linear(4, 2, bias=False)]
    problems = problems_of(
        pool,
        [partial(compare_models, exchange_over(store, r, 2), m) for r, m in enumerate(models)],
    )
    assert problems[0] is not None
    assert "the model's weight (float32 3x4, trained in process 0" in problems[0][0]
    assert "float32 2x4, trained in process 1" in problems[0][0]
    assert "the model's bias (float32 3, trained in process 0" in problems[0][0]

    # Of one shape, with one other number among ten thousand.
    models = [torch.nn.Linear(100, 100) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    for values, different in ((True, False), (True, True), (False, True)):
        store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
        models[1].weight.data[0, 0] += float(different)
        problems = problems_of(
            pool,
            [partial(compare_models, exchange_over(store, r, 2), m, values) for r, m in enumerate(models)],
        )
        assert [problem is not None for problem in problems] == 2 * [values and different]
        assert problems[0] is None or "the values of the model's weight (" in problems[0][0]


def test_what_is_equal_is_compared_by_one_hash(pool: ThreadPoolExecutor) -> None:
    sent: list[Any] = []

    def exchange(mine: Any) -> list[Any]:
        sent.append(mine)
        return [mine, None, mine]

    compare(exchange, {"a": (1, "do it")})
    assert [len(value) for value in sent] == [32]
    assert ranges([5, 0, 1, 2, 7]) == "0-2, 5, 7"
