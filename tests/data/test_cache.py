"""Work is done once per machine, whole or not at all."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from toolkit.data.cache import cache_root, digest_of, once_per_machine
from toolkit.errors import UserError

BUILDER = """
import sys, time
from pathlib import Path
from toolkit.data.cache import once_per_machine

def build(folder):
    with Path(sys.argv[1]).open("a") as log:
        log.write("built\\n")
    time.sleep(0.5)  # long enough for all the others to arrive
    (folder / "words.txt").write_text("whole")

print((once_per_machine("tokens", "abc", build) / "words.txt").read_text())
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FINETUNE_TOOLKIT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_processes_that_come_together_build_once(cache: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = [sys.executable, "-c", BUILDER, str(log)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) for _ in range(4)]
    assert [process.communicate(timeout=60)[0] for process in processes] == ["whole\n"] * 4
    assert log.read_text() == "built\n"


def test_root_is_the_variable_or_the_users_cache(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache_root() == cache
    monkeypatch.delenv("FINETUNE_TOOLKIT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "shared"))
    assert cache_root() == tmp_path / "shared" / "finetune-toolkit"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_root() == tmp_path / "home" / ".cache" / "finetune-toolkit"


def test_root_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FINETUNE_TOOLKIT_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(UserError, match=r"file/cache cannot be written .*FINETUNE_TOOLKIT_CACHE"):
        cache_root()
    monkeypatch.setenv("FINETUNE_TOOLKIT_CACHE", str(tmp_path / "file"))
    with pytest.raises(UserError, match="cannot be written"):
        cache_root()


def test_failed_build_leaves_nothing_and_can_be_repeated(cache: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").write_text("")
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        once_per_machine("tokens", "abc", fail)
    assert [path.name for path in (cache / "tokens").iterdir()] == ["abc.lock"]
    place = once_per_machine("tokens", "abc", lambda folder: (folder / "done").touch())
    assert [path.name for path in place.iterdir()] == ["done"]


def test_full_disk_names_the_cache(cache: Path) -> None:
    def fail(folder: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(folder / "x"))

    with pytest.raises(UserError, match=r"No space left on device.*FINETUNE_TOOLKIT_CACHE"):
        once_per_machine("tokens", "abc", fail)


def test_leftover_of_a_killed_process_is_removed(cache: Path) -> None:
    leftover = cache / "tokens" / ".abc.0123"
    other = cache / "tokens" / ".xyz.0123"
    leftover.mkdir(parents=True)
    other.mkdir()
    once_per_machine("tokens", "abc", lambda folder: None)
    assert not leftover.exists()
    assert other.exists()


def test_who_finishes_second_without_a_lock_takes_what_is_there(cache: Path) -> None:
    def overtaken(folder: Path) -> None:
        place = folder.parent / "abc"
        place.mkdir()
        (place / "first").touch()
        (folder / "second").touch()

    place = once_per_machine("tokens", "abc", overtaken)
    assert [path.name for path in place.iterdir()] == ["first"]
    assert sorted(path.name for path in (cache / "tokens").iterdir()) == ["abc", "abc.lock"]


@pytest.mark.parametrize("key", ["", "a/b", "..", ".hidden"])
def test_key_must_be_one_name(cache: Path, key: str) -> None:
    with pytest.raises(ValueError, match="not the name of a folder"):
        once_per_machine("tokens", key, lambda folder: None)


def test_digest_tells_apart_what_differs() -> None:
    array = np.arange(6)
    parts = [
        ("ab", "c"),
        ("a", "bc"),
        ("abc",),
        (["ab", "c"],),
        (b"abc",),
        (1,),
        ("1",),
        (1.0,),
        (True,),
        (None,),
        ("None",),
        ((), 1),
        ((1,),),
        ({"a": 1},),
        ({"a": 2},),
        (["a", 1],),
        (array,),
        (array.reshape(2, 3),),
        (array.astype(np.int32),),
        (Path("abc"),),
    ]
    assert len({digest_of(*part) for part in parts}) == len(parts)


def test_digest_is_stable() -> None:
    assert digest_of("reviews", 3, {"b": [1, None], "a": 0.5}) == "647650c5d1e6908fd40b39879505f59a"
    assert digest_of({"a": 1, "b": 2}) == digest_of({"b": 2, "a": 1})
    assert digest_of(np.int64(3)) == digest_of(3)
    with pytest.raises(TypeError, match="no stable hash"):
        digest_of(object())
