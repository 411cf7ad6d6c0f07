"""The last word of a process, under a launcher too: why it could not go on, or that it stopped as it was asked to.

`accelerate launch` and `torchrun` print a trace of their own, 10 to 60 lines, below a process that ended with any code
but 0. So the message is printed at once, where nothing can lose it, and once more after that trace, by a small process
that waits for the launcher to end. A container or a job may end before that process has spoken, an interactive shell at
a terminal does not: there the message comes only once, after the trace.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import TextIO

import psutil

from toolkit.distributed.launch import prints_trace
from toolkit.output import pipes

# An interpreter of its own, since a copy of this process would hold its memory and its device. A process that has ended
# releases its memory first, and a moment later its shell is told: so the message comes before the shell's prompt.
AFTER_THE_LAUNCHER = """
import os, sys, time
message, memory, limit = sys.stdin.buffer.read(), int(sys.argv[1]), time.monotonic() + float(sys.argv[2])
def has_ended():
    try:
        return os.pread(memory, 2, 0) == b"0 "
    except ProcessLookupError:
        return True
while not has_ended() and time.monotonic() < limit:
    time.sleep(0.001)
if has_ended():
    os.write(2, message)
"""
# A launcher that is there for longer goes on with something else: it has started the processes again, say.
SECONDS_TO_END = 60
SHELLS = {"bash", "csh", "dash", "fish", "ksh", "sh", "tcsh", "zsh"}


def say_last(text: str, stream: TextIO) -> None:
    """Print what the user has to read at the end."""
    launcher = os.getppid()
    repeated = prints_trace() and is_same_output(launcher) and say_after(launcher, text)
    if not (repeated and stream.isatty() and is_of_a_shell(launcher)):
        pipes.print_line(text, stream)


def say_after(launcher: int, text: str) -> bool:
    """Have a text printed on stderr when the launcher has ended; return whether that is going to happen."""
    try:
        # It stands for this very process, also when another one has its number.
        memory = os.open(f"/proc/{launcher}/statm", os.O_RDONLY)
    except OSError:
        return False
    words = [sys.executable, "-I", "-S", "-c", AFTER_THE_LAUNCHER, str(memory), str(SECONDS_TO_END)]
    try:
        # A session of its own, which no Ctrl-C and no agent reaches; and who reads the output to its end is not kept waiting.
        waiting = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, pass_fds=[memory], start_new_session=True
        )
        assert waiting.stdin is not None
        with waiting.stdin:
            waiting.stdin.write(f"{text}\n".encode(sys.stderr.encoding or "utf-8", "backslashreplace"))
    except OSError:
        return False
    finally:
        os.close(memory)
    return True


def is_same_output(launcher: int) -> bool:
    """Return whether the launcher prints where this process does; it can be asked to keep the output in files."""
    try:
        return os.path.samestat(Path(f"/proc/{launcher}/fd/2").stat(), os.fstat(2))
    except OSError:
        return False


def is_of_a_shell(launcher: int) -> bool:
    """Return whether an interactive shell started the launcher, and so keeps the terminal when the launcher has ended.

    Such a shell leads the session, and gives each command a process group of its own.
    """
    try:
        leader = os.getsid(launcher)
        return os.isatty(2) and os.getpgid(launcher) != leader and psutil.Process(leader).name() in SHELLS
    except (OSError, psutil.Error):
        return False
