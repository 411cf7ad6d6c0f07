"""Printing where the reader may be gone: `recipe | tee log` ends tee with the same Ctrl-C, and the run still has its last
checkpoint to seal and its own exit code to end with. There may also never have been a reader, or none of every letter.
"""

import io
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TextIO


def prepare() -> None:
    """Let a run speak where stdout or stderr was closed (`>&-`), and where they can't show the letters of a label."""
    # The next file that is opened gets a descriptor that was closed, and with it what libraries in C print there.
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def tell(text: str, stream: TextIO) -> None:
    """Print a text and have it out, if anybody reads."""
    try:
        print(text, file=stream, flush=True)
    except BrokenPipeError:
        go_quiet(stream)


def flush() -> None:
    """Have everything out that was printed."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            go_quiet(stream)


def go_quiet(stream: TextIO) -> None:
    """Let what is printed from here on go nowhere; or else Python would end with an exit code of its own."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
