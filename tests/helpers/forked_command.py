"""The server of `command_server.py`: it has loaded what commands load, and becomes a command in a copy of itself.

    python forked_command.py "room for the command lines of the copies"

Each line of stdin is a request. Two lines on stdout answer it: one when the command has begun, one when it has ended.
"""

import atexit
import ctypes
import io
import json
import os
import resource
import runpy
import select
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import IO, Any

import spares

CAPABILITY_VERSION, FILES_OF_OTHERS = 0x20080522, (1 << 1) | (1 << 2)
OWN_PATH = os.environ.get("PYTHONPATH", "").split(os.pathsep)


@dataclass(frozen=True)
class Running:
    """A command that has not ended."""

    number: int
    began: float
    limit: float
    streams: tuple[IO[bytes], IO[bytes]]


def serve() -> None:
    """Start what the lines of stdin ask for, and say how it ended."""
    requests, answers = os.dup(0), os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    load()
    running: dict[int, Running] = {}
    read = b""
    while True:
        if select.select([requests], [], [], 0.003 if running else None)[0]:
            more = os.read(requests, 1 << 20)
            if not more:
                break
            *lines, read = (read + more).split(b"\n")
            for request in map(json.loads, lines):
                process, started = begin(request, lambda: (answers.close(), os.close(requests)))
                running[process] = started
                print(json.dumps({"number": started.number, "process": process}), file=answers, flush=True)
        for process, started in tuple(running.items()):
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                del running[process]
                print(json.dumps(answer(started, os.waitstatus_to_exitcode(status))), file=answers, flush=True)
            elif time.monotonic() > started.limit:
                os.killpg(process, signal.SIGKILL)
    for process in running:
        os.killpg(process, signal.SIGKILL)
    os._exit(0)  # what libraries do at the end of a process was cleared


def begin(request: dict[str, Any], leave: Callable[[], object]) -> tuple[int, Running]:
    """Start a command; `leave` closes in its process what is the server's. Return the process."""
    began = time.monotonic()
    limit = began + (request["seconds"] or float("inf"))
    output, errors = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115 (closed by `answer`)
    # No thread but this one may exist here: a copy would wait for what it held.
    assert threading.active_count() == 1
    child = os.fork()
    if child == 0:
        leave()
        become(request, output.fileno(), errors.fileno())
    return child, Running(request["number"], began, limit, (output, errors))


def answer(started: Running, code: int) -> dict[str, Any]:
    """Return how a command ended."""
    texts = []
    for file in started.streams:
        file.seek(0)
        texts.append(file.read().decode("utf-8", "backslashreplace"))
        file.close()
    seconds = time.monotonic() - started.began
    return {"number": started.number, "code": code, "output": texts[0], "errors": texts[1], "seconds": seconds}


def load() -> None:
    """Load what commands load, and leave the garbage collector nothing to look at."""
    import gc
    import importlib
    import pkgutil

    import toolkit

    for found in pkgutil.walk_packages(toolkit.__path__, "toolkit."):
        if not found.name.endswith("__main__"):
            importlib.import_module(found.name)
    import datasets
    import sklearn.metrics
    import transformers

    for name in ("AutoModel", "AutoTokenizer", "PreTrainedTokenizerFast", "BertModel", "LlamaForCausalLM"):
        getattr(transformers, name)
    assert datasets
    assert sklearn
    # What libraries do at the end of a process costs more than to start it; what a command adds is still done.
    atexit._clear()
    gc.collect()
    gc.freeze()


def become(request: dict[str, Any], output: int, errors: int) -> None:
    """Turn this copy into the process of a command, and end with it."""
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        # A shell lets commands in the background ignore SIGINT, and the server may be one.
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    settle(request["environment"], request["folder"])
    os.sched_setaffinity(0, request["cores"])
    redirect(request["redirected"], output, errors)
    if request["largest_file"] is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (request["largest_file"],) * 2)
    if request["as_user"]:
        obey_permissions()
    words = request["words"]
    if spares.is_launcher(words):
        spares.provide(take_over)
    end_with(lambda: execute(words))


def take_over(request: dict[str, Any]) -> None:
    """Turn a spare process into one that a launcher starts, and end with it."""
    if request["new_session"]:
        os.setsid()
    settle(request["environment"], request["folder"])
    for name in ("stdout", "stderr"):
        # As `python -u`: several processes write to one file.
        getattr(sys, name).reconfigure(write_through=True)
    end_with(lambda: execute(request["words"]))


def settle(environment: Mapping[str, str], folder: str) -> None:
    """Give this process environment and folder, and what Python and torch read from the environment as they start."""
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    tempfile.tempdir = None
    sys.path[:] = [place for place in sys.path if place not in OWN_PATH]
    sys.path[1:1] = [place for place in environment.get("PYTHONPATH", "").split(os.pathsep) if place]
    threads = environment.get("OMP_NUM_THREADS", "")
    if threads.isdigit():
        import torch

        torch.set_num_threads(int(threads))


def end_with(run: Callable[[], None]) -> None:
    """Run a program up to the end of this process, as the interpreter does."""
    code: object = 0
    interrupted = False
    try:
        run()
    except SystemExit as end:
        code = end.code
        if code is not None and not isinstance(code, int):
            print(code, file=sys.stderr)
            code = 1
    except BaseException as error:
        traceback.print_exc()
        code, interrupted = 1, isinstance(error, KeyboardInterrupt)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            code = 120  # as the interpreter does
    if interrupted:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(int(code or 0))


def redirect(redirected: Mapping[str, str], output: int, errors: int) -> None:
    """Give this process its own stdin, stdout and stderr."""
    encoding, _, handling = os.environ.get("PYTHONIOENCODING", "").partition(":")
    for number, sign, given, name, mode in (
        (0, "<", os.open(os.devnull, os.O_RDONLY), "stdin", "r"),
        (1, ">", output, "stdout", "w"),
        (2, "2>", errors, "stderr", "w"),
    ):
        added = redirected.get(">>") if number == 1 else None
        target = added or redirected.get(sign)
        if target == "&-":
            os.close(number)
            setattr(sys, name, None)
            continue
        flags = os.O_RDONLY if mode == "r" else os.O_WRONLY | os.O_CREAT | (os.O_APPEND if added else os.O_TRUNC)
        source = 1 if target == "&1" else given if target is None else os.open(target, flags, 0o666)
        os.dup2(source, number)
        raw = io.FileIO(number, mode, closefd=False)
        buffer = io.BufferedReader(raw) if mode == "r" else io.BufferedWriter(raw)
        how = handling or ("backslashreplace" if name == "stderr" else "strict")
        setattr(sys, name, io.TextIOWrapper(buffer, encoding or "utf-8", how, line_buffering=name == "stderr"))


def obey_permissions() -> None:
    """Give up root's right to read and write everything, so that a folder that is read-only is one."""
    if os.geteuid() != 0:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0)
    sets = (ctypes.c_uint32 * 6)()
    assert libc.capget(header, sets) == 0
    sets[0] &= ~FILES_OF_OTHERS
    assert libc.capset(header, sets) == 0


def execute(words: list[str]) -> None:
    """Run `toolkit ...`, `accelerate ...`, `torchrun ...`, or `python` with a file, `-m NAME` or `-c TEXT`."""
    from toolkit.environment import prepare_environment

    prepare_environment()
    name, *rest = words
    if Path(name).name not in ("python", Path(sys.executable).name):
        program = Path(sys.executable).parent / Path(name).name
        words = [sys.executable, str(program), *rest]
        rest = words[1:]
    spares.show(words)
    if rest[:1] == ["-u"]:
        del rest[0]
    sys.path[0] = ""
    if rest[0] == "-m":
        sys.argv = rest[1:]
        runpy.run_module(rest[1], run_name="__main__", alter_sys=True)
    elif rest[0] == "-c":
        sys.argv = ["-c", *rest[2:]]
        sys.modules["__main__"] = ModuleType("__main__")
        exec(compile(rest[1], "<string>", "exec"), vars(sys.modules["__main__"]))
    else:
        sys.argv = rest
        sys.path[0] = str(Path(rest[0]).resolve().parent)
        runpy.run_path(rest[0], run_name="__main__")


if __name__ == "__main__":
    serve()
