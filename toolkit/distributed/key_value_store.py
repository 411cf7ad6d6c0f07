"""The store through which the processes of a run find each other: process 0 keeps it, or the launcher's agent does.

torch's own client says neither which host name is wrong nor why nobody answers, and its time-out does not hold before a
program that accepts a connection and sends nothing. So each process first tries the address itself.
"""

import atexit
import os
import re
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from time import monotonic, sleep
from typing import NoReturn, TypeVar

from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]

from toolkit.errors import USER_CAN_FIX, LoneUserError, UserError

Result = TypeVar("Result")

REMEDY = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"
WHERE = "MASTER_ADDR and MASTER_PORT; --main_process_ip and --main_process_port, or --rdzv-endpoint"


@dataclass(frozen=True)
class Endpoint:
    """Where the processes of a run find each other, and which of them this one is."""

    host: str
    port: int
    rank: int
    size: int
    by_agent: bool
    """Whether the launcher's agent keeps the store; else process 0 does."""

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def read_endpoint() -> Endpoint:
    """Return what the launcher put into the environment of this process.

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
                f"the environment variable {name} is {given or 'not set'}; it must be a whole number{limit}. "
                "A launcher sets it: start the processes with `accelerate launch` or `torchrun`"
            )
    if not problems and numbers["RANK"] >= numbers["WORLD_SIZE"]:
        problems.append(
            f"the environment variable RANK is {numbers['RANK']}, and WORLD_SIZE is {numbers['WORLD_SIZE']}: "
            f"processes are numbered from 0 to {numbers['WORLD_SIZE'] - 1}"
        )
    if problems:
        raise UserError(*problems)
    by_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return Endpoint(os.environ["MASTER_ADDR"], numbers["MASTER_PORT"], numbers["RANK"], numbers["WORLD_SIZE"], by_agent)


def open_store(endpoint: Endpoint, patience: float) -> Store:
    """Return the store of the run, which this process opens itself or reaches within `patience` seconds.

    Raises:
        UserError: it can't; the message names the address, and what is wrong with it.
    """
    seconds = timedelta(seconds=patience)
    if endpoint.rank == 0 and not endpoint.by_agent:
        try:
            # By its own loopback address: whether the others reach it by the one they were given, they find out.
            return TCPStore("localhost", endpoint.port, is_master=True, wait_for_workers=False, timeout=seconds)
        except RuntimeError as error:
            if "EADDRINUSE" in str(error):
                refuse(
                    f"port {endpoint.port}, where the processes are to meet, is in use on this machine "
                    f"({socket.gethostname()}): another run or program listens there; give another port "
                    "(MASTER_PORT), the same to all processes",
                    endpoint,
                )
            refuse(f"process 0 can't listen at port {endpoint.port} of this machine: {first_line(error)}", endpoint)
    reach(endpoint, patience)
    try:
        return within(
            patience,
            lambda: TCPStore(endpoint.host, endpoint.port, is_master=False, wait_for_workers=False, timeout=seconds),
        )
    except (TimeoutError, RuntimeError):
        refuse(
            f"something listens at {endpoint}, where the processes are to meet ({WHERE}), but it is not process 0 of a "
            "run; give another port, the same to all processes",
            endpoint,
        )


def reach(endpoint: Endpoint, patience: float) -> None:
    """Wait until something listens at the address."""
    until, reason = monotonic() + patience, "no answer"
    while (left := until - monotonic()) > 0:
        try:
            socket.create_connection((endpoint.host, endpoint.port), timeout=left).close()
        except socket.gaierror as error:
            if error.errno != socket.EAI_AGAIN:
                refuse(
                    f"the host name {endpoint.host}, where the processes are to meet ({WHERE}), is not known on this "
                    f"machine ({socket.gethostname()}); give the IP address of process 0's machine",
                    endpoint,
                )
            reason = "the name service does not answer"
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
        else:
            return
        sleep(min(0.2, max(0.0, until - monotonic())))
    this_process = f"process {endpoint.rank} of {endpoint.size} on {socket.gethostname()}"
    if endpoint.by_agent and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0":
        # torch 2.13: an agent that was not the first among them keeps the address of the first for good.
        refuse(
            f"{this_process} was started again, but the agent sent it to {endpoint}, where nobody is ({reason}): the "
            f"machine that has died, perhaps; start torchrun with {REMEDY} in the environment of each machine",
            endpoint,
        )
    own = " (that is this machine itself)" if endpoint.host in ("localhost", "127.0.0.1", "::1") else ""
    refuse(
        f"{this_process} reached nobody at {endpoint}{own} within {patience:g} s ({reason}), where the processes are "
        f"to meet ({WHERE}): start the same command on the machine of process 0 too, check the address, and open the "
        "port there; --timeout.rendezvous waits longer",
        endpoint,
    )


def within(seconds: float, work: Callable[[], Result]) -> Result:
    """Return what some work returns.

    Raises:
        TimeoutError: it takes longer; the thread in which it hangs stays behind.
    """
    results: list[Result] = []
    errors: list[Exception] = []

    def run() -> None:
        try:
            results.append(work())
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not results:
        # A thread that hangs in C++ makes an orderly end abort.
        atexit.register(os._exit, USER_CAN_FIX)
        raise TimeoutError
    return results[0]


def refuse(problem: str, endpoint: Endpoint) -> NoReturn:
    """End this process with a message.

    Process 0 may know nothing of it. So on each machine the first process prints it, and process 1 in any case.
    """
    local = os.environ.get("LOCAL_RANK") or os.environ.get("SLURM_LOCALID") or "0"
    if endpoint.rank == 1 or (endpoint.rank > 0 and local == "0"):
        raise LoneUserError(problem) from None
    raise UserError(problem) from None


def first_line(error: BaseException) -> str:
    """Return the first line of an error, without the places in the source that torch and gloo put into it."""
    return re.sub(r"\[/[^]]*\] ", "", next(iter(str(error).splitlines()), ""))
