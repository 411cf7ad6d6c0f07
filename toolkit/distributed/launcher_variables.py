"""What a launcher tells each process in its environment: checked before anything is made of it.

Nobody sets these by hand, but a shell or a job may keep some of them, or a script set a part.
"""

import os

from toolkit.errors import LoneUserError

WHO_SETS_IT = "A launcher sets these: start with `accelerate launch` or `torchrun`, or unset"


def check_launcher_variables() -> None:
    """Check that they are numbers, and belong to one and the same process.

    Raises:
        LoneUserError: they don't; this process says so itself, whichever it takes itself for.
    """
    numbers: dict[str, int] = {}
    problems = []
    for name, lowest in (("WORLD_SIZE", 1), ("RANK", 0), ("LOCAL_RANK", 0), ("LOCAL_WORLD_SIZE", 1)):
        given = os.environ.get(name, "")
        # -1 is "not distributed" in older scripts.
        if given in ("", "-1"):
            continue
        if given.isdigit() and int(given) >= lowest:
            numbers[name] = int(given)
        else:
            problems.append(
                f"the environment variable {name} is {given}; it must be a whole number, {lowest} or greater. "
                f"{WHO_SETS_IT} {name}"
            )
    size, rank = numbers.get("WORLD_SIZE"), numbers.get("RANK", 0)
    if not problems and size is None and rank > 0:
        problems.append(f"the environment variable RANK is {rank}, and WORLD_SIZE is not set. {WHO_SETS_IT} RANK")
    if not problems and size is not None and rank >= size:
        problems.append(
            f"the environment variable RANK is {rank}, and WORLD_SIZE is {size}: processes are numbered from 0 to "
            f"{size - 1}. {WHO_SETS_IT} RANK and WORLD_SIZE"
        )
    if not problems and (size or 1) == 1 and "LOCAL_RANK" in numbers and "MASTER_ADDR" not in os.environ:
        problems.append(
            f"the environment variable LOCAL_RANK is {numbers['LOCAL_RANK']}, but MASTER_ADDR, where the processes "
            f"meet, is not set. {WHO_SETS_IT} LOCAL_RANK"
        )
    if problems:
        raise LoneUserError(*problems)
