"""Printing where the reader may be gone: `recipe | tee log` ends tee with the same Ctrl-C, and the run still has its last
checkpoint to seal and its own exit code to end with.
"""

import os
import sys
from contextlib import suppress
from typing import TextIO


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
