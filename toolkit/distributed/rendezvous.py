"""The rendezvous: all processes of a run find each other within a bounded time, or each learns who is missing.

torch would wait half an hour for a machine that was never started, and then show a stack. Its `monitored_barrier` names
who is missing, but only within a process group, and without all processes there is none. (A group that connects lazily
fails with the name of a key, in process 0 alone.) So process 0 calls the roll in the store, before any group is made.

A store may be older than the processes: the agent of `torchrun` keeps one for all of its restarts, with the entries of
processes that died. (torch 2.13 numbers neither stores nor keys by attempt, and a machine that joins later counts other
attempts.) So each rendezvous has a name of its own, and each process a token that only the living one knows:

    process r    arrived/<r> = its token, its machine, WORLD_SIZE as it knows it
    process 0    welcome/<token> = the name of this rendezvous
    process r    <name>/here/<r>, which a process that died can't write
    process 0    <name>/verdict, once all are here or one is missing: go on, why it fails, or an exit code

All look into the store again and again: `Store.wait` would shut out Ctrl-C, and prints warnings of its own.
"""

import json
import os
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from time import monotonic, sleep
from typing import Any, NoReturn
from uuid import uuid4

import torch.distributed
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]

from toolkit.distributed.key_value_store import Endpoint, first_line, open_store, read_endpoint, refuse
from toolkit.distributed.launch import SAME_COMMAND
from toolkit.errors import SharedUserError

INTERVAL = 0.02
# The others read the verdict in the store of process 0, which goes with it.
SECONDS_TO_READ = 2.0
NOBODY = json.dumps({"token": "", "size": 0, "host": ""})


@dataclass(frozen=True)
class Rendezvous:
    """All processes of the run, once they have found each other."""

    endpoint: Endpoint
    store: Store

    def exchange(self, kind: str, mine: str) -> list[str]:
        """Return the text of each process, by rank; all processes call it together, with a `kind` not used before."""
        keys = [f"{kind}/{rank}" for rank in range(self.endpoint.size)]
        self.store.set(keys[self.endpoint.rank], mine)
        return [bytes(text).decode() for text in self.store.multi_get(keys)]


def join_rendezvous(patience: float) -> Rendezvous | None:
    """Return the rendezvous of all processes of this run; None where this one is alone.

    `patience` is how many seconds to wait without any news.

    Raises:
        UserError: they do not come together in time; it says who is missing, or what does not answer.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return None
    endpoint = read_endpoint()
    store = open_store(endpoint, patience)
    try:
        name = (call_roll if endpoint.rank == 0 else answer_roll)(store, endpoint, patience)
        own = PrefixStore(name, store)
        own.set_timeout(timedelta(seconds=patience))
        check_links(own, endpoint, patience)
    except (RuntimeError, OSError) as error:
        problem = f"the processes of this run lost each other while they met at {endpoint}: {first_line(error)}"
        refuse(problem, endpoint)
    return Rendezvous(endpoint, own)


def dismiss(code: int, patience: float) -> NoReturn:
    """End all processes of the run with an exit code, from process 0, which knows that there is nothing to do.

    Those on other machines can't know, and would wait for it.
    """
    endpoint = read_endpoint()
    # Named, so that it is still there while the others read.
    store = open_store(endpoint, patience)
    call_roll(store, endpoint, patience, {"code": code})
    sleep(SECONDS_TO_READ)
    sys.exit(code)


def call_roll(store: Store, endpoint: Endpoint, patience: float, verdict: Mapping[str, Any] | None = None) -> str:
    """Wait in process 0 until all others have come, give them the verdict, and return the name of the rendezvous."""
    name = uuid4().hex
    welcomed = dict.fromkeys(range(1, endpoint.size), "")
    for rank in welcomed:
        # `multi_get` waits for a key that is not there.
        store.compare_set(f"arrived/{rank}", "", NOBODY)
    store.set("size", json.dumps(endpoint.size))
    here: dict[int, dict[str, Any]] = {}
    until = monotonic() + patience
    while missing := [rank for rank in welcomed if rank not in here]:
        if monotonic() > until:
            fail(store, name, who_is_missing(missing, here, endpoint, patience), endpoint)
        for rank, text in zip(missing, store.multi_get([f"arrived/{rank}" for rank in missing]), strict=True):
            token = json.loads(text)["token"]
            if token not in ("", welcomed[rank]):
                store.set(f"welcome/{token}", name)
                welcomed[rank] = token
            if welcomed[rank] and store.check([f"{name}/here/{rank}"]):
                here[rank] = json.loads(store.get(f"{name}/here/{rank}"))
                until = monotonic() + patience
        wrong = {rank: other for rank, other in here.items() if other["size"] != endpoint.size}
        if wrong:
            sizes = ", ".join(f"process {rank} on {other['host']} of {other['size']}" for rank, other in wrong.items())
            problem = f"process 0 was told of {endpoint.size} processes (WORLD_SIZE), {sizes}; {SAME_COMMAND}"
            fail(store, name, problem, endpoint)
        sleep(INTERVAL if len(here) < len(welcomed) else 0)
    store.set(f"{name}/verdict", json.dumps(verdict or {}))
    return name


def fail(store: Store, name: str, problem: str, endpoint: Endpoint) -> NoReturn:
    """End the rendezvous in process 0, and let all that have come know why."""
    store.set(f"{name}/verdict", json.dumps({"problem": problem}))
    sleep(SECONDS_TO_READ)
    refuse(problem, endpoint)


def who_is_missing(ranks: list[int], here: Mapping[int, Mapping[str, Any]], endpoint: Endpoint, patience: float) -> str:
    """Return the message that names the processes which did not come."""
    machines = sorted({socket.gethostname(), *(other["host"] for other in here.values())})
    return (
        f"{len(ranks)} of {endpoint.size} processes did not come to {endpoint} within {patience:g} s: "
        f"{numbered(ranks)}; those that came are on {', '.join(machines)}. Start the same command on each other "
        "machine with its own number (--machine_rank, --node-rank), see there why it ended, or check its firewall; "
        "--timeout.rendezvous waits longer"
    )


def numbered(ranks: list[int]) -> str:
    """Return the numbers of processes in words, the first ten of them."""
    more = f" and {len(ranks) - 10} more" if len(ranks) > 10 else ""
    return ("process " if len(ranks) == 1 else "processes ") + ", ".join(map(str, ranks[:10])) + more


def answer_roll(store: Store, endpoint: Endpoint, patience: float) -> str:
    """Come to the rendezvous that process 0 leads, and return its name once all have come.

    Raises:
        UserError: not all came, or this process has the number of another one.
        SystemExit: process 0 ends the run.
    """
    host, token = socket.gethostname(), uuid4().hex
    mine = json.dumps({"token": token, "size": endpoint.size, "host": host})
    previous = json.loads(store.compare_set(f"arrived/{endpoint.rank}", "", mine))
    if previous["token"] != token:
        if not endpoint.by_agent and previous["token"]:
            # The store is as old as process 0: nobody can have been here before.
            refuse(
                f"two processes have the number {endpoint.rank} (RANK, which follows from --machine_rank or "
                f"--node-rank): one on {previous['host']} and this one on {host}; give each machine a number of its "
                "own",
                endpoint,
            )
        store.set(f"arrived/{endpoint.rank}", mine)
    if not is_soon(lambda: store.check([f"welcome/{token}"]), patience):
        size = json.loads(store.get("size")) if store.check(["size"]) else endpoint.size
        if size != endpoint.size:
            refuse(
                f"process 0 was told of {size} processes (WORLD_SIZE), this one, process {endpoint.rank} on {host}, of "
                f"{endpoint.size}; {SAME_COMMAND}",
                endpoint,
            )
        refuse(
            f"process 0 did not come to {endpoint} within {patience:g} s; see on its machine why it ended, or wait "
            "longer with --timeout.rendezvous",
            endpoint,
        )
    name = bytes(store.get(f"welcome/{token}")).decode()
    store.set(f"{name}/here/{endpoint.rank}", mine)
    arrived = store.add(f"{name}/arrived", 1)
    while not store.check([f"{name}/verdict"]):
        # Each process that comes lets process 0 wait for as long again.
        if not is_soon(
            lambda: store.check([f"{name}/verdict"]) or store.add(f"{name}/arrived", 0) > arrived,  # noqa: B023
            patience + SECONDS_TO_READ,
        ):
            refuse(f"process 0 left the rendezvous at {endpoint}; see on its machine why", endpoint)
        arrived = store.add(f"{name}/arrived", 0)
    match json.loads(store.get(f"{name}/verdict")):
        case {"problem": problem}:
            raise SharedUserError(problem)
        case {"code": code}:
            sys.exit(code)
    return name


def is_soon(condition: Callable[[], bool], seconds: float) -> bool:
    """Wait until a condition holds, but not for longer than so many seconds; return whether it does."""
    until = monotonic() + seconds
    while not condition():
        if monotonic() > until:
            return False
        sleep(INTERVAL)
    return True


def check_links(store: Store, endpoint: Endpoint, patience: float) -> None:
    """Make sure that every process reaches every other one directly, as the process groups need.

    Those would wait for half an hour, and the control group for ever.
    """
    if not torch.distributed.is_gloo_available():
        return
    try:
        group = torch.distributed.ProcessGroupGloo(
            PrefixStore("links", store), endpoint.rank, endpoint.size, timedelta(seconds=patience)
        )
    except RuntimeError as error:
        device = os.environ.get("GLOO_SOCKET_IFNAME")
        used = f"GLOO_SOCKET_IFNAME names the network device {device}" if device else "GLOO_SOCKET_IFNAME is not set"
        refuse(
            f"the processes met at {endpoint}, but process {endpoint.rank} on {socket.gethostname()} and the others do "
            f"not reach each other directly ({first_line(error)}): let all TCP ports between the machines through, and "
            f"name the network device that joins them ({used})",
            endpoint,
        )
    # Nobody leaves while another one still connects.
    store.set(f"linked/{endpoint.rank}", "")
    store.wait([f"linked/{rank}" for rank in range(endpoint.size)])
    del group
