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
        return UserError, self.problems
