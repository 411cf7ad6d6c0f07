"""Copies of a loaded process, as which tests start commands, are processes like those that a shell starts."""

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from command_server import PROGRAMS, Command
from launching import CPU, begin, clean_environment, finished, launch

PYTHON = PROGRAMS / "python"
# Writes what it finds into a file that is named by its rank.
SCRIPT = """
import json, os, sys, psutil
rank = os.environ.get("RANK", "0")
found = {"loaded": "transformers" in sys.modules, "name": __name__, "words": sys.argv, "process": os.getpid()}
found |= {"parent": psutil.Process(os.getppid()).cmdline(), "own": psutil.Process().cmdline(), "path": sys.path[0]}
with open(f"{rank}.partial", "w") as file:
    json.dump(found, file)
os.rename(f"{rank}.partial", f"{rank}.json")
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


def found_by(rank: int) -> dict[str, Any]:
    """Return what the script found in a process."""
    found: dict[str, Any] = json.loads(Path(f"{rank}.json").read_text())
    return found


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("import sys; sys.exit(3)", 3),
        ("import sys; sys.exit('no')", 1),
        ("import atexit; atexit.register(print, 'later'); print('now')", 0),
        ("1 / 0", 1),
        ("raise KeyboardInterrupt", -signal.SIGINT),
        ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL),
    ],
)
def test_it_ends_as_the_interpreter_does(text: str, code: int) -> None:
    done = finished([PYTHON, "-c", text], 60, {})
    alone = subprocess.run([PYTHON, "-c", text], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (alone.returncode, alone.stdout)
    assert done.returncode == code
    assert done.stderr.splitlines()[-1:] == alone.stderr.splitlines()[-1:]


def test_it_gets_words_and_folder_and_a_signal_ends_it(script: Path) -> None:
    script.write_text(f"{SCRIPT}\nimport time\ntime.sleep(100)")
    process = begin([PYTHON, "script.py", "a b"], clean_environment(RANK="7"), script.parent)
    assert isinstance(process, Command)
    while not Path("7.json").exists():
        assert process.poll() is None
    found = found_by(7)
    assert (found["loaded"], found["name"], found["words"]) == (True, "__main__", ["script.py", "a b"])
    assert (found["process"], found["own"][-2:], found["path"]) == (process.pid, found["words"], str(script.parent))
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == -signal.SIGTERM


def test_what_a_launcher_starts_is_a_copy_and_its_child(script: Path) -> None:
    done = launch(script, "word")
    assert done.returncode == 0, done.stderr
    both = [found_by(0), found_by(1)]
    for found in both:
        assert (found["loaded"], found["words"]) == (True, [str(script), "word"])
        assert found["parent"][1:5] == [str(PROGRAMS / "accelerate"), "launch", "--config_file", str(CPU)]
    assert both[0]["parent"] == both[1]["parent"]
    assert both[0]["process"] != both[1]["process"]


def test_what_libraries_read_when_they_are_loaded_starts_a_process_anew(script: Path) -> None:
    assert finished([PYTHON, script], 60, {"HF_HOME": str(script.parent)}).returncode == 0
    assert found_by(0)["loaded"] is False
