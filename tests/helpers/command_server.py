"""Commands started as a user starts them, without the seconds in which each would load torch and Transformers.

A server has loaded them. For each command it forks a copy of itself, which gets the words, the folder and the
environment of the command, its own stdin, stdout and stderr, and runs the recipe or `toolkit` as `__main__` up to the
end of its process. What a library reads from the environment when it is loaded is the server's; a command that is about
such a variable has to be started as a process of its own.
"""

import atexit
import ctypes
import io
import json
import os
import resource
import runpy
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

SECONDS = 60
"""A command that takes longer hangs."""
CAPABILITY_VERSION, FILES_OF_OTHERS = 0x20080522, (1 << 1) | (1 << 2)


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    output: str
    errors: str
    seconds: float


@dataclass(frozen=True)
class Typed:
    """A command as it is typed into a shell."""

    words: list[str]
    variables: dict[str, str] = field(default_factory=dict)
    unset: list[str] = field(default_factory=list)
    largest_file: int | None = None
    """Bytes, by `ulimit -f`."""
    redirected: dict[str, str] = field(default_factory=dict)
    """Files in the place of stdin, stdout and stderr, by `<`, `>` and `2>`; `&-` closes it."""


def typed(line: str) -> Typed:
    """Read a command line: `ulimit -f N;`, `env -u NAME`, `NAME=value`, the words, and where its streams go."""
    before, _, rest = line.rpartition(";") if line.startswith("ulimit") else ("", "", line)
    blocks = int(before.split()[-1]) if before else None
    words = shlex.split(rest)
    variables, unset, redirected = {}, [], {}
    while words and (words[0] == "env" or words[0].partition("=")[0].isidentifier()):
        word = words.pop(0)
        if word == "env":
            while words[:1] == ["-u"]:
                unset.append(words[1])
                del words[:2]
            continue
        if "=" not in word:
            words.insert(0, word)
            break
        name, _, value = word.partition("=")
        variables[name] = value
    for sign in ("<", ">", "2>"):
        for word in [word for word in words if word.startswith(sign)]:
            place = words.index(word)
            redirected[sign] = word.removeprefix(sign) or words.pop(place + 1)
            del words[place]
    return Typed(words, variables, unset, None if blocks is None else blocks * 1024, redirected)


class CommandServer:
    """The server as those who use it see it: a context in which commands can be run."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = dict(environment)
        self.process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=self.environment
        )

    def __enter__(self) -> "CommandServer":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(SECONDS)

    def run(self, line: str, folder: Path) -> Ended:
        """Run a command in a folder, as if it had been typed there."""
        command = typed(line)
        environment = {name: value for name, value in self.environment.items() if name not in command.unset}
        request = {
            "words": command.words,
            "folder": str(folder),
            "environment": {**environment, **command.variables},
            "largest_file": command.largest_file,
            "redirected": command.redirected,
        }
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, "the server of commands has died"
        return Ended(**json.loads(answer))


def run_here(line: str, folder: Path, environment: Mapping[str, str]) -> Ended:
    """Run a command as a process of its own: what is started by a launcher, or is about what a library reads."""
    command, began = typed(line), time.monotonic()
    started = {name: value for name, value in environment.items() if name not in command.unset}
    program = str(Path(sys.executable).parent / command.words[0])
    done = subprocess.run(
        [program, *command.words[1:]],
        cwd=folder,
        env={**started, **command.variables},
        capture_output=True,
        text=True,
        timeout=2 * SECONDS,
        check=False,
    )
    return Ended(done.returncode, done.stdout, done.stderr, time.monotonic() - began)


def serve() -> None:
    """Answer each line of stdin, a command, by a line about how it ended."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    load()
    for line in sys.stdin:
        began = time.monotonic()
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            # No thread but this one may exist here: a copy would wait for what it held.
            assert threading.active_count() == 1
            child = os.fork()
            if child == 0:
                answers.close()
                become(json.loads(line), output.fileno(), errors.fileno())
            code = wait(child)
            texts = []
            for file in (output, errors):
                file.seek(0)
                texts.append(file.read().decode("utf-8", "backslashreplace"))
        ended = {"code": code, "output": texts[0], "errors": texts[1], "seconds": time.monotonic() - began}
        print(json.dumps(ended), file=answers, flush=True)
    os._exit(0)  # what libraries do at the end of a process was cleared


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


def wait(child: int) -> int:
    """Return the exit code of a process, or minus the signal that ended it."""
    limit = time.monotonic() + SECONDS
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > limit:
            os.killpg(child, signal.SIGKILL)
        time.sleep(0.002)


def become(request: dict[str, Any], output: int, errors: int) -> None:
    """Turn this copy into the process of a command, and end with it."""
    os.setpgid(0, 0)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    redirect(request["redirected"], output, errors)
    tempfile.tempdir = None
    if request["largest_file"] is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (request["largest_file"],) * 2)
    obey_permissions()
    code: object = 0
    try:
        execute(request["words"])
    except SystemExit as end:
        code = end.code
        if code is not None and not isinstance(code, int):
            print(code, file=sys.stderr)
            code = 1
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            code = 120  # as the interpreter does
    os._exit(int(code or 0))


def redirect(redirected: Mapping[str, str], output: int, errors: int) -> None:
    """Give this process its own stdin, stdout and stderr."""
    encoding, _, handling = os.environ.get("PYTHONIOENCODING", "").partition(":")
    for number, sign, given, name, mode in (
        (0, "<", os.open(os.devnull, os.O_RDONLY), "stdin", "r"),
        (1, ">", output, "stdout", "w"),
        (2, "2>", errors, "stderr", "w"),
    ):
        target = redirected.get(sign)
        if target == "&-":
            os.close(number)
            setattr(sys, name, None)
            continue
        flags = os.O_RDONLY if mode == "r" else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        os.dup2(given if target is None else os.open(target, flags, 0o666), number)
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
    """Run `toolkit ...`, `python -m toolkit ...` or `python FILE ...` in this process."""
    from toolkit.environment import prepare_environment

    prepare_environment()
    if words[0] == "toolkit" or words[:3] == ["python", "-m", "toolkit"]:
        from toolkit.cli import main

        sys.argv = ["toolkit", *words[1 if words[0] == "toolkit" else 3 :]]
        sys.exit(main())
    assert words[0] == "python", words
    sys.argv = words[1:]
    sys.path[0] = str(Path(words[1]).resolve().parent)
    runpy.run_path(words[1], run_name="__main__")


if __name__ == "__main__":
    serve()
