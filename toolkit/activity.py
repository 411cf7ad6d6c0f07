"""What this process is doing just now, for the message that names it when it hangs or dies."""

from dataclasses import dataclass
from time import monotonic
from typing import Literal

Kind = Literal["works", "waits", "patient"]
"""It works; it waits for other processes; or it may take as long as it takes (reading data, metrics, writing the model)."""


@dataclass(frozen=True)
class Doing:
    """One thing that a process does."""

    what: str
    """In words that go on "it was ...", such as "in the forward pass"."""
    step: int | None
    """The optimizer step it belongs to, counted from 1."""
    kind: Kind
    since: float
    """When it began, on the monotonic clock of this process."""


class Activity:
    """Called wherever a process begins something else; read by the thread that tells the other processes."""

    def __init__(self) -> None:
        self("starting", kind="patient")

    def __call__(self, what: str, step: int | None = None, kind: Kind = "works") -> None:
        self.doing = Doing(what, step, kind, monotonic())
