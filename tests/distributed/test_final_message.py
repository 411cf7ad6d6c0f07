"""What the user has to read stands below the launcher's own trace, and is not lost where nothing is printed any more.

The launchers here are stand-ins of two lines: `tests/distributed/test_bad_input_launched.py` has the real ones.
"""

import os
import pty
import select
import subprocess
import sys
from pathlib import Path

import pytest
from launching import ROOT, clean_environment

MESSAGE = "\nrecipe can't go on:\n  - größer\n"
RECIPE = f"""
import os, sys
sys.path.insert(0, {str(ROOT)!r})
from toolkit.distributed import final_message
final_message.SECONDS_TO_END = float(os.environ.get("SECONDS_TO_END", "60"))
final_message.print_final_message({MESSAGE[:-1]!r}, sys.stderr)
sys.exit(2)
"""
LAUNCHER = """
import subprocess, sys, time
command = [sys.executable, next(word for word in sys.argv if word.endswith("recipe.py"))]
redirected = open(sys.argv[0] + ".log", "w") if "--redirects" in sys.argv else None
read = subprocess.PIPE if "--reads" in sys.argv else None
code = subprocess.run(command, stdout=read, stderr=redirected).returncode
time.sleep(1.5 if "--slow" in sys.argv else 0)
print("THE TRACE OF THE LAUNCHER", file=sys.stderr)
sys.exit(1)
"""
TRACE = "THE TRACE OF THE LAUNCHER\n"
AGENT = {"TORCHELASTIC_RUN_ID": "one", "TORCHELASTIC_MAX_RESTARTS": "2"}


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    """The command of a stand-in for `accelerate launch`, without its arguments."""
    for name, content in (("recipe.py", RECIPE), ("accelerate-launch", LAUNCHER), ("torchrun", LAUNCHER)):
        (tmp_path / name).write_text(content, encoding="utf-8")
    return [sys.executable, str(tmp_path / "accelerate-launch")]


@pytest.mark.parametrize(
    ("arguments", "environment", "seen"),
    [
        ([], {}, MESSAGE + TRACE + MESSAGE),
        # Such a launcher prints nothing itself.
        (["-q"], {}, MESSAGE + TRACE),
        (["--quiet"], {}, MESSAGE + TRACE),
        # What stands in files is not below the trace.
        (["--redirects"], {}, TRACE),
        # A launcher that goes on with something else prints its own message.
        (["--slow"], {"SECONDS_TO_END": "0.2"}, MESSAGE + TRACE),
        # Who reads the output of the recipe to its end is not kept waiting, and with it the launcher here.
        (["--reads"], {"SECONDS_TO_END": "5"}, MESSAGE + TRACE + MESSAGE),
        # An agent knows no `-q`.
        (["-q"], AGENT | {"TORCHELASTIC_RESTART_COUNT": "2"}, MESSAGE + TRACE + MESSAGE),
        # It is going to start the processes again.
        ([], AGENT | {"TORCHELASTIC_RESTART_COUNT": "1"}, MESSAGE + TRACE),
    ],
    ids=["plain", "-q", "--quiet", "output in files", "goes on", "output is read", "last restart", "restarts left"],
)
def test_the_message_comes_at_once_and_after_a_trace(
    command: list[str], tmp_path: Path, arguments: list[str], environment: dict[str, str], seen: str
) -> None:
    words = [*command, *arguments, str(tmp_path / "recipe.py")]
    done = subprocess.run(
        words, env=clean_environment(**environment), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stderr == seen
    assert done.returncode == 1
    logged = tmp_path / "accelerate-launch.log"
    assert not logged.exists() or logged.read_text(encoding="utf-8") == MESSAGE


@pytest.mark.parametrize("launcher", ["accelerate-launch", "torchrun"])
def test_at_a_shell_the_message_comes_once_and_last(command: list[str], tmp_path: Path, launcher: str) -> None:
    environment = AGENT | {"TORCHELASTIC_RESTART_COUNT": "2"} if launcher == "torchrun" else {}
    line = f"{sys.executable} {tmp_path / launcher} {tmp_path / 'recipe.py'}\n"
    leader, follower = pty.openpty()
    shell = subprocess.Popen(
        ["setsid", "--ctty", "bash", "--norc", "--noprofile", "-i"],
        **dict.fromkeys(("stdin", "stdout", "stderr"), follower),
        env=clean_environment(**environment, TERM="dumb", PS1="", LC_ALL="C.UTF-8"),
    )
    os.close(follower)
    os.write(leader, line.encode())
    seen = b""
    while MESSAGE.encode() not in seen.replace(b"\r\n", b"\n") and select.select([leader], [], [], 60)[0]:
        seen += os.read(leader, 4096)
    os.write(leader, b"exit\n")
    shell.wait(timeout=60)
    os.close(leader)
    text = seen.decode().replace("\r\n", "\n")
    assert text.count(MESSAGE) == 1
    assert TRACE in text.partition(MESSAGE)[0]


def test_without_a_launcher_the_message_comes_once(tmp_path: Path) -> None:
    script = tmp_path / "recipe.py"
    script.write_text(RECIPE, encoding="utf-8")
    done = subprocess.run([sys.executable, str(script)], env=clean_environment(), capture_output=True, check=False)
    assert done.stderr.decode() == MESSAGE
    assert done.returncode == 2
