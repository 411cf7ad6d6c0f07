"""The result of some work in each of several processes, and the error that all raise if it failed in one."""

from collections.abc import Callable
from dataclasses import dataclass, field
from socket import gethostname
from typing import Generic, TypeVar

from toolkit.distributed.memory import OutOfMemoryError, lack_of, lacks_memory
from toolkit.errors import DefectElsewhereError, SharedUserError, UserError

Result = TypeVar("Result")


@dataclass(frozen=True)
class Failure:
    """An error in a form that can be sent to the other processes."""

    problems: tuple[str, ...]
    is_user_error: bool
    host: str = field(default_factory=gethostname, compare=False)
    lacks_memory: bool = False
    is_echo: bool = False
    """Whether it only repeats what another process has raised."""


@dataclass(frozen=True)
class Outcome(Generic[Result]):
    """The result or the error of some work in this process."""

    result: Result | None = None
    error: Exception | None = None

    @property
    def is_defect(self) -> bool:
        """Whether there is an error that the user can't fix."""
        return self.failure is not None and not self.failure.is_user_error and not self.failure.is_echo

    @property
    def failure(self) -> Failure | None:
        """The error in a form that can be sent."""
        match self.error:
            case None:
                return None
            case UserError(problems=problems):
                return Failure(problems, is_user_error=True)
            case DefectElsewhereError():
                return Failure((str(self.error),), is_user_error=False, is_echo=True)
            case error if lacks_memory(error):
                return Failure((lack_of(error),), is_user_error=True, lacks_memory=True)
            case error:
                return Failure((f"{type(error).__name__}: {error}",), is_user_error=False)


def attempt(work: Callable[[], Result]) -> Outcome[Result]:
    """Run some work and keep its error."""
    try:
        return Outcome(result=work())
    except Exception as error:
        return Outcome(error=error)


def raise_shared(failures: list[Failure | None]) -> None:
    """Raise the errors of all processes as one; the message says which process, unless all failed in the same way.

    Raises:
        DefectElsewhereError: one has a defect.
        OutOfMemoryError: one had too little memory.
        SharedUserError: the user can fix it.
    """
    failed = {rank: failure for rank, failure in enumerate(failures) if failure is not None}
    failed = {rank: failure for rank, failure in failed.items() if not failure.is_echo} or failed
    if not failed:
        return
    defects = {rank: failure for rank, failure in failed.items() if not failure.is_user_error}
    shown = defects or failed
    if len(failed) == len(failures) and len(set(failed.values())) == 1:
        problems = next(iter(failed.values())).problems
    else:
        problems = tuple(
            f"process {rank}{elsewhere(failure.host)}: {problem}"
            for rank, failure in shown.items()
            for problem in failure.problems
        )
    if defects:
        raise DefectElsewhereError("; ".join(problems))
    if any(failure.lacks_memory for failure in shown.values()):
        raise OutOfMemoryError("; ".join(problems))
    raise SharedUserError(*problems)


def elsewhere(host: str) -> str:
    """Return the machine in words if it is not this one."""
    return "" if host == gethostname() else f" on {host}"
