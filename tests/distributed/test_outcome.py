"""An error of one process is raised by all, with the process and the machine that it came from."""

import pytest

from toolkit.distributed.shared_outcome import Failure, raise_shared
from toolkit.errors import SharedUserError


def test_an_error_of_another_machine_is_reported_with_its_name() -> None:
    lost = ("there is no such file",)
    for failures, expected in (
        (
            [None, Failure(lost, True, "b"), Failure(lost, True)],
            (f"process 1 on b: {lost[0]}", f"process 2: {lost[0]}"),
        ),
        ([Failure(lost, True), Failure(lost, True, "b")], lost),
    ):
        with pytest.raises(SharedUserError) as error:
            raise_shared(failures)
        assert error.value.problems == expected
