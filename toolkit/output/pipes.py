"""Print where nobody may read any more: in `recipe | tee log`, Ctrl-C ends tee too, and the run still has to seal a
checkpoint and end with its own exit code. A stream may also be closed from the start, or lack letters of a label.

Apart from `console`, since `--help` and a mistyped flag need this and not rich.
"""

import io
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TextIO


def prepare() -> None:
    """Make stdout and stderr usable where they were closed (`>&-`), or can't encode all letters."""
    # The next file that is opened would get a closed descriptor, and with it what libraries in C print there.
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def print_line(text: str, stream: TextIO) -> None:
    """Print a text and flush, unless nobody reads any more."""
    try:
        print(text, file=stream, flush=True)
    except BrokenPipeError:
        discard_output(stream)


def flush() -> None:
    """Flush stdout and stderr, unless nobody reads any more."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            discard_output(stream)


def discard_output(stream: TextIO) -> None:
    """Discard what is printed from here on; Python would otherwise end with an exit code of its own."""
    with suppress(OSError, ValueError):
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, stream.fileno())
        os.close(devnull)
