"""Which accelerators are taken, and how many threads compute next to one, with a torch that claims to have one."""

import importlib.util
import signal
from collections.abc import Iterator
from types import ModuleType

import pytest
import torch
from tiny_recipe import Tiny

from toolkit import signals as stopping
from toolkit.distributed import start_runtime as start
from toolkit.distributed.start_runtime import start_runtime
from toolkit.errors import UserError

SHARDED = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2", "RANK": "0", "WORLD_SIZE": "1"}
OFFLOADED = {**SHARDED, "FSDP_OFFLOAD_PARAMS": "true"}
CORES = 6


class Started(Exception):  # noqa: N818 - what was waited for is no error
    """The start came as far as the rendezvous."""


@pytest.fixture(autouse=True)
def threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One thread, as a launcher leaves it; as many as before after the test."""
    before = torch.get_num_threads()
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def threads_beside(kind: str, asked: int | None, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> int:
    """Return how many threads torch has in a process that starts where it finds an accelerator of this kind."""

    def join_rendezvous(patience: float) -> None:
        raise Started

    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device(kind))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 1)
    monkeypatch.setattr(start, "usable_cores", lambda: CORES)
    monkeypatch.setattr(start, "join_rendezvous", join_rendezvous)
    with pytest.raises(Started):
        start_runtime(Tiny(threads=asked))
    return torch.get_num_threads()


@pytest.mark.parametrize(
    ("environment", "asked", "expected"),
    [
        # A GPU computes everything: what the launcher says stays.
        ({}, None, 1),
        (SHARDED, None, 1),
        # The optimizer steps on the host.
        (OFFLOADED, None, CORES),
        # What is asked for is never passed over.
        ({}, 3, 3),
        (OFFLOADED, 3, 3),
    ],
)
def test_threads_are_those_that_compute(
    environment: dict[str, str], asked: int | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert threads_beside("cuda", asked, environment, monkeypatch) == expected


def test_an_accelerator_that_nothing_was_tried_on_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"an accelerator of the type mps.*ACCELERATE_USE_CPU=true"):
        threads_beside("mps", None, {}, monkeypatch)
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    assert threads_beside("mps", None, {}, monkeypatch) == CORES


def test_a_system_without_real_time_signals_can_load_what_takes_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(signal, "SIGRTMIN")
    spec = importlib.util.spec_from_file_location("stopping_elsewhere", str(stopping.__file__))
    assert spec is not None
    assert spec.loader is not None
    module = ModuleType(spec.name)
    spec.loader.exec_module(module)
    assert module.LAUNCHER_DIED not in module.REQUESTS
