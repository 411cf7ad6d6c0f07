"""What ends a run before its last step, something that the user can fix or a request to stop; and the exit codes."""

DONE, DEFECT, USER_CAN_FIX, STOPPED = 0, 1, 2, 75


class UserError(Exception):
    """Something that the person who started the run can mend: it ends the process with exit code 2 and no traceback.

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
        """Return what a notebook shows: the sentences, and not the way through the code. (IPython looks for this name.)"""
        return ["This can't go on:", *(f"  - {problem}" for problem in self.problems)]


class SharedUserError(UserError):
    """A `UserError` that every process of the run raises at the same place, so that they can end together."""


class LoneUserError(UserError):
    """A `UserError` of one process, of which the others know nothing: it has to speak for itself, and end at once."""


class DefectElsewhereError(RuntimeError):
    """Another process has a defect, and tells of it; it is no error of this one."""


class Preempted(Exception):  # noqa: N818 - what was asked for is no error
    """The run stopped on request, with a sealed checkpoint; every process raises it at the same place."""

    def __init__(self, step: int, reason: str) -> None:
        self.step = step
        self.reason = reason
        super().__init__(f"stopped after step {step}: {reason}")

    def _render_traceback_(self) -> list[str]:
        """Return what a notebook shows."""
        return [
            f"Stopped on request ({self.reason}) after step {self.step:,}, which has a sealed checkpoint; the same cell goes on."
        ]
