"""How the processes of a run find each other, within a time that is bounded, before the Accelerator is built.

Left to themselves they wait for half an hour for a machine that was never started, for an address with a typing error or for a
firewall, and then show a stack. Here each makes its first contact, says that it has come, and is told when all have.

A store may be older than the processes that meet in it: the agent of `torchrun` keeps one for all of its restarts, in which the
words of processes that died still stand (torch 2.13 numbers neither stores nor keys by attempt, a machine that joins later counts
other attempts than the rest). So process 0 gives each meeting a name of its own, and greets each process by a word that only the
living one knows.
"""

import atexit
import json
import os
import re
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from time import monotonic, sleep
from typing import Any, NoReturn, TypeVar
from uuid import uuid4

import torch.distributed
from accelerate.utils import InitProcessGroupKwargs
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]
from torch.distributed.constants import default_pg_nccl_timeout, default_pg_timeout
from torch.distributed.rendezvous import register_rendezvous_handler

from toolkit.errors import USER_CAN_FIX, LoneUserError, SharedUserError, UserError

Result = TypeVar("Result")

SCHEME = "meeting"
INTERVAL = 0.02
# Process 0 tells the others why the meeting failed; its store goes with it.
SECONDS_TO_HEAR = 2.0
# By so much the groups' time-out is longer: a process may begin to hang a while after the others began to wait.
SECONDS_FOR_THE_WATCH = 120.0
LONGEST = 30 * 86400.0
NOBODY = json.dumps({"word": "", "size": 0, "host": ""})
REMEDY = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"
WHERE = "MASTER_ADDR and MASTER_PORT; --main_process_ip and --main_process_port, or --rdzv-endpoint"


@dataclass(frozen=True)
class Place:
    """Where the processes of a run meet, and which of them this one is."""

    host: str
    port: int
    rank: int
    size: int
    by_agent: bool
    """Whether the launcher keeps the store; else process 0 does."""

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True)
class Meeting:
    """All processes of the run, once they have found each other."""

    place: Place
    store: Store

    def exchange(self, kind: str, mine: str) -> list[str]:
        """Return what each process says of something, by rank; all processes call it together."""
        keys = [f"{kind}/{rank}" for rank in range(self.place.size)]
        self.store.set(keys[self.place.rank], mine)
        return [bytes(said).decode() for said in self.store.multi_get(keys)]


def meet(patience: float) -> Meeting | None:
    """Return the meeting of all processes of this run; None where this one is alone.

    `patience` is how many seconds to wait without any news.

    Raises:
        UserError: they do not come together in time; it says who is missing, or what does not answer.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return None
    place = read_place()
    store = open_store(place, patience)
    try:
        if place.rank == 0:
            name = welcome_all(store, place, patience)
            store.set(f"{name}/complete", "all")
        else:
            name = be_welcomed(store, place, patience)
        met = PrefixStore(name, store)
        met.set_timeout(timedelta(seconds=patience))
        prove_links(met, place, patience)
    except (RuntimeError, OSError) as error:
        refuse(f"the processes of this run lost each other while they met at {place}: {said(error)}", place)
    return Meeting(place, met)


def dismiss(code: int, patience: float) -> NoReturn:
    """End all processes of the run with an exit code, from process 0, which knows that there is nothing to do.

    Those on other machines can't know, and would wait for it.
    """
    place = read_place()
    store = open_store(place, patience)
    name = welcome_all(store, place, patience)
    store.set(f"{name}/verdict", json.dumps({"code": code}))
    sleep(SECONDS_TO_HEAR)
    sys.exit(code)


def read_place() -> Place:
    """Return what the launcher says of this process.

    Raises:
        UserError: it makes no sense.
    """
    problems, numbers = [], {}
    for name, largest in (("WORLD_SIZE", 2**31), ("RANK", 2**31), ("MASTER_PORT", 2**16 - 1)):
        given = os.environ.get(name, "")
        if given.isdigit() and int(given) <= largest:
            numbers[name] = int(given)
        else:
            limit = f" up to {largest}" if name == "MASTER_PORT" else ""
            problems.append(
                f"the environment variable {name} is {given or 'not set'}; it must be a whole number{limit}. A launcher sets it: "
                "start the processes with `accelerate launch` or `torchrun`"
            )
    if not problems and numbers["RANK"] >= numbers["WORLD_SIZE"]:
        problems.append(
            f"the environment variable RANK is {numbers['RANK']}, and WORLD_SIZE is {numbers['WORLD_SIZE']}: processes are "
            f"numbered from 0 to {numbers['WORLD_SIZE'] - 1}"
        )
    if problems:
        raise UserError(*problems)
    by_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return Place(os.environ["MASTER_ADDR"], numbers["MASTER_PORT"], numbers["RANK"], numbers["WORLD_SIZE"], by_agent)


def open_store(place: Place, patience: float) -> Store:
    """Return the store in which the processes meet: this process keeps it, or reaches the one that does."""
    seconds = timedelta(seconds=patience)
    if place.rank == 0 and not place.by_agent:
        try:
            # By its own loopback address: whether the others reach it by the one they were given, they find out.
            return TCPStore("localhost", place.port, is_master=True, wait_for_workers=False, timeout=seconds)
        except RuntimeError as error:
            if "EADDRINUSE" in str(error):
                refuse(
                    f"port {place.port}, where the processes are to meet, is in use on this machine ({socket.gethostname()}): another "
                    "run or program listens there; give another port (MASTER_PORT), the same to all processes",
                    place,
                )
            refuse(f"process 0 can't listen at port {place.port} of this machine: {said(error)}", place)
    reach(place, patience)
    try:
        # Before what accepts a connection and then does not speak its language, the store's own time-out does not help.
        return within(
            patience,
            lambda: TCPStore(place.host, place.port, is_master=False, wait_for_workers=False, timeout=seconds),
        )
    except (TimeoutError, RuntimeError):
        refuse(
            f"something listens at {place}, where the processes are to meet ({WHERE}), but it is not process 0 of a run; give "
            "another port, the same to all processes",
            place,
        )


def reach(place: Place, patience: float) -> None:
    """Wait until something listens where the processes meet."""
    until, reason = monotonic() + patience, "no answer"
    while (left := until - monotonic()) > 0:
        try:
            socket.create_connection((place.host, place.port), timeout=left).close()
        except socket.gaierror as error:
            if error.errno != socket.EAI_AGAIN:
                refuse(
                    f"the host name {place.host}, where the processes are to meet ({WHERE}), is not known on this machine "
                    f"({socket.gethostname()}); give the IP address of process 0's machine",
                    place,
                )
            reason = "the name service does not answer"
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
        else:
            return
        sleep(min(0.2, max(0.0, until - monotonic())))
    if place.by_agent and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0":
        # torch 2.13: an agent that was not the first among them keeps the address of the first for good.
        refuse(
            f"process {place.rank} of {place.size} on {socket.gethostname()} was started again, but the agent sent it to {place}, where "
            f"nobody is ({reason}): the machine that has died, perhaps; start torchrun with {REMEDY} in the environment of each machine",
            place,
        )
    own = " (that is this machine itself)" if place.host in ("localhost", "127.0.0.1", "::1") else ""
    refuse(
        f"process {place.rank} of {place.size} on {socket.gethostname()} reached nobody at {place}{own} within {patience:g} s "
        f"({reason}), where the processes are to meet ({WHERE}): start the same command on the machine of process 0 too, check the "
        "address, and open the port there; --timeout.rendezvous waits longer",
        place,
    )


def welcome_all(store: Store, place: Place, patience: float) -> str:
    """Greet all other processes, in process 0, and return the name of the meeting when all have come."""
    name = uuid4().hex
    waiting = dict.fromkeys(range(1, place.size), "")
    for rank in waiting:
        # What is there is never waited for.
        store.compare_set(arrival(rank), "", NOBODY)
    store.set("size", json.dumps(place.size))
    here: dict[int, dict[str, Any]] = {}
    until = monotonic() + patience
    while waiting:
        for rank, text in zip(list(waiting), store.multi_get([arrival(rank) for rank in waiting]), strict=True):
            word = json.loads(text)["word"]
            if word not in ("", waiting[rank]):
                store.set(f"welcome/{word}", name)
                waiting[rank] = word
            if waiting[rank] and store.check([f"{name}/here/{rank}"]):
                here[rank] = json.loads(store.get(f"{name}/here/{rank}"))
                del waiting[rank]
                until = monotonic() + patience
        wrong = {rank: other["size"] for rank, other in here.items() if other["size"] != place.size}
        if wrong:
            told = ", ".join(f"process {rank} on {here[rank]['host']} of {size}" for rank, size in wrong.items())
            end_meeting(
                store, name, f"process 0 was told of {place.size} processes (WORLD_SIZE), {told}; {SAME}", place
            )
        if monotonic() > until:
            end_meeting(store, name, missing(sorted(waiting), here, place, patience), place)
        sleep(INTERVAL if waiting else 0)
    return name


SAME = "start the same command, with the same number of machines and processes, on each machine"


def missing(ranks: list[int], here: dict[int, dict[str, Any]], place: Place, patience: float) -> str:
    """Say which processes did not come."""
    machines = sorted({socket.gethostname(), *(other["host"] for other in here.values())})
    return (
        f"{len(ranks)} of {place.size} processes did not come to {place} within {patience:g} s: {numbered(ranks)}; those that "
        f"came are on {', '.join(machines)}. Start the same command on each other machine with its own number (--machine_rank, "
        "--node-rank), see there why it ended, or check its firewall; --timeout.rendezvous waits longer"
    )


def numbered(ranks: list[int]) -> str:
    """Return the numbers of processes in words, the first ten of them."""
    more = f" and {len(ranks) - 10} more" if len(ranks) > 10 else ""
    return ("process " if len(ranks) == 1 else "processes ") + ", ".join(map(str, ranks[:10])) + more


def end_meeting(store: Store, name: str, text: str, place: Place) -> NoReturn:
    """Let all that have come know why the meeting fails, and end it."""
    store.set(f"{name}/verdict", json.dumps({"text": text}))
    sleep(SECONDS_TO_HEAR)
    refuse(text, place)


def be_welcomed(store: Store, place: Place, patience: float) -> str:
    """Come to the meeting that process 0 leads, and return its name when all have come."""
    word, key = uuid4().hex, arrival(place.rank)
    mine = {"word": word, "size": place.size, "host": socket.gethostname()}
    previous = json.loads(store.compare_set(key, "", json.dumps(mine)))
    if previous["word"] != word:
        if not place.by_agent and previous["word"]:
            # The store is as old as process 0: nobody can have been here before.
            refuse(
                f"two processes have the number {place.rank} (RANK, which follows from --machine_rank or --node-rank): one on "
                f"{previous['host']} and this one on {socket.gethostname()}; give each machine a number of its own",
                place,
            )
        store.set(key, json.dumps(mine))
    until = monotonic() + patience
    while not store.check([f"welcome/{word}"]):
        if monotonic() > until:
            size = json.loads(store.get("size")) if store.check(["size"]) else place.size
            if size != place.size:
                refuse(
                    f"process 0 was told of {size} processes (WORLD_SIZE), this one, process {place.rank} on "
                    f"{socket.gethostname()}, of {place.size}; {SAME}",
                    place,
                )
            refuse(
                f"process 0 did not come to {place} within {patience:g} s; see on its machine why it ended, or wait longer "
                "with --timeout.rendezvous",
                place,
            )
        sleep(INTERVAL)
    name = bytes(store.get(f"welcome/{word}")).decode()
    store.set(f"{name}/here/{place.rank}", json.dumps(mine))
    arrived, until = store.add(f"{name}/arrived", 1), monotonic() + patience + SECONDS_TO_HEAR
    while not store.check([f"{name}/complete"]):
        if store.check([f"{name}/verdict"]):
            verdict = json.loads(store.get(f"{name}/verdict"))
            if "code" in verdict:
                sys.exit(verdict["code"])
            raise SharedUserError(verdict["text"])
        if (now := store.add(f"{name}/arrived", 0)) != arrived:
            arrived, until = now, monotonic() + patience + SECONDS_TO_HEAR
        if monotonic() > until:
            refuse(f"process 0 left the meeting at {place}; see on its machine why", place)
        sleep(INTERVAL)
    return name


def arrival(rank: int) -> str:
    """Return under which name a process says that it has come."""
    return f"arrived/{rank}"


def prove_links(store: Store, place: Place, patience: float) -> None:
    """Make sure that every process reaches every other one directly, as the groups need that are made from here on.

    Those would wait for half an hour, and the control group for ever.
    """
    if not torch.distributed.is_gloo_available():
        return
    try:
        group = torch.distributed.ProcessGroupGloo(
            PrefixStore("links", store), place.rank, place.size, timedelta(seconds=patience)
        )
    except RuntimeError as error:
        device = os.environ.get("GLOO_SOCKET_IFNAME")
        used = f"GLOO_SOCKET_IFNAME names the network device {device}" if device else "GLOO_SOCKET_IFNAME is not set"
        refuse(
            f"the processes met at {place}, but process {place.rank} on {socket.gethostname()} and the others do not reach each other "
            f"directly ({said(error)}): let all TCP ports between the machines through, and name the network device "
            f"that joins them ({used})",
            place,
        )
    # Nobody leaves while another one still connects.
    store.set(f"linked/{place.rank}", "")
    store.wait([f"linked/{rank}" for rank in range(place.size)])
    del group


def within(seconds: float, work: Callable[[], Result]) -> Result:
    """Return what some work returns.

    Raises:
        TimeoutError: it takes longer; the thread in which it hangs stays behind.
    """
    found: list[Result] = []
    failed: list[Exception] = []

    def run() -> None:
        try:
            found.append(work())
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if failed:
        raise failed[0]
    if not found:
        # A thread that hangs in C++ makes an orderly end abort.
        atexit.register(os._exit, USER_CAN_FIX)
        raise TimeoutError
    return found[0]


def refuse(problem: str, place: Place) -> NoReturn:
    """End this process with a message that process 0 may not know of: one process on each machine speaks, and process 1."""
    local = os.environ.get("LOCAL_RANK") or os.environ.get("SLURM_LOCALID") or "0"
    if place.rank == 1 or (place.rank > 0 and local == "0"):
        raise LoneUserError(problem) from None
    raise UserError(problem) from None


def said(error: BaseException) -> str:
    """Return the first line of an error, without the places in the source that torch and gloo put into it."""
    return re.sub(r"\[/[^]]*\] ", "", next(iter(str(error).splitlines()), ""))


def group_patience(progress: float, on_cpu: bool) -> timedelta:
    """Return the time-out of the process groups: longer than that of the watch, which says who hangs, and where.

    With its own ten minutes NCCL would abort the process before, whatever timeout.progress is, and nothing in the run
    folder would say why.
    """
    own = default_pg_timeout if on_cpu else default_pg_nccl_timeout or default_pg_timeout
    return timedelta(seconds=min(max(own.total_seconds(), progress), LONGEST) + SECONDS_FOR_THE_WATCH)


def meeting_place(meeting: Meeting | None, patience: timedelta) -> list[Any]:
    """Return what tells Accelerate to make its process group from this meeting, with this time-out."""
    if meeting is None:
        return []

    def rendezvous(
        url: str, timeout: timedelta = default_pg_timeout, **others: Any
    ) -> Iterator[tuple[Store, int, int]]:
        yield PrefixStore("groups", meeting.store), meeting.place.rank, meeting.place.size

    register_rendezvous_handler(SCHEME, rendezvous)  # type: ignore[no-untyped-call]
    return [InitProcessGroupKwargs(init_method=f"{SCHEME}://", timeout=patience)]
