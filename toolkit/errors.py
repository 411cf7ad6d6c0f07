"""The one exception for what a user can fix."""


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


class SharedUserError(UserError):
    """A `UserError` that every process of the run raises at the same place, so that they can end together."""


class LoneUserError(UserError):
    """A `UserError` of one process, of which the others know nothing: it has to speak for itself, and end at once."""
