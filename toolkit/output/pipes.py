"""Print where nobody may read any more: in `recipe | tee log`, Ctrl-C ends tee too, and the run still has to seal a
checkpoint and end with its own exit code. A stream may also be closed from the start, or lack letters of a label.

Apart from `console`, since `--help` and a mistyped flag need this and not rich.
"""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from toolkit.errors import UserError


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
    """Print a text and flush, unless nobody reads any more, or it can't be written where the stream goes."""
    try:
        print(text, file=stream, flush=True)
    except OSError:
        discard_output(stream)


def flush() -> None:
    """Flush stdout and stderr, unless nobody reads any more.

    Raises:
        UserError: what was printed can't be written where it goes, such as into a file on a full disk.
    """
    for stream in (sys.stdout, sys.stderr):
        with writing(stream):
            stream.flush()


@contextmanager
def writing(stream: TextIO) -> Iterator[None]:
    """Write to a stream in this block: if nobody reads any more, what is printed from here on is discarded.

    Raises:
        UserError: it can't be written where it goes, such as into a file on a full disk; the rest is discarded.
    """
    try:
        yield
    except BrokenPipeError:
        discard_output(stream)
    except OSError as error:
        discard_output(stream)
        raise UserError(
            f"what is printed can't be written where it goes ({error.strerror}); make room there, or send it elsewhere"
        ) from None


def discard_output(stream: TextIO) -> None:
    """Discard what is printed from here on; Python would otherwise end with an exit code of its own."""
    with suppress(OSError, ValueError):
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, stream.fileno())
        os.close(devnull)
