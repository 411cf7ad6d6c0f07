"""What ends a run before its last step: an error that the user can fix, or a request to stop; and the exit codes."""

from importlib import import_module
from types import ModuleType

DONE, DEFECT, USER_CAN_FIX, STOPPED = 0, 1, 2, 75


class UserError(Exception):
    """An error that the person who started the run can fix: it ends the process with exit code 2 and no traceback.

    Each problem is one sentence that names the value that was given, what is allowed and what to do. All problems that
    can be found together are reported together.
    """

    def __init__(self, *problems: str) -> None:
        if not problems:
            raise ValueError("a UserError needs at least one problem")
        self.problems = problems
        super().__init__("\n".join(problems))

    def __reduce__(self) -> tuple[type["UserError"], tuple[str, ...]]:
        return type(self), self.problems

    def _render_traceback_(self) -> list[str]:
        """Return what a notebook shows: the sentences without a traceback. (IPython looks for this name.)"""
        return ["This can't go on:", *(f"  - {problem}" for problem in self.problems)]


class SharedUserError(UserError):
    """A `UserError` that every process of the run raises at the same place, so that they can end together."""


class LoneUserError(UserError):
    """A `UserError` of one process that the others do not know of: this process prints it itself and ends at once."""


class DefectElsewhereError(RuntimeError):
    """Another process has a defect and reports it; this process has none."""


class Preempted(Exception):  # noqa: N818 - what was asked for is no error
    """The run stopped on request, with a sealed checkpoint; every process raises it at the same place."""

    def __init__(self, step: int, reason: str) -> None:
        self.step = step
        self.reason = reason
        super().__init__(f"stopped after step {step}: {reason}")

    def _render_traceback_(self) -> list[str]:
        """Return what a notebook shows."""
        return [
            f"Stopped on request ({self.reason}) after step {self.step:,}, which has a sealed checkpoint; "
            "the same cell goes on."
        ]


def require(module: str, extra: str, purpose: str) -> ModuleType:
    """Import and return a module that only some recipes need.

    Args:
        module: its import name.
        extra: the extra of this project that brings it.
        purpose: what it is needed for, such as "entity F1".

    Raises:
        UserError: it is not installed.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not module.startswith(error.name):
            raise
        raise UserError(
            f"{purpose} needs the package {error.name}, which is not installed; "
            f"install it with pip install -e '.[{extra}]'"
        ) from None
